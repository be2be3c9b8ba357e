//! A queue that does nothing but run or not.

use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::QueueEntry;

/// One queue of a process.
#[derive(Debug)]
pub(super) struct Queue {
    /// What a snapshot shows of it.
    pub(super) entry: QueueEntry,
    /// 0 if its process took it off.
    pub(super) percentage: u32,
    /// A debugger took it off.
    pub(super) is_suspended: bool,
    /// Its process waits to destroy it.
    pub(super) is_leaving: bool,
    /// The hardware does not obey.
    pub(super) is_broken: bool,
}

impl Queue {
    pub(super) fn new(mut entry: QueueEntry, percentage: u32) -> Self {
        // The kernel marks every queue, whether there is a debugger or not.
        entry.exceptions = Exceptions::QUEUE_NEW;
        Self { entry, percentage, is_suspended: false, is_leaving: false, is_broken: false }
    }

    /// Whether a debugger cannot have it now.
    pub(super) fn is_off_limits(&self) -> bool {
        self.is_leaving || self.entry.exceptions.has(Exceptions::QUEUE_NEW)
    }
}
