//! The configuration in force, and what it assigns to a process.

use std::collections::BTreeSet;

use gpreempt_core::priority::Priority;
use gpreempt_device::process::{ProcessError, ProcessKey};

use super::tracked_process::About;
use crate::accounts::Accounts;
use crate::config::Config;
use crate::facts::{Gpu, ProcessFacts};
use crate::service::clients::request_error::RequestError;
use crate::service::private::PrivateRules;
use crate::verdict::Verdict;

/// The configuration, and what its rules are evaluated with.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) config: Config,
    pub(crate) accounts: Accounts,
    /// The variables that rules read from the environment of a process.
    environment_names: BTreeSet<String>,
    /// Where the service is a private session of a command.
    pub(crate) private: Option<PrivateRules>,
}

impl Rules {
    pub(crate) fn new(config: Config, accounts: Accounts) -> Self {
        let environment_names = config.environment_names();
        Self { config, accounts, environment_names, private: None }
    }

    /// Those of a private session: the command names its processes, so no environment is read.
    pub(crate) fn of_private(config: Config, accounts: Accounts, private: PrivateRules) -> Self {
        let environment_names = BTreeSet::new();
        Self { config, accounts, environment_names, private: Some(private) }
    }

    /// Refuses a priority for a process that drives a display, in a private session.
    pub(crate) fn check_display(&self, key: ProcessKey) -> Result<(), RequestError> {
        self.private.map_or(Ok(()), |private| private.check_display(key))
    }

    /// Whether a rule depends on the devices that a process uses.
    pub(crate) fn mention_gpus(&self) -> bool {
        self.config.mentions_gpus()
    }

    /// The priority of processes that no rule matches.
    pub(crate) const fn default_priority(&self) -> Option<Priority> {
        self.config.scheduler.default_priority
    }

    /// Reads what there is to know of a process, and what the rules assign to it. `uuids` are the
    /// devices it uses.
    pub(crate) fn judge(
        &self,
        key: ProcessKey,
        uuids: impl FnOnce() -> BTreeSet<String>,
    ) -> Result<(About, Verdict), ProcessError> {
        let gpus = if self.mention_gpus() { Gpu::named(uuids()) } else { Vec::new() };
        let facts = ProcessFacts::read(key, gpus, &self.environment_names)?;
        let verdict = self.config.judge(&facts, &self.accounts);
        Ok((About::new(&facts), verdict))
    }
}
