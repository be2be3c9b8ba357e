//! Whom `--check` is about.

use std::collections::BTreeSet;
use std::io;

use gpreempt_device::amd::SiteName;
use gpreempt_device::amd::queue::queues_of;
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::nvidia::survey::{self, GpuProcess};
use gpreempt_device::process::{ProcessInfo, all_pids};

use crate::accounts::Accounts;
use crate::config::Config;
use crate::facts::{Gpu, ProcessFacts};
use crate::verdict::{Outcome, Source, Verdict};

/// The processes that use a GPU, and those of which a rule or their environment says something.
///
/// # Errors
/// If there is no /proc.
pub fn processes(config: &Config, accounts: &Accounts) -> io::Result<Vec<ProcessFacts>> {
    let names = config.environment_names();
    let users = survey::survey().unwrap_or_default();
    let mut found = Vec::new();
    for pid in all_pids()? {
        let user = users.iter().find(|user| user.info.key.pid == pid);
        // Whoever ends meanwhile is not worth a word.
        let Ok(info) = ProcessInfo::read(pid) else { continue };
        let amd = amd_uuids(pid);
        let has_work = user.is_some_and(GpuProcess::has_groups) || !amd.is_empty();
        let uuids = user.map(GpuProcess::uuids).unwrap_or_default().into_iter().chain(amd);
        let uuids: Vec<String> = uuids.collect();
        // To know all names of a GPU takes a look at the machine.
        let gpus = if uuids.is_empty() { Vec::new() } else { Gpu::named(uuids) };
        let Ok(facts) = ProcessFacts::read(info.key, gpus, &names) else { continue };
        if has_work || is_mentioned(&config.judge(&facts, accounts)) {
            found.push(facts);
        }
    }
    Ok(found)
}

/// The AMD GPUs that a process uses.
fn amd_uuids(pid: u32) -> BTreeSet<String> {
    let sysfs = SiteName::Kernel.places().sysfs;
    let queues = queues_of(&sysfs, pid).unwrap_or_default();
    if queues.is_empty() {
        return BTreeSet::new();
    }
    let topology = Topology::read(&sysfs).unwrap_or_default();
    let node = |gpu_id: u32| topology.device(gpu_id).map(Node::uuid);
    queues.iter().filter_map(|queue| node(queue.gpu_id)).collect()
}

/// Whether anybody says anything about this one in particular.
fn is_mentioned(verdict: &Verdict) -> bool {
    let is_particular = |source: &Source| matches!(source, Source::Rule(_) | Source::Environment);
    match &verdict.outcome {
        Outcome::Ignored(_) => true,
        Outcome::Unknown => false,
        Outcome::Scheduled { priority, weight, deadline } => {
            is_particular(&priority.source)
                || is_particular(&weight.source)
                || deadline.as_ref().is_some_and(|given| is_particular(&given.source))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_mentioned_is_listed() {
        let accounts = Accounts::load().unwrap();
        let own = std::process::id();
        let lists_own = |text: &str| {
            let config = Config::parse("test", text).unwrap();
            processes(&config, &accounts).unwrap().iter().any(|facts| facts.key.pid == own)
        };
        assert!(!lists_own(""));
        assert!(!lists_own("[scheduler]\ndefault_priority = 4\n"));
        assert!(lists_own("[[rule]]\nexecutable = \"/*\"\npriority = 3\n"));
        assert!(lists_own("[[rule]]\nexecutable = \"/*\"\nignore = true\n"));
    }
}
