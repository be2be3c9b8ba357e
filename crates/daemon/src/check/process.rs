//! What one process would get.

use serde::Serialize;

use crate::accounts::Accounts;
use crate::cgroup::Placement;
use crate::facts::ProcessFacts;
use crate::verdict::{Given, Outcome, Verdict};

/// As much of a container's id as people use.
const ID_SHOWN: usize = 12;

/// A value and who said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The value.
    pub value: u64,
    /// Who said so, in words.
    pub source: String,
}

/// What one process would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Its number.
    pub pid: u32,
    /// What the kernel calls it.
    pub name: String,
    /// Its user's number.
    pub uid: Option<u32>,
    /// Its user's name.
    pub user: Option<String>,
    /// The container it runs in.
    pub container: Option<String>,
    /// The pod it runs in.
    pub pod: Option<String>,
    /// The batch job it belongs to.
    pub slurm_job: Option<u32>,
    /// Whether it would be scheduled, or else left alone.
    pub scheduled: bool,
    /// How important it would be.
    pub priority: Option<Setting>,
    /// Its part under the fair policy.
    pub weight: Option<Setting>,
    /// How long after its arrival a request should be done, in microseconds.
    pub deadline_us: Option<Setting>,
    /// All of that in words.
    pub verdict: String,
    /// What else somebody should know: one sentence each.
    pub notes: Vec<String>,
}

impl ProcessReport {
    /// The report of a verdict.
    pub(super) fn new(facts: &ProcessFacts, accounts: &Accounts, verdict: &Verdict) -> Self {
        let placement =
            facts.cgroup.as_ref().map(|cgroup| cgroup.placement.clone()).unwrap_or_default();
        let Placement { container, pod, slurm, runtime: _ } = placement;
        let (priority, weight, deadline_us) = match &verdict.outcome {
            Outcome::Scheduled { priority, weight, deadline } => (
                Some(setting(priority, |priority| u64::from(priority.level()))),
                Some(setting(weight, |weight| u64::from(*weight))),
                deadline.as_ref().map(|given| setting(given, |deadline| deadline.as_micros())),
            ),
            Outcome::Ignored(_) | Outcome::Unknown => (None, None, None),
        };
        Self {
            pid: facts.key.pid,
            name: facts.name.clone(),
            uid: facts.uid,
            user: facts.uid.and_then(|uid| accounts.name(uid)).map(str::to_owned),
            container,
            pod,
            slurm_job: slurm.map(|slurm| slurm.job),
            scheduled: priority.is_some(),
            priority,
            weight,
            deadline_us,
            verdict: verdict.to_string(),
            notes: verdict.notes.clone(),
        }
    }

    /// One line.
    pub(super) fn line(&self) -> String {
        let mut about = Vec::new();
        about.extend(self.user.clone().or_else(|| Some(format!("uid {}", self.uid?))));
        about.extend(self.container.as_ref().map(|id| format!("container {}", short(id))));
        about.extend(self.pod.as_ref().map(|id| format!("pod {}", short(id))));
        about.extend(self.slurm_job.map(|job| format!("Slurm job {job}")));
        let about = if about.is_empty() { "unknown user".to_owned() } else { about.join(", ") };
        format!("{} {} ({about}): {}", self.pid, self.name, self.verdict)
    }
}

fn setting<T>(given: &Given<T>, number: impl FnOnce(&T) -> u64) -> Setting {
    Setting { value: number(&given.value), source: given.source.to_string() }
}

fn short(id: &str) -> &str {
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { &id[..ID_SHOWN] } else { id }
}
