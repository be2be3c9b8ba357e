//! Processes that wait for inspection: a few are inspected in each iteration of the loop.
//!
//! An inspection reads files in /proc, which takes up to a millisecond. At the start and after a
//! reload all processes are inspected. In one iteration that would leave the rings unread for too
//! long, so the work budget spreads it.

use std::collections::VecDeque;

use gpreempt_device::process::ProcessKey;

use super::{Context, Processes};
use crate::service::telemetry::log::Log;
use crate::service::work_budget::{Work, WorkBudget};

/// Why a process is inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InspectReason {
    /// It uses devices of that controller.
    Appeared(usize),
    DevicesChanged,
    RulesChanged,
}

/// The processes that wait, in order.
#[derive(Debug, Default)]
pub(crate) struct InspectionQueue {
    waiting: VecDeque<(ProcessKey, InspectReason)>,
    /// The rules have changed, and the end of that reload was not reported yet.
    is_reloading: bool,
}

impl InspectionQueue {
    /// Adds a process, once for each reason.
    pub(crate) fn add(&mut self, key: ProcessKey, reason: InspectReason) {
        if !self.waiting.contains(&(key, reason)) {
            self.waiting.push_back((key, reason));
        }
    }

    fn next(&mut self) -> Option<(ProcessKey, InspectReason)> {
        self.waiting.pop_front()
    }

    /// Takes one process out of order.
    fn take(&mut self, key: ProcessKey) -> Vec<InspectReason> {
        let own = self.waiting.iter().filter(|(waits, _)| *waits == key);
        let reasons = own.map(|(_, reason)| *reason).collect();
        self.waiting.retain(|(waits, _)| *waits != key);
        reasons
    }

    pub(crate) fn awaits(&self, key: ProcessKey) -> bool {
        self.waiting.iter().any(|(waits, _)| *waits == key)
    }

    /// Adds all processes after the rules changed.
    pub(crate) fn add_reload(&mut self, keys: Vec<ProcessKey>) {
        self.is_reloading = true;
        for key in keys {
            self.add(key, InspectReason::RulesChanged);
        }
    }

    /// Whether the last process of a reload has been inspected. True once per reload.
    fn take_end_of_reload(&mut self) -> bool {
        let is_over = !self.waiting.iter().any(|(_, why)| *why == InspectReason::RulesChanged);
        is_over && std::mem::take(&mut self.is_reloading)
    }

    /// Empties the queue before all processes are tracked anew. That ends a reload as well.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Processes {
    /// Inspects as many processes as the budget of this iteration permits.
    pub(crate) fn inspect_some(&mut self, budget: &mut WorkBudget, context: &mut Context<'_>) {
        while !budget.is_spent() && self.inspect_next(context) {
            budget.take(Work::Process);
        }
    }

    /// Inspects all processes, before the loop runs.
    pub(crate) fn inspect_all(&mut self, context: &mut Context<'_>) {
        while self.inspect_next(context) {}
    }

    fn inspect_next(&mut self, context: &mut Context<'_>) -> bool {
        let Some((key, reason)) = self.inspections.next() else { return false };
        self.inspect(key, reason, context);
        true
    }

    /// Inspects a process that a client names at once, if it waits.
    pub(crate) fn inspect_now(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        for reason in self.inspections.take(key) {
            self.inspect(key, reason, context);
        }
    }

    fn inspect(&mut self, key: ProcessKey, reason: InspectReason, context: &mut Context<'_>) {
        match reason {
            InspectReason::Appeared(controller) => self.track(controller, key, context),
            InspectReason::DevicesChanged => self.reassign_for_devices(key, context),
            InspectReason::RulesChanged => self.reassign(key, context),
        }
    }

    /// Logs how many processes still wait. Returns whether a reload is complete.
    pub(crate) fn finish_inspections(&mut self, log: &mut Log) -> bool {
        if !self.inspections.is_empty() {
            let left = self.inspections.len();
            log.debug(format_args!("processes to inspect in the next iterations: {left}"));
        }
        self.inspections.take_end_of_reload()
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
    fn processes_are_inspected_in_order_and_once_for_each_reason() {
        let mut inspections = InspectionQueue::default();
        for (pid, reason) in [(1, Appeared(0)), (2, DevicesChanged), (1, Appeared(0))] {
            inspections.add(key(pid), reason);
        }
        inspections.add(key(1), Appeared(1));
        assert_eq!(inspections.len(), 3);
        assert_eq!(inspections.next(), Some((key(1), Appeared(0))));
        assert!(inspections.awaits(key(1)) && inspections.awaits(key(2)));
        assert_eq!(inspections.next(), Some((key(2), DevicesChanged)));
        assert!(inspections.awaits(key(1)) && !inspections.awaits(key(2)));
    }

    #[test]
    fn a_reload_ends_once_after_its_last_process() {
        let mut inspections = InspectionQueue::default();
        assert!(!inspections.take_end_of_reload(), "there was none");
        inspections.add_reload(vec![key(1), key(2)]);
        inspections.add(key(3), Appeared(0));
        for is_over in [false, false, true, false] {
            assert_eq!(inspections.take_end_of_reload(), is_over);
            inspections.next();
        }
        inspections.add_reload(vec![]);
        assert!(inspections.take_end_of_reload(), "no process was inspected");
        inspections.add_reload(vec![key(1)]);
        inspections.clear();
        assert!(inspections.is_empty() && inspections.take_end_of_reload(), "all are tracked anew");
    }

    #[test]
    fn a_process_that_a_client_names_is_inspected_out_of_order() {
        let mut inspections = InspectionQueue::default();
        for pid in [1, 2] {
            inspections.add(key(pid), Appeared(0));
            inspections.add(key(pid), RulesChanged);
        }
        assert_eq!(inspections.take(key(2)), [Appeared(0), RulesChanged]);
        assert_eq!(inspections.take(key(2)), []);
        assert_eq!(inspections.len(), 2);
        assert!(!inspections.is_empty() && !inspections.awaits(key(2)));
    }
}
