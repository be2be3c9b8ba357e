//! The processes that use a device: what each of them should have, and its task of the scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use gpreempt_core::event::SchedAttr;
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_device::process::ProcessKey;

use super::client_settings::{Layers, SchedOverride, Suspension};
use super::normal::Exemption;
use crate::assignment::{Assignment, Outcome, SettingSource, open_to_all};
use crate::bounds::Bounds;
use crate::process_attributes::ProcessAttributes;
use crate::service::clients::permission::Target;

/// The name, user and container of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessLabels {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) container: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) slurm_job: Option<String>,
}

impl ProcessLabels {
    pub(crate) fn new(attributes: &ProcessAttributes) -> Self {
        let placement = attributes.cgroup.as_ref().map(|cgroup| cgroup.placement.clone());
        let placement = placement.unwrap_or_default();
        Self {
            name: attributes.name.clone(),
            // Only root may change a process whose user is unknown.
            uid: attributes.uid.unwrap_or(u32::MAX),
            container: placement.container,
            pod: placement.pod,
            slurm_job: placement.slurm_job.map(|job| job.to_string()),
        }
    }
}

/// What the scheduler has for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppliedAttr {
    pub(crate) task: TaskId,
    pub(crate) attr: SchedAttr,
    pub(crate) is_suspended: bool,
}

/// A process that uses a device.
#[derive(Debug)]
pub(crate) struct TrackedProcess {
    pub(crate) key: ProcessKey,
    pub(crate) labels: ProcessLabels,
    /// What the configuration gives it.
    pub(crate) assignment: Assignment,
    /// Whether it has the lowest priority because its inspection is late.
    pub(crate) is_unread: bool,
    /// What clients asked for.
    pub(crate) overrides: Layers<SchedOverride>,
    pub(crate) is_detached: bool,
    pub(crate) suspensions: Layers<Suspension>,
    /// The high-priority process for which it is preempted, if it is normal.
    pub(crate) yields_to: Option<ProcessKey>,
    /// Why it is never preempted as a normal process, as it was examined last.
    pub(crate) exemption: Option<Exemption>,
    /// The GPUs that it uses, as far as is known.
    pub(crate) gpus: BTreeSet<String>,
    /// Why it cannot be controlled, if so.
    pub(crate) obstacle: Option<String>,
    /// Whether its GPU memory is evicted, or about to be: then it is not scheduled.
    pub(crate) is_away: bool,
    /// How often that was completed.
    pub(crate) evictions: u64,
    /// The process and its ancestors, when it was inspected.
    pub(crate) lineage: Vec<ProcessKey>,
    /// The controllers whose devices it uses.
    pub(crate) controllers: BTreeSet<usize>,
    /// Those of them that control it.
    pub(crate) adopted: BTreeSet<usize>,
    pub(crate) applied: Option<AppliedAttr>,
    /// Readable when it has ended. A process without one is checked every 250 ms.
    pub(crate) pidfd: Option<OwnedFd>,
    /// The number of that descriptor in the epoll set.
    pub(crate) watch: u64,
}

impl TrackedProcess {
    pub(crate) fn new(
        key: ProcessKey,
        (labels, assignment): (ProcessLabels, Assignment),
        controller: usize,
        (pidfd, watch): (Option<OwnedFd>, u64),
    ) -> Self {
        Self {
            key,
            labels,
            assignment,
            is_unread: false,
            overrides: Layers::default(),
            is_detached: false,
            suspensions: Layers::default(),
            yields_to: None,
            exemption: None,
            gpus: BTreeSet::new(),
            obstacle: None,
            is_away: false,
            evictions: 0,
            lineage: Vec::new(),
            controllers: BTreeSet::from([controller]),
            adopted: BTreeSet::new(),
            applied: None,
            pidfd,
            watch,
        }
    }

    /// Whether a rule excludes it from scheduling, which no user can change.
    pub(crate) const fn is_ignored(&self) -> bool {
        matches!(self.assignment.outcome, Outcome::Ignored(_))
    }

    pub(crate) const fn is_suspended(&self) -> bool {
        !self.suspensions.is_empty()
    }

