//! Processes that wait for inspection.
//!
//! An inspection reads what the process controls, so a thread makes it ([`super::inspection`]). The
//! queue knows why each process is inspected and how far that is. What happens to a process during
//! its inspection has it inspected once more.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_device::process::ProcessKey;

/// Why a process is inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InspectReason {
    /// It uses devices of that controller.
    Appeared(usize),
    DevicesChanged,
    RulesChanged,
}

#[derive(Debug, Default)]
struct Entry {
    reasons: Vec<InspectReason>,
    /// Reasons since the inspection was asked for.
    again: Vec<InspectReason>,
    /// The number of the inspection, once it is asked for.
    read_id: Option<u64>,
    is_late: bool,
}

/// The processes that wait, and those that are being inspected.
#[derive(Debug, Default)]
pub(crate) struct InspectionQueue {
    entries: BTreeMap<ProcessKey, Entry>,
    /// Those whose inspection was not asked for, in order.
    waiting: VecDeque<ProcessKey>,
    reads: BTreeMap<u64, ProcessKey>,
    /// The rules have changed, and the end of that reload was not reported yet.
    is_reloading: bool,
}

impl InspectionQueue {
    /// Adds a process, once for each reason.
    pub(crate) fn add(&mut self, key: ProcessKey, reason: InspectReason) {
        let Some(entry) = self.entries.get_mut(&key) else {
            self.entries.insert(key, Entry { reasons: vec![reason], ..Entry::default() });
            self.waiting.push_back(key);
            return;
        };
        let reasons = if entry.read_id.is_some() { &mut entry.again } else { &mut entry.reasons };
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }

    /// The next process whose inspection has to be asked for, and why.
    pub(crate) fn next(&mut self) -> Option<(ProcessKey, Vec<InspectReason>)> {
        let key = self.waiting.pop_front()?;
        Some((key, self.entries.get(&key).map(|entry| entry.reasons.clone()).unwrap_or_default()))
    }

    /// Takes one process out of order, if its inspection was not asked for.
    pub(crate) fn take(&mut self, key: ProcessKey) -> Option<Vec<InspectReason>> {
        let at = self.waiting.iter().position(|waits| *waits == key)?;
        self.waiting.remove(at);
        self.entries.get(&key).map(|entry| entry.reasons.clone())
    }

