//! Distinguishes queues that reuse one KFD queue id.
//!
//! The kernel marks every queue that it creates (`QUEUE_NEW`) and refuses to suspend a marked one.
//! A snapshot returns the marks and clears them. So code that notes every mark can distinguish
//! queues with one id, and a queue without a mark in a snapshot is either the same queue or
//! refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::QueueEntry;

/// A number per queue. No two queues with one id have the same, in any session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueGeneration(u64);

static LAST: AtomicU64 = AtomicU64::new(0);

impl QueueGeneration {
    pub(crate) fn next() -> Self {
        // ORDERING: the numbers only have to be distinct.
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// One queue, and no other with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey {
    pub id: u32,
    pub generation: QueueGeneration,
}

/// The queues of one process that were seen.
#[derive(Clone, Debug)]
pub(super) struct QueueGenerations {
    /// Of the queues that existed before the session.
    beginning: QueueGeneration,
    later: BTreeMap<u32, QueueGeneration>,
}

impl QueueGenerations {
    pub(super) fn new() -> Self {
        Self { beginning: QueueGeneration::next(), later: BTreeMap::new() }
    }

    pub(super) fn note(&mut self, entries: &[QueueEntry]) {
        for entry in entries {
            self.note_mark(entry.queue_id, entry.exceptions);
        }
    }

    pub(super) fn note_mark(&mut self, id: u32, exceptions: Exceptions) {
        if exceptions.has(Exceptions::QUEUE_NEW) {
            self.later.insert(id, QueueGeneration::next());
        }
    }

    /// Treats a queue as a new one from now on.
    pub(super) fn rename(&mut self, name: QueueKey) {
        if self.key_of(name.id) == name {
            self.later.insert(name.id, QueueGeneration::next());
        }
    }

    /// The queue that has this id now.
    pub(super) fn key_of(&self, id: u32) -> QueueKey {
        let generation = self.later.get(&id).copied().unwrap_or(self.beginning);
        QueueKey { id, generation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_id_is_another_queue() {
        let entry =
            |queue_id, exceptions| QueueEntry { queue_id, exceptions, ..Default::default() };
        let mut generations = QueueGenerations::new();
        generations.note(&[entry(1, Exceptions::NONE)]);
        let first = generations.key_of(1);
        generations.note(&[entry(1, Exceptions::NONE), entry(2, Exceptions::QUEUE_NEW)]);
        assert_eq!(generations.key_of(1), first);
        generations.note(&[entry(1, Exceptions::QUEUE_NEW | Exceptions::QUEUE_DELETE)]);
        assert_ne!(generations.key_of(1), first);
        assert_ne!(QueueGenerations::new().key_of(1), first, "another session");
    }
}
