//! Which queue is meant by a number: the kernel gives the number of a queue that is gone to the
//! next one.
//!
//! The kernel marks every queue that it makes, and refuses to suspend one that is marked. Marks are
//! seen, and wiped, by looking. So whoever takes note of every mark can tell queues of one number
//! apart, and what was not marked when it was looked at is either the same queue or refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::QueueEntry;

/// When a queue was first seen. No two queues of one number have the same, in any session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// The last one that was given.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Epoch {
    /// One that nobody has.
    pub(crate) fn next() -> Self {
        // ORDERING: that no two are the same is all that matters.
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// One queue, and no other of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueName {
    /// What its process calls it.
    pub id: u32,
    /// When it was first seen.
    pub epoch: Epoch,
}

/// The queues of one process, as far as they were seen.
#[derive(Clone, Debug)]
pub(super) struct Epochs {
    /// Of those that were there before.
    beginning: Epoch,
    later: BTreeMap<u32, Epoch>,
}

impl Epochs {
    pub(super) fn new() -> Self {
        Self { beginning: Epoch::next(), later: BTreeMap::new() }
    }

    /// Takes note of marks in a list.
    pub(super) fn note(&mut self, entries: &[QueueEntry]) {
        for entry in entries {
            self.note_mark(entry.queue_id, entry.exceptions);
        }
    }

    /// Takes note of a mark, if there is one.
    pub(super) fn note_mark(&mut self, id: u32, exceptions: Exceptions) {
        if exceptions.has(Exceptions::QUEUE_NEW) {
            self.later.insert(id, Epoch::next());
        }
    }

    /// The queue that has that number now.
    pub(super) fn name(&self, id: u32) -> QueueName {
        let epoch = self.later.get(&id).copied().unwrap_or(self.beginning);
        QueueName { id, epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_given_again_is_another_queue() {
        let entry =
            |queue_id, exceptions| QueueEntry { queue_id, exceptions, ..Default::default() };
        let mut epochs = Epochs::new();
        epochs.note(&[entry(1, Exceptions::NONE)]);
        let first = epochs.name(1);
        epochs.note(&[entry(1, Exceptions::NONE), entry(2, Exceptions::QUEUE_NEW)]);
        assert_eq!(epochs.name(1), first);
        epochs.note(&[entry(1, Exceptions::QUEUE_NEW | Exceptions::QUEUE_DELETE)]);
        assert_ne!(epochs.name(1), first);
        assert_ne!(Epochs::new().name(1), first, "another session");
    }
}
