//! Who uses the devices.

use std::collections::BTreeMap;

use gpreempt_core::id::TaskId;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_device::process::ProcessKey;

use super::tracked_process::Member;

/// The processes that use a device, and which task of the scheduler each is.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    members: BTreeMap<ProcessKey, Member>,
    tasks: BTreeMap<TaskId, ProcessKey>,
    last_task: u64,
}

impl Roster {
    pub(crate) fn insert(&mut self, member: Member) {
        self.members.insert(member.key, member);
    }

    pub(crate) fn remove(&mut self, key: ProcessKey) -> Option<Member> {
        let member = self.members.remove(&key)?;
        if let Some(in_force) = member.in_force {
            self.tasks.remove(&in_force.task);
        }
        Some(member)
    }

    pub(crate) fn get(&self, key: ProcessKey) -> Option<&Member> {
        self.members.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: ProcessKey) -> Option<&mut Member> {
        self.members.get_mut(&key)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub(crate) fn keys(&self) -> Vec<ProcessKey> {
        self.members.keys().copied().collect()
    }

    /// The process that the loop watches by that number.
    pub(crate) fn watched(&self, watch: u64) -> Option<ProcessKey> {
        self.members.values().find(|member| member.watch == watch).map(|member| member.key)
    }

    /// The process behind a task.
    pub(crate) fn of_task(&self, task: TaskId) -> Option<&Member> {
        self.members.get(self.tasks.get(&task)?)
    }

    /// A name that no task had before, for that process.
    pub(crate) fn name_task(&mut self, key: ProcessKey) -> TaskId {
        self.last_task += 1;
        let task = TaskId(self.last_task);
        self.tasks.insert(task, key);
        task
    }

    /// That task is over; its process may go on.
    pub(crate) fn forget_task(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    /// Forgets all tasks and where processes are, as if nobody had been met yet.
    pub(crate) fn forget_places(&mut self) {
        self.tasks.clear();
        for member in self.members.values_mut() {
            member.in_force = None;
            member.homes.clear();
            member.adopted.clear();
        }
    }

    /// Suspensions that are over by now.
    pub(crate) fn leases_over(&self, now_ns: u64) -> Vec<ProcessKey> {
        let is_over = |member: &&Member| member.suspended_until_ns.is_some_and(|at| at <= now_ns);
        self.members.values().filter(is_over).map(|member| member.key).collect()
    }

    /// When the next suspension is over.
    pub(crate) fn next_lease_ns(&self) -> Option<u64> {
        self.members.values().filter_map(|member| member.suspended_until_ns).min()
    }

    /// The priority that stands for all processes of a controller that are not scheduled, where
    /// those that are scheduled are of one class. None if there are no such processes, unless some
    /// are expected.
    pub(crate) fn others(&self, controller: usize, are_expected: bool) -> Option<Priority> {
        let here = || self.members.values().filter(|member| member.homes.contains(&controller));
        if !are_expected && here().all(|member| member.in_force.is_some()) {
            return None;
        }
        let classes = || here().filter_map(|member| member.in_force);
        let has = |class| classes().any(|in_force| in_force.attr.priority.class() == class);
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
    use crate::service::processes::tracked_process::{About, InForce};
    use crate::verdict::{Outcome, Verdict};
    use gpreempt_core::event::SchedAttr;
    use std::collections::BTreeSet;

    fn member(roster: &mut Roster, pid: u32, priority: Option<u8>) -> ProcessKey {
        let key = ProcessKey { pid, start_ticks: 1 };
        let in_force = priority.map(|level| {
            let priority = Priority::new(level).unwrap();
            let attr = SchedAttr { priority, ..SchedAttr::default() };
            InForce { task: roster.name_task(key), attr, is_suspended: false }
        });
        roster.insert(Member {
            key,
            about: About::default(),
            verdict: Verdict { outcome: Outcome::Unknown, notes: Vec::new() },
            order: None,
            is_detached: false,
            suspended_until_ns: None,
            obstacle: None,
            homes: BTreeSet::from([0]),
            adopted: BTreeSet::new(),
            in_force,
            pidfd: None,
            watch: u64::from(pid),
        });
        key
    }

    #[test]
    fn others_matter_where_all_the_scheduled_are_of_one_class() {
        let mut roster = Roster::default();
        assert_eq!(roster.others(0, false), None);
        let high = member(&mut roster, 1, Some(12));
        assert_eq!(roster.others(0, false), None, "no other process is there");
        assert_eq!(roster.others(0, true), Priority::new(7), "but one may come");
        member(&mut roster, 2, None);
        assert_eq!(roster.others(0, false), Priority::new(7));
        assert_eq!(roster.others(1, false), None, "not on those devices");
        member(&mut roster, 3, Some(2));
        assert_eq!(roster.others(0, false), None);
        roster.remove(high);
        assert_eq!(roster.others(0, false), Priority::new(8));
    }

    #[test]
    fn tasks_lead_to_processes_and_are_never_the_same_twice() {
        let mut roster = Roster::default();
        let key = member(&mut roster, 1, Some(3));
        assert_eq!(roster.of_task(TaskId(1)).map(|member| member.key), Some(key));
        assert_eq!(roster.watched(1), Some(key));
        roster.remove(key);
        assert!(roster.of_task(TaskId(1)).is_none());
        assert_eq!(roster.name_task(key), TaskId(2));
    }

    #[test]
    fn leases_end_in_order() {
        let mut roster = Roster::default();
        let keys = [1, 2].map(|pid| member(&mut roster, pid, Some(3)));
        assert_eq!((roster.next_lease_ns(), roster.leases_over(u64::MAX)), (None, vec![]));
        for (key, until) in keys.into_iter().zip([50, 20]) {
            roster.get_mut(key).unwrap().suspended_until_ns = Some(until);
        }
        assert_eq!(roster.next_lease_ns(), Some(20));
        assert_eq!(roster.leases_over(19), []);
        assert_eq!(roster.leases_over(20), [keys[1]]);
        assert_eq!(roster.leases_over(50), keys);
    }
}