    /// The inspection of a process was asked for.
    pub(crate) fn begin(&mut self, key: ProcessKey, read_id: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.read_id = Some(read_id);
            self.reads.insert(read_id, key);
        }
    }

    /// A process needs no inspection.
    pub(crate) fn remove(&mut self, key: ProcessKey) {
        self.entries.remove(&key);
    }

    /// The inspection with that number has ended: the process, and why it was inspected.
    pub(crate) fn end(&mut self, read_id: u64) -> Option<(ProcessKey, Vec<InspectReason>)> {
        let key = self.reads.remove(&read_id)?;
        let entry = self.entries.remove(&key)?;
        for reason in entry.again {
            self.add(key, reason);
        }
        Some((key, entry.reasons))
    }

    /// The inspection with that number takes too long: nothing waits for it any more.
    pub(crate) fn set_late(&mut self, read_id: u64) -> Option<(ProcessKey, Vec<InspectReason>)> {
        let key = *self.reads.get(&read_id)?;
        let entry = self.entries.get_mut(&key)?;
        entry.is_late = true;
        Some((key, entry.reasons.clone()))
    }

    pub(crate) fn read_of(&self, key: ProcessKey) -> Option<u64> {
        self.entries.get(&key)?.read_id
    }

    pub(crate) fn awaits(&self, key: ProcessKey) -> bool {
        self.entries.get(&key).is_some_and(|entry| !entry.is_late)
    }

    /// Adds all processes after the rules changed: these, and those that are being inspected.
    pub(crate) fn add_reload(&mut self, keys: Vec<ProcessKey>) {
        self.is_reloading = true;
        let inspected: Vec<ProcessKey> = self.reads.values().copied().collect();
        for key in keys.into_iter().chain(inspected) {
            self.add(key, InspectReason::RulesChanged);
        }
    }

    /// Whether the last process of a reload has been inspected. True once per reload.
    pub(crate) fn take_end_of_reload(&mut self) -> bool {
        if !self.is_reloading {
            return false;
        }
        let has = |reasons: &[InspectReason]| reasons.contains(&InspectReason::RulesChanged);
        let waits = |entry: &Entry| has(&entry.reasons) || has(&entry.again);
        let is_over = !self.entries.values().any(|entry| !entry.is_late && waits(entry));
        self.is_reloading = !is_over;
        is_over
    }

    /// Empties the queue before all processes are tracked anew. That ends a reload as well.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.waiting.clear();
        self.reads.clear();
    }

    /// Whether every inspection has been asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::InspectReason::{Appeared, DevicesChanged, RulesChanged};
    use super::*;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    #[test]
    fn processes_are_inspected_in_order_and_once_for_all_reasons() {
        let mut inspections = InspectionQueue::default();
        for (pid, reason) in
            [(1, Appeared(0)), (2, DevicesChanged), (1, Appeared(0)), (1, Appeared(1))]
        {
            inspections.add(key(pid), reason);
        }
        assert_eq!(inspections.waiting.len(), 2);
        assert_eq!(inspections.next(), Some((key(1), vec![Appeared(0), Appeared(1)])));
        inspections.begin(key(1), 7);
        assert!(inspections.awaits(key(1)) && inspections.awaits(key(2)));
        assert_eq!(inspections.end(7), Some((key(1), vec![Appeared(0), Appeared(1)])));
        assert_eq!(inspections.end(7), None);
        assert!(!inspections.awaits(key(1)) && inspections.awaits(key(2)));
        assert_eq!(inspections.next(), Some((key(2), vec![DevicesChanged])));
        inspections.remove(key(2));
        assert!(inspections.is_empty() && !inspections.awaits(key(2)));
    }

    #[test]
    fn what_happens_during_an_inspection_leads_to_another_one() {
        let mut inspections = InspectionQueue::default();
        inspections.add(key(1), Appeared(0));
        inspections.next();
        inspections.begin(key(1), 7);
        inspections.add(key(1), DevicesChanged);
        inspections.add_reload(vec![]);
        assert_eq!(inspections.end(7), Some((key(1), vec![Appeared(0)])));
        assert!(!inspections.take_end_of_reload(), "the old rules were evaluated");
        assert_eq!(inspections.next(), Some((key(1), vec![DevicesChanged, RulesChanged])));
        inspections.remove(key(1));
        assert!(inspections.take_end_of_reload());
    }

    #[test]
    fn a_reload_ends_once_after_its_last_process() {
        let mut inspections = InspectionQueue::default();
        assert!(!inspections.take_end_of_reload(), "there was none");
        inspections.add_reload(vec![key(1), key(2)]);
        inspections.add(key(3), Appeared(0));
        for is_over in [false, false, true, false] {
            assert_eq!(inspections.take_end_of_reload(), is_over);
            if let Some((key, _)) = inspections.next() {
                inspections.remove(key);
            }
        }
        inspections.add_reload(vec![]);
        assert!(inspections.take_end_of_reload(), "no process was inspected");
        inspections.add_reload(vec![key(1)]);
        inspections.clear();
        assert!(inspections.is_empty() && inspections.take_end_of_reload(), "all are tracked anew");
    }

    #[test]
    fn nothing_waits_for_a_late_inspection_and_its_end_counts() {
        let mut inspections = InspectionQueue::default();
        inspections.add_reload(vec![key(1)]);
        inspections.next();
        inspections.begin(key(1), 7);
        assert_eq!(inspections.set_late(7), Some((key(1), vec![RulesChanged])));
        assert!(!inspections.awaits(key(1)) && inspections.take_end_of_reload());
        assert_eq!(inspections.read_of(key(1)), Some(7));
        assert_eq!(inspections.end(7), Some((key(1), vec![RulesChanged])));
    }

    #[test]
    fn a_process_that_a_client_names_is_taken_out_of_order() {
        let mut inspections = InspectionQueue::default();
        for pid in [1, 2] {
            inspections.add(key(pid), Appeared(0));
        }
        assert_eq!(inspections.take(key(2)), Some(vec![Appeared(0)]));
        assert_eq!(inspections.take(key(2)), None);
        assert!(inspections.awaits(key(2)) && inspections.waiting.len() == 1);
    }
}
