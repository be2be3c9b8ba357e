//! Priorities that clients gave to single queues, and who gave them.
//!
//! An administrator's priority binds the owner of the queue. One of the owner lasts as long as
//! nothing binds the process below it.

use std::collections::BTreeMap;

use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;

use crate::assignment::SettingSource;
use crate::service::clients::permission::Caller;
use crate::service::clients::request_error::RequestError;

#[derive(Clone, Copy, Debug)]
struct QueuePriority {
    priority: Priority,
    /// The administrator that asked for it, if one did.
    admin: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct QueuePriorities(BTreeMap<QueueId, QueuePriority>);

impl QueuePriorities {
    /// Refuses a priority above that of an administrator.
    pub(crate) fn check(
        &self,
        caller: Caller,
        queue: QueueId,
        wanted: Priority,
    ) -> Result<(), RequestError> {
        let Some(QueuePriority { priority, admin: Some(uid), .. }) = self.0.get(&queue) else {
            return Ok(());
        };
        if caller.is_admin() || wanted <= *priority {
            return Ok(());
        }
        let by = SettingSource::Administrator(*uid);
        Err(RequestError::QueueAboveDecision { queue: queue.0, decided: *priority, by })
    }

    /// Records a priority that passed the check; `None` restores that of the process.
    pub(crate) fn set(&mut self, caller: Caller, queue: QueueId, priority: Option<Priority>) {
        let is_bound = self.0.get(&queue).is_some_and(|known| known.admin.is_some());
        if is_bound && !caller.is_admin() {
            // The scheduler has what the owner asked for; the bound stays.
            return;
        }
        let admin = caller.is_admin().then_some(caller.uid());
        match priority {
            Some(priority) => drop(self.0.insert(queue, QueuePriority { priority, admin })),
            None => drop(self.0.remove(&queue)),
        }
    }

    /// Forgets queues that no longer exist.
    pub(crate) fn retain(&mut self, exists: impl Fn(QueueId) -> bool) {
        self.0.retain(|queue, _| exists(*queue));
    }

    /// Removes and returns those of the owner above a priority.
    pub(crate) fn take_above(
        &mut self,
        most: Priority,
        is_meant: impl Fn(QueueId) -> bool,
    ) -> Vec<QueueId> {
        let is_above = |queue: &QueueId, known: &mut QueuePriority| {
            known.admin.is_none() && known.priority > most && is_meant(*queue)
        };
        self.0.extract_if(.., is_above).map(|(queue, _)| queue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Caller = Caller::of(0, true, true);
    const OWNER: Caller = Caller::of(1000, false, false);
    const QUEUE: QueueId = QueueId(7);

    fn level(level: u8) -> Priority {
        Priority::new(level).unwrap()
    }

    #[test]
    fn the_priority_of_an_administrator_binds_the_owner_of_a_queue() {
        let mut priorities = QueuePriorities::default();
        priorities.set(OWNER, QUEUE, Some(level(7)));
        assert!(priorities.check(OWNER, QUEUE, level(7)).is_ok());
        priorities.set(ROOT, QUEUE, Some(level(2)));
        let refusal = priorities.check(OWNER, QUEUE, level(3)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "priority 2 of queue 7 was set by root; only an administrator can raise it"
        );
        assert!(priorities.check(ROOT, QUEUE, level(3)).is_ok());
        priorities.set(OWNER, QUEUE, Some(level(1)));
        assert!(priorities.check(OWNER, QUEUE, level(2)).is_ok(), "the owner may restore it");
        assert!(priorities.check(OWNER, QUEUE, level(3)).is_err(), "and not raise it");
        priorities.set(ROOT, QUEUE, None);
        assert!(priorities.check(OWNER, QUEUE, level(7)).is_ok());
    }

    #[test]
    fn priorities_of_the_owner_above_a_new_bound_are_found_once() {
        let mut priorities = QueuePriorities::default();
        priorities.set(OWNER, QUEUE, Some(level(7)));
        priorities.set(OWNER, QueueId(8), Some(level(1)));
        priorities.set(ROOT, QueueId(9), Some(level(12)));
        assert_eq!(priorities.take_above(level(1), |_| true), [QUEUE]);
        assert_eq!(priorities.take_above(level(1), |_| true), []);
        priorities.retain(|queue| queue != QueueId(9));
        assert!(priorities.check(OWNER, QueueId(9), level(13)).is_ok(), "that queue is gone");
    }
}