    /// What the scheduler should have. `None` if the process is not to be scheduled.
    pub(crate) fn wanted(&self) -> Option<SchedAttr> {
        if self.is_away { None } else { self.wanted_attr() }
    }

    /// The same, also for a process whose memory is evicted.
    pub(crate) fn wanted_attr(&self) -> Option<SchedAttr> {
        // A detached process can be suspended, and is not scheduled again after that.
        let is_detached = self.is_detached && !self.is_suspended();
        if self.is_normal() && self.obstacle.is_none() {
            return self.yielding_attr();
        }
        if self.is_ignored() || is_detached || self.obstacle.is_some() {
            return None;
        }
        let given = self.assignment.attr();
        let is_asked_for = !self.overrides.is_empty() || self.is_suspended();
        is_asked_for.then(|| self.overridden(given.unwrap_or_default())).or(given)
    }

    fn overridden(&self, given: SchedAttr) -> SchedAttr {
        self.overrides.apply(given, &self.bounds())
    }

    /// What its owner may lower and not raise.
    pub(crate) fn bounds(&self) -> Bounds {
        self.overrides.bounds(Bounds::of_configuration(&self.assignment))
    }

    /// Whether it is evicted when processes with a higher priority need room. What nothing names
    /// never is.
    pub(crate) fn is_evictable(&self) -> bool {
        let given = self.assignment.evictable.as_ref().is_some_and(|given| given.value);
        !self.is_ignored()
            && !self.is_detached
            && !self.is_normal()
            && self.overrides.evictable(given, &self.bounds())
    }

    /// What permissions depend on. Where nothing binds, its owner may give it what every user may
    /// have, or what its environment gave it.
    pub(crate) fn target(&self, default_priority: Option<Priority>) -> Target {
        let open = open_to_all(default_priority);
        let by_admin = self.overrides.admin.map(|admin| SettingSource::Administrator(admin.uid));
        Target {
            key: self.key,
            uid: self.labels.uid,
            bounds: self.bounds(),
            open: self.assignment.attr().map_or(open, |attr| attr.priority.max(open)),
            scheduled_by: by_admin.or_else(|| self.assignment.scheduled_by()),
            suspended_by: self.suspensions.admin.map(|suspension| suspension.uid),
            evicted_by: None,
        }
    }

    /// The reason for its attributes, in one sentence.
    pub(crate) fn why(&self) -> String {
        if self.is_normal() {
            return self.why_normal();
        }
        if let Some(obstacle) = &self.obstacle {
            return format!("not scheduled: {obstacle}");
        }
        match self.overrides.priority_by() {
            Some(uid) if !self.is_ignored() && !self.is_detached => {
                let given = self.assignment.attr().unwrap_or_default();
                let priority = self.overridden(given).priority;
                let asked = self.overrides.owner.and_then(|owner| owner.change.priority);
                match (asked.filter(|asked| *asked > priority), self.bounds().priority) {
                    (Some(asked), Some(bound)) => {
                        let by = bound.source;
                        format!("priority {priority} ({by}; uid {uid} asked for {asked})")
                    }
                    _ => format!("priority {priority} (asked for by uid {uid})"),
                }
            }
            _ if self.is_detached && !self.is_ignored() => {
                "not scheduled: a user detached it".to_owned()
            }
            _ => self.assignment.to_string(),
        }
    }
}

/// The processes that use a device, and the task of each.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    processes: BTreeMap<ProcessKey, TrackedProcess>,
    tasks: BTreeMap<TaskId, ProcessKey>,
    /// Processes whose memory is evicted, tracked or not.
    away: BTreeSet<ProcessKey>,
    last_task: u64,
}

impl ProcessTable {
    pub(crate) fn insert(&mut self, mut process: TrackedProcess) {
        process.is_away = self.away.contains(&process.key);
        self.processes.insert(process.key, process);
    }

    /// Notes whether the memory of a process is evicted, or about to be. The caller applies it.
    pub(crate) fn set_away(&mut self, key: ProcessKey, is_away: bool) {
        if is_away {
            self.away.insert(key);
        } else {
            self.away.remove(&key);
        }
        if let Some(process) = self.processes.get_mut(&key) {
            process.is_away = is_away;
        }
    }

