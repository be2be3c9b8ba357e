//! Which processes have lines of their own.

use std::collections::BTreeSet;

use gpreempt_wire::state::{Snapshot, TaskSnapshot};

use super::PROCESSES_MAX;

/// Those with lines of their own, and the others.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    /// At most [`PROCESSES_MAX`], no two with the same number, ordered by it.
    pub(super) shown: Vec<&'a TaskSnapshot>,
    /// The rest.
    pub(super) others: Vec<&'a TaskSnapshot>,
}

impl<'a> Selection<'a> {
    /// Chooses. Those we schedule come first, then the oldest: neither changes from one reading to
    /// the next, so a process does not jump in and out of the others and its counters go on.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut tasks: Vec<&TaskSnapshot> = snapshot.tasks.iter().collect();
        tasks.sort_by_key(|task| (task.priority.is_none(), task.start_ticks, task.pid));
        let mut pids = BTreeSet::new();
        let (mut shown, mut others) = (Vec::new(), Vec::new());
        for task in tasks {
            // A number can be there twice for a moment: one process is gone, the next has it.
            // Two lines with the same labels would make Prometheus refuse the whole page.
            if shown.len() < PROCESSES_MAX && pids.insert(task.pid) {
                shown.push(task);
            } else {
                others.push(task);
            }
        }
        shown.sort_by_key(|task| task.pid);
        Self { shown, others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: u32, start_ticks: u64, priority: Option<u8>) -> TaskSnapshot {
        TaskSnapshot { pid, start_ticks, priority, ..TaskSnapshot::default() }
    }

    #[test]
    fn scheduled_processes_come_first_and_then_the_oldest() {
        let mut tasks: Vec<_> = (1..=1_000).map(|pid| task(pid, u64::from(pid), None)).collect();
        tasks.push(task(2_000, 9_999, Some(3)));
        let snapshot = Snapshot { tasks, ..Snapshot::default() };
        let selection = Selection::of(&snapshot);
        assert_eq!(selection.shown.len(), PROCESSES_MAX);
        assert_eq!(selection.shown.last().unwrap().pid, 2_000);
        let others: Vec<u32> = selection.others.iter().map(|task| task.pid).collect();
        assert_eq!(others, [1_000]);
    }

    #[test]
    fn a_number_is_shown_once() {
        let tasks = vec![task(7, 1, Some(2)), task(7, 5, Some(2))];
        let snapshot = Snapshot { tasks, ..Snapshot::default() };
        let selection = Selection::of(&snapshot);
        assert_eq!(selection.shown[0].start_ticks, 1);
        assert_eq!(selection.others[0].start_ticks, 5);
    }
}
