//! A process that uses the device, as it sees KFD.

use rustix::io::Errno;

use super::process::Process;
use super::queue::Queue;
use super::{FakeKfd, State};
use crate::amd::abi::block::{CreateQueue, UpdateQueue};
use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::{QueueEntry, RuntimeState};
use crate::amd::door::ClientDoor;

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
        (block.gpu_id, block.queue_type, block.percentage) = (gpu_id, 2, 100);
        self.create_queue(&mut block)?;
        Ok(block.queue_id)
    }
}

impl ClientDoor for FakeClient {
    fn runtime_enable(&self, begins: bool) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let is_taken = state.is_taken(self.pid);
        let process = process(&mut state, self.pid)?;
        let was_enabled = process.info.runtime() == RuntimeState::Enabled;
        if begins && process.info.runtime() != RuntimeState::Disabled {
            return Err(Errno::BUSY);
        }
        let is_debugged = process.is_debugged();
        process.info.state = match (begins, is_debugged && is_taken) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        if !is_debugged {
            return Ok(());
        }
        if was_enabled {
            process.resume_all();
        }
        process.exceptions = process.exceptions | Exceptions::RUNTIME;
        process.announce(Exceptions::RUNTIME);
        let answered = self.kfd.wait(state, self.pid, |process| {
            process.answers = process.answers.checked_sub(1)?;
            Some(())
        });
        answered.ok_or(Errno::INTR)
    }

    fn create_queue(&self, block: &mut CreateQueue) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let process = process(&mut state, self.pid)?;
        let queue_id = process.next_queue;
        process.next_queue += 1;
        block.queue_id = queue_id;
        let entry = QueueEntry {
            ring_base: block.ring_base,
            write_pointer: block.write_pointer,
            read_pointer: block.read_pointer,
            save_area: block.save_area,
            queue_id,
            gpu_id: block.gpu_id,
            ring_size: block.ring_size,
            queue_type: block.queue_type,
            save_area_size: block.save_area_size,
            ..QueueEntry::default()
        };
        process.queues.insert(queue_id, Queue::new(entry, block.percentage));
        process.announce(Exceptions::QUEUE_NEW);
        Ok(())
    }

    fn destroy_queue(&self, queue: u32) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let found = process(&mut state, self.pid)?.queues.get_mut(&queue);
        found.ok_or(Errno::INVAL)?.is_leaving = true;
        let gpu_id = self.kfd.wait(state, self.pid, |process| {
            match process.queues.get(&queue) {
                Some(found) if found.is_suspended => None,
                // Somebody else destroyed it meanwhile, which is as good.
                found => Some(found.map(|found| found.entry.gpu_id)),
            }
        });
        let Some(gpu_id) = gpu_id.ok_or(Errno::INTR)? else { return Ok(()) };
        let mut state = self.kfd.state();
        let process = process(&mut state, self.pid)?;
        process.queues.remove(&queue);
        if process.is_debugged() {
            let exceptions = process.device_exceptions.entry(gpu_id).or_default();
            *exceptions = *exceptions | Exceptions::QUEUE_DELETE;
            process.announce(Exceptions::QUEUE_DELETE);
        }
        Ok(())
    }

    fn update_queue(&self, block: &UpdateQueue) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let queue = process(&mut state, self.pid)?.queues.get_mut(&block.queue_id);
        let queue = queue.ok_or(Errno::FAULT)?;
        if block.percentage & 0xff > 100 || block.priority > 15 {
            return Err(Errno::INVAL);
        }
        queue.percentage = block.percentage & 0xff;
        Ok(())
    }
}

fn process(state: &mut State, pid: u32) -> Result<&mut Process, Errno> {
    state.processes.get_mut(&pid).ok_or(Errno::SRCH)
}

impl Drop for FakeClient {
    fn drop(&mut self) {
        self.kfd.state().processes.remove(&self.pid);
        self.kfd.wake_all();
    }
}