    pub(crate) fn remove(&mut self, key: ProcessKey) -> Option<TrackedProcess> {
        self.away.remove(&key);
        let process = self.processes.remove(&key)?;
        if let Some(applied) = process.applied {
            self.tasks.remove(&applied.task);
        }
        Some(process)
    }

    pub(crate) fn get(&self, key: ProcessKey) -> Option<&TrackedProcess> {
        self.processes.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: ProcessKey) -> Option<&mut TrackedProcess> {
        self.processes.get_mut(&key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &TrackedProcess> {
        self.processes.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TrackedProcess> {
        self.processes.values_mut()
    }

    pub(crate) fn keys(&self) -> Vec<ProcessKey> {
        self.processes.keys().copied().collect()
    }

    /// The process with that number in the epoll set.
    pub(crate) fn watched(&self, watch: u64) -> Option<ProcessKey> {
        self.iter().find(|process| process.watch == watch).map(|process| process.key)
    }

    pub(crate) fn of_task(&self, task: TaskId) -> Option<&TrackedProcess> {
        self.processes.get(self.tasks.get(&task)?)
    }

    /// A task id that was never used before, for that process.
    pub(crate) fn name_task(&mut self, key: ProcessKey) -> TaskId {
        self.last_task += 1;
        let task = TaskId(self.last_task);
        self.tasks.insert(task, key);
        task
    }

    pub(crate) fn forget_task(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    /// Forgets all tasks and controllers of processes, before all controllers are replaced.
    pub(crate) fn forget_control(&mut self) {
        self.tasks.clear();
        for process in self.processes.values_mut() {
            process.applied = None;
            process.controllers.clear();
            process.adopted.clear();
            process.yields_to = None;
        }
    }

    /// Processes with a lease that has ended.
    pub(crate) fn leases_over(&self, now_ns: u64) -> Vec<ProcessKey> {
        let is_over = |process: &&TrackedProcess| {
            process.suspensions.next_ns().is_some_and(|at| at <= now_ns)
        };
        self.iter().filter(is_over).map(|process| process.key).collect()
    }

    pub(crate) fn next_lease_ns(&self) -> Option<u64> {
        self.iter().filter_map(|process| process.suspensions.next_ns()).min()
    }

    /// The priority of the placeholder task for the unmanaged processes of a controller. They need
    /// one where all managed processes are of one class. `None` if there are no unmanaged
    /// processes, unless some are expected.
    pub(crate) fn unmanaged(&self, controller: usize, are_expected: bool) -> Option<Priority> {
        let here = || self.iter().filter(|process| process.controllers.contains(&controller));
        if !are_expected && here().all(|process| process.applied.is_some()) {
            return None;
        }
        let managed = || here().filter_map(|process| process.applied);
        let has = |class| managed().any(|applied| applied.attr.priority.class() == class);
        match (has(Class::Low), has(Class::High)) {
            (true, false) => Priority::new(8),
            (false, true) => Priority::new(7),
            (true, true) | (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assignment::{SettingSource, Sourced};
    use crate::config::Unmanaged;
    use crate::rule::RuleLabel;
    use crate::service::clients::permission::Caller;
    use gpreempt_core::time::Duration;
    use gpreempt_wire::process::SchedAttrChange;

    fn level(level: u8) -> Priority {
        Priority::new(level).unwrap()
    }

    fn scheduled(priority: u8) -> Outcome {
        let source = SettingSource::Default;
        Outcome::Scheduled {
            priority: Sourced { value: level(priority), source: source.clone() },
            weight: Sourced { value: 1, source },
            deadline: None,
            latency_budget: None,
        }
    }

    fn process(pid: u32, outcome: Outcome) -> TrackedProcess {
        let key = ProcessKey { pid, start_ticks: 1 };
        let assignment = Assignment::new(outcome);
        let watch = (None, u64::from(pid));
        TrackedProcess::new(key, (ProcessLabels::default(), assignment), 0, watch)
    }

    /// A request of the owner, uid 5.
    fn ask(process: &mut TrackedProcess, priority: Option<u8>, deadline_us: Option<u64>) {
        let change = SchedAttrChange {
            priority: priority.map(level),
            deadline_us,
            ..SchedAttrChange::default()
        };
        process.overrides.add(Caller::of(5, false, true), change);
    }

    fn suspension(until_ns: u64) -> Layers<Suspension> {
        Layers::of(Suspension { until_ns, uid: 5 }, false)
    }

    #[test]
    fn a_process_that_no_rule_matches_is_scheduled_when_a_user_asks_for_it() {
        let mut process = process(7, Outcome::Unknown);
        let priority = |process: &TrackedProcess| Some(process.wanted()?.priority.level());
        assert_eq!(process.wanted(), None);
        process.suspensions = suspension(1);
        assert_eq!(priority(&process), Some(4));
        ask(&mut process, Some(9), None);
        assert_eq!(priority(&process), Some(9));
        assert_eq!(process.why(), "priority 9 (asked for by uid 5)");
        process.is_detached = true;
        assert!(process.wanted().is_some(), "as long as it is suspended");
        process.suspensions = Layers::default();
        assert_eq!(process.wanted(), None);
        assert_eq!(process.why(), "not scheduled: a user detached it");
    }

    #[test]
    fn an_override_changes_the_attributes_it_names() {
        let mut process = process(7, scheduled(12));
        ask(&mut process, None, Some(500));
        let wanted = process.wanted().unwrap();
        assert_eq!(wanted.priority, level(12));
        assert_eq!(wanted.deadline, Some(Duration::from_micros(500)));
        ask(&mut process, Some(3), None);
        let wanted = process.wanted().unwrap();
        assert_eq!((wanted.priority, wanted.deadline.is_some()), (level(3), true));
        ask(&mut process, None, Some(0));
        assert_eq!(process.wanted().unwrap().deadline, None);
    }

    #[test]
    fn a_user_may_restore_the_priority_that_the_environment_gave() {
        let open = |outcome, default| process(7, outcome).target(default).open;
        assert_eq!(open(scheduled(12), None), level(12));
        assert_eq!(open(scheduled(3), None), level(7));
        assert_eq!(open(Outcome::Unknown, Some(level(9))), level(9));
    }

    #[test]
    fn a_new_rule_limits_what_the_owner_asked_for_and_says_so() {
        let mut process = process(7, Outcome::Unknown);
        ask(&mut process, Some(9), None);
        let label = RuleLabel { number: 1, name: None, line: 3 };
        let Outcome::Scheduled { weight, .. } = scheduled(1) else { panic!() };
        let priority = Sourced { value: level(1), source: label.into() };
        process.assignment = Assignment::new(Outcome::Scheduled {
            priority,
            weight,
            deadline: None,
            latency_budget: None,
        });
        assert_eq!(process.wanted().unwrap().priority, level(1));
        assert_eq!(process.why(), "priority 1 (rule 1 (line 3); uid 5 asked for 9)");
        let target = process.target(None);
        let rule = target.bounds.priority.unwrap().source;
        assert_eq!(target.scheduled_by, Some(rule));
    }

    #[test]
    fn a_rule_with_ignore_overrules_every_user() {
        let label = RuleLabel { number: 1, name: None, line: 3 };
        let mut process = process(7, Outcome::Ignored(label));
        ask(&mut process, Some(9), None);
        process.suspensions = suspension(1);
        assert_eq!(process.wanted(), None);
        assert_eq!(process.why(), "not scheduled: rule 1 (line 3)");
    }

    #[test]
    fn a_process_that_cannot_be_controlled_is_not_scheduled_and_says_why() {
        let mut process = process(7, scheduled(12));
        process.obstacle = Some("another command has it".to_owned());
        assert_eq!(process.wanted(), None);
        assert_eq!(process.why(), "not scheduled: another command has it");
    }

    #[test]
    fn a_process_that_nothing_names_is_normal_and_gets_priority_4_while_it_yields() {
        let mut process = process(7, Outcome::Unknown);
        let state = |process: &TrackedProcess| process.normal_state();
        assert_eq!((state(&process), process.wanted()), (Some("untouched"), None));
        assert_eq!(process.why(), "normal");
        process.yields_to = Some(ProcessKey { pid: u32::MAX, start_ticks: 1 });
        let wanted = process.wanted().unwrap();
        assert_eq!((wanted.priority, wanted.has_min_share), (level(4), true));
        assert_eq!(process.why(), "normal: yields to process 4294967295");
        assert_eq!(state(&process), Some("yields"));
        process.exemption = Some(Exemption::Display);
        assert_eq!(process.why(), "normal: never preempted (display server)");
        process.exemption = None;
        process.obstacle = Some("another command has it".to_owned());
        assert_eq!((state(&process), process.wanted()), (Some("exempt"), None));
        assert_eq!(process.why(), "normal: cannot be preempted (another command has it)");
        process.obstacle = None;
        process.suspensions = suspension(1);
        assert_eq!(state(&process), None, "a command names it");
        assert!(!process.wanted().unwrap().has_min_share);
    }

    #[test]
    fn a_detach_makes_a_process_normal_and_a_rule_exempts_it() {
        let source = SettingSource::Environment;
        let Outcome::Scheduled { weight, .. } = scheduled(7) else { panic!() };
        let priority = Sourced { value: level(7), source: source.clone() };
        let weight = Sourced { source, ..weight };
        let outcome = Outcome::Scheduled { priority, weight, deadline: None, latency_budget: None };
        let mut of_environment = process(7, outcome);
        assert!(!of_environment.is_normal());
        of_environment.is_detached = true;
        assert!(of_environment.is_normal());
        let mut of_default = process(7, scheduled(3));
        of_default.is_detached = true;
        assert!(!of_default.is_normal(), "the configuration names it");
        let mut exempt = process(7, Outcome::Unknown);
        exempt.assignment.unmanaged = Unmanaged::Ignore;
        exempt.yields_to = Some(exempt.key);
        assert_eq!((exempt.is_normal(), exempt.wanted()), (false, None));
    }

    fn insert(table: &mut ProcessTable, pid: u32, priority: Option<u8>) -> ProcessKey {
        let mut process = process(pid, Outcome::Unknown);
        let key = process.key;
        process.applied = priority.map(|priority| {
            let attr = SchedAttr { priority: level(priority), ..SchedAttr::default() };
            AppliedAttr { task: table.name_task(key), attr, is_suspended: false }
        });
        table.insert(process);
        key
    }

    #[test]
    fn unmanaged_processes_have_a_priority_where_all_managed_ones_are_of_one_class() {
        let mut table = ProcessTable::default();
        assert_eq!(table.unmanaged(0, false), None);
        let high = insert(&mut table, 1, Some(12));
        assert_eq!(table.unmanaged(0, false), None, "there is no unmanaged process");
        assert_eq!(table.unmanaged(0, true), Priority::new(7), "but one is expected");
        insert(&mut table, 2, None);
        assert_eq!(table.unmanaged(0, false), Priority::new(7));
        assert_eq!(table.unmanaged(1, false), None, "not on those devices");
        insert(&mut table, 3, Some(2));
        assert_eq!(table.unmanaged(0, false), None);
        table.remove(high);
        assert_eq!(table.unmanaged(0, false), Priority::new(8));
    }

    #[test]
    fn a_task_id_leads_to_its_process_and_is_never_used_again() {
        let mut table = ProcessTable::default();
        let key = insert(&mut table, 1, Some(3));
        assert_eq!(table.of_task(TaskId(1)).map(|process| process.key), Some(key));
        assert_eq!(table.watched(1), Some(key));
        table.remove(key);
        assert!(table.of_task(TaskId(1)).is_none());
        assert_eq!(table.name_task(key), TaskId(2));
    }

    #[test]
    fn leases_end_in_order() {
        let mut table = ProcessTable::default();
        let keys = [1, 2].map(|pid| insert(&mut table, pid, Some(3)));
        assert_eq!((table.next_lease_ns(), table.leases_over(u64::MAX)), (None, vec![]));
        for (key, until) in keys.into_iter().zip([50, 20]) {
            table.get_mut(key).unwrap().suspensions = suspension(until);
        }
        assert_eq!(table.next_lease_ns(), Some(20));
        assert_eq!(table.leases_over(19), []);
        assert_eq!(table.leases_over(20), [keys[1]]);
        assert_eq!(table.leases_over(50), keys);
    }
}
