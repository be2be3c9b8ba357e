//! Processes that have to be looked into: a few in each turn.
//!
//! What a process is has to be read from files of the kernel, which takes a good part of a
//! millisecond. When a daemon starts where many use the GPUs, or reads its configuration again,
//! that is to be done for all of them. One turn for all would leave everybody's rings unread
//! meanwhile.

use std::collections::VecDeque;

use gpreempt_device::process::ProcessKey;

use super::{Context, Processes};
use crate::service::telemetry::log::Log;
use crate::service::work_budget::{Allowance, Work};

/// Why a process is looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It uses devices of that controller.
    Meet(usize),
    /// It has something else on the devices than before.
    Regrouped,
    /// There are other rules.
    Reloaded,
}

/// Who waits, the first first.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: VecDeque<(ProcessKey, Look)>,
    /// The rules are others, and nobody was told yet that everybody has been judged by them.
    is_reloading: bool,
}

impl Backlog {
    /// Once for each reason is enough.
    pub(crate) fn add(&mut self, key: ProcessKey, look: Look) {
        if !self.waiting.contains(&(key, look)) {
            self.waiting.push_back((key, look));
        }
    }

    fn next(&mut self) -> Option<(ProcessKey, Look)> {
        self.waiting.pop_front()
    }

    /// Everything about one process, before it is its turn.
    fn take(&mut self, key: ProcessKey) -> Vec<Look> {
        let own = self.waiting.iter().filter(|(waits, _)| *waits == key);
        let looks = own.map(|(_, look)| *look).collect();
        self.waiting.retain(|(waits, _)| *waits != key);
        looks
    }

    pub(crate) fn awaits(&self, key: ProcessKey) -> bool {
        self.waiting.iter().any(|(waits, _)| *waits == key)
    }

    /// There are other rules, for all of these.
    pub(crate) fn add_reload(&mut self, keys: Vec<ProcessKey>) {
        self.is_reloading = true;
        for key in keys {
            self.add(key, Look::Reloaded);
        }
    }

    /// Whether all of them have been judged by the rules that hold now. True once.
    fn take_end_of_reload(&mut self) -> bool {
        let is_over = !self.waiting.iter().any(|(_, look)| *look == Look::Reloaded);
        is_over && std::mem::take(&mut self.is_reloading)
    }

    /// Nobody waits any more: everybody is to be met anew. A reload that was under way is over
    /// then, and whoever waits for that is told.
    pub(crate) fn forget_all(&mut self) {
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
    /// Inspects as many processes as the budget of this turn permits.
    pub(crate) fn look_into_some(&mut self, allowance: &mut Allowance, context: &mut Context<'_>) {
        while !allowance.is_spent() && self.look_into_next(context) {
            allowance.take(Work::Process);
        }
    }

    /// Inspects all of them, before the loop runs.
    pub(crate) fn look_into_all(&mut self, context: &mut Context<'_>) {
        while self.look_into_next(context) {}
    }

    /// Inspects the next one. False if none waits.
    fn look_into_next(&mut self, context: &mut Context<'_>) -> bool {
        let Some((key, look)) = self.backlog.next() else { return false };
        self.look_into(key, look, context);
        true
    }

    /// Inspects a process at once that a client names, if it waits.
    pub(crate) fn look_into_now(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        for look in self.backlog.take(key) {
            self.look_into(key, look, context);
        }
    }

    fn look_into(&mut self, key: ProcessKey, look: Look, context: &mut Context<'_>) {
        match look {
            Look::Meet(controller) => self.meet(controller, key, context),
            Look::Regrouped => self.judge_again(key, context),
            Look::Reloaded => self.judge_anew(key, context),
        }
    }

    /// Logs how many are left for later turns. True if the last one of a reload is done.
    pub(crate) fn end_looks(&mut self, log: &mut Log) -> bool {
        if !self.backlog.is_empty() {
            let left = self.backlog.len();
            log.debug(format_args!("processes to look into in the next turns: {left}"));
        }
        self.backlog.take_end_of_reload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    #[test]
    fn the_first_comes_first_and_once_for_each_reason() {
        let mut backlog = Backlog::default();
        for (pid, look) in [(1, Look::Meet(0)), (2, Look::Regrouped), (1, Look::Meet(0))] {
            backlog.add(key(pid), look);
        }
        backlog.add(key(1), Look::Meet(1));
        assert_eq!(backlog.len(), 3);
        assert_eq!(backlog.next(), Some((key(1), Look::Meet(0))));
        assert!(backlog.awaits(key(1)) && backlog.awaits(key(2)));
        assert_eq!(backlog.next(), Some((key(2), Look::Regrouped)));
        assert!(backlog.awaits(key(1)) && !backlog.awaits(key(2)));
    }

    #[test]
    fn a_reload_is_over_once_and_after_the_last() {
        let mut backlog = Backlog::default();
        assert!(!backlog.take_end_of_reload(), "there was none");
        backlog.add_reload(vec![key(1), key(2)]);
        backlog.add(key(3), Look::Meet(0));
        for is_over in [false, false, true, false] {
            assert_eq!(backlog.take_end_of_reload(), is_over);
            backlog.next();
        }
        backlog.add_reload(vec![]);
        assert!(backlog.take_end_of_reload(), "nobody had to be judged");
        backlog.add_reload(vec![key(1)]);
        backlog.forget_all();
        assert!(backlog.is_empty() && backlog.take_end_of_reload(), "all are met anew");
    }

    #[test]
    fn who_is_asked_about_waits_no_longer() {
        let mut backlog = Backlog::default();
        for pid in [1, 2] {
            backlog.add(key(pid), Look::Meet(0));
            backlog.add(key(pid), Look::Reloaded);
        }
        assert_eq!(backlog.take(key(2)), [Look::Meet(0), Look::Reloaded]);
        assert_eq!(backlog.take(key(2)), []);
        assert_eq!(backlog.len(), 2);
        assert!(!backlog.is_empty() && !backlog.awaits(key(2)));
    }
}
