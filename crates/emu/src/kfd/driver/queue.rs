//! A queue as the driver keeps it.

use gpreempt_core::id::QueueId;
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::trap::QueueEntry;

use super::preempt::Hold;

/// One queue of a process.
#[derive(Debug)]
pub(super) struct Queue {
    /// What the devices call it.
    pub(super) device_id: QueueId,
    /// What no other queue ever is called, unlike its name.
    pub(super) serial: u64,
    /// What a snapshot shows of it.
    pub(super) entry: QueueEntry,
    /// 0 if its process took it off.
    pub(super) percentage: u32,
    pub(super) priority: u32,
    /// A debugger took it off.
    pub(super) is_suspended: bool,
    /// Who preempted it by a call of our own.
    pub(super) hold: Option<Hold>,
    /// The scheduler keeps it off.
    pub(super) is_scheduled_off: bool,
    /// How important it is to the scheduler, if somebody said so of this one.
    pub(super) logical_priority: Option<u8>,
    /// Its process waits to destroy it.
    pub(super) is_leaving: bool,
    /// The hardware does not obey.
    pub(super) is_broken: bool,
    /// Whether the device was last told to have it on.
    pub(super) is_on: bool,
}

impl Queue {
    pub(super) fn new(device_id: QueueId, serial: u64, block: &CreateQueue) -> Self {
        let entry = QueueEntry {
            // The kernel marks every queue, whether there is a debugger or not.
            exceptions: Exceptions::QUEUE_NEW,
            ring_base: block.ring_base,
            write_pointer: block.write_pointer,
            read_pointer: block.read_pointer,
            save_area: block.save_area,
            queue_id: block.queue_id,
            gpu_id: block.gpu_id,
            ring_size: block.ring_size,
            queue_type: block.queue_type,
            save_area_size: block.save_area_size,
            ..QueueEntry::default()
        };
        Self {
            device_id,
            serial,
            entry,
            percentage: block.percentage & 0xff,
            priority: block.priority,
            is_suspended: false,
            hold: None,
            is_scheduled_off: false,
            logical_priority: None,
            is_leaving: false,
            is_broken: false,
            is_on: false,
        }
    }

    /// Whether a debugger cannot have it now.
    pub(super) fn is_off_limits(&self) -> bool {
        self.is_leaving || self.entry.exceptions.has(Exceptions::QUEUE_NEW)
    }
}
