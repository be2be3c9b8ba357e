//! What is around the driver: devices, and who traces whom.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Instant;
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_kfd::abi::trap::DeviceEntry;
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

/// What the driver sees of the rest of the world.
pub struct World<'a> {
    /// The devices.
    pub devices: &'a mut dyn Devices,
    /// The thread that traces a process.
    pub tracer_of: &'a dyn Fn(u32) -> Option<u32>,
    /// What time it is.
    pub now: Instant,
}

/// Devices that a driver controls. Calls may take their time: whoever has the driver tells it when
/// one is through.
pub trait Devices {
    /// A process makes a queue, which is not on its device yet.
    ///
    /// # Errors
    /// `EINVAL` if there is no such device or what should be the ring is none.
    fn open_queue(
        &mut self,
        pid: u32,
        block: &CreateQueue,
        ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno>;

    /// A queue is gone.
    fn close_queue(&mut self, queue: QueueId);

    /// Takes all queues of a device off and lets those in the list on. True if that is done.
    fn remap(&mut self, call: CallId, gpu_id: u32, runlist: BTreeSet<QueueId>) -> bool;

    /// Takes one queue off, or lets it on. True if that is done.
    fn move_queue(&mut self, call: CallId, queue: QueueId, on: bool) -> bool;

    /// What the ring of a queue shows, if it can be read.
    fn ring(&self, _queue: QueueId) -> Option<RingView> {
        None
    }

    /// What a debugger is told of a device.
    fn describe(&self, gpu_id: u32) -> DeviceEntry {
        DeviceEntry { gpu_id, xccs: 1, ..DeviceEntry::default() }
    }
}

/// Devices that do at once what they are told: queues are on or off, and nothing else.
#[derive(Debug, Default)]
pub struct Obedient {
    last: u64,
}

impl Devices for Obedient {
    fn open_queue(
        &mut self,
        _pid: u32,
        _block: &CreateQueue,
        _ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno> {
        self.last += 1;
        Ok(QueueId(self.last))
    }

    fn close_queue(&mut self, _queue: QueueId) {}

    fn remap(&mut self, _call: CallId, _gpu_id: u32, _runlist: BTreeSet<QueueId>) -> bool {
        true
    }

    fn move_queue(&mut self, _call: CallId, _queue: QueueId, _on: bool) -> bool {
        true
    }
}

impl fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}
