//! A process that uses the device, as it sees KFD.

use gpreempt_kfd::abi::block::{CreateQueue, QueueType};
use gpreempt_kfd::{Call, ClientDoor, Ioctl};
use rustix::io::Errno;

use super::{Caller, FakeKfd, own_thread};

/// A process. When it is dropped, it has died.
#[derive(Debug)]
pub struct FakeClient {
    kfd: FakeKfd,
    pid: u32,
}

impl FakeClient {
    pub(super) fn new(kfd: FakeKfd, pid: u32) -> Self {
        Self { kfd, pid }
    }

    /// Its number.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Makes a queue for kernels on a device, with its ring somewhere.
    ///
    /// # Errors
    /// If the process has died.
    pub fn open_queue(&self, gpu_id: u32) -> Result<u32, Errno> {
        let mut block: CreateQueue = zerocopy::FromZeros::new_zeroed();
        // CAST: `QueueType` has 32 bits.
        let queue_type = QueueType::ComputeAql as u32;
        (block.gpu_id, block.queue_type, block.percentage) = (gpu_id, queue_type, 100);
        self.create_queue(&mut block)?;
        Ok(block.queue_id)
    }

    /// Who calls if this process does.
    pub fn caller(&self) -> Caller {
        Caller { pid: self.pid, thread: own_thread(), may_checkpoint: false, is_admin: false }
    }
}

impl Ioctl for FakeClient {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        self.kfd.call(self.caller(), None, call)
    }
}

impl Drop for FakeClient {
    fn drop(&mut self) {
        self.kfd.act(|driver, world| driver.end_process(world, self.pid));
    }
}
