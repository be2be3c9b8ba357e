//! What a process asks for itself, and the pause of a whole process.

use std::collections::BTreeSet;

use gpreempt_kfd::abi::block::{
    CreateQueue, Criu, CriuOperation, DestroyQueue, PRIORITY_MAX, RuntimeEnable, UpdateQueue,
};
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::trap::RuntimeState;
use gpreempt_kfd::abi::version::Version;
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

use super::queue::Queue;
use super::{Asked, Caller, Driver, Next, Why, criu_operation};
use crate::kfd::world::World;

/// Most queues of a process.
const QUEUES_MAX: usize = 1024;

impl Driver {
    pub(super) fn create_queue(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let mut block: CreateQueue = asked.block();
        check_share(block.percentage, block.priority)?;
        if block.ring_size != 0 && !block.ring_size.is_power_of_two() {
            return Err(Errno::INVAL);
        }
        let process = self.process(caller.pid)?;
        if process.queues.len() >= QUEUES_MAX {
            return Err(Errno::NOMEM);
        }
        let device_id = world.devices.open_queue(caller.pid, &block, asked.file.take())?;
        self.last_serial += 1;
        let serial = self.last_serial;
        let process = self.process(caller.pid)?;
        block.queue_id = process.free_name();
        process.queues.insert(block.queue_id, Queue::new(device_id, serial, &block));
        process.announce(Exceptions::QUEUE_NEW);
        asked.set_block(&block);
        Ok(Next::Wait(Why::Devices(self.apply(world, caller.pid, &[block.queue_id]))))
    }

    pub(super) fn destroy_queue(&mut self, caller: Caller, asked: &Asked) -> Result<Next, Errno> {
        let name = asked.block::<DestroyQueue>().queue_id;
        let queue = self.process(caller.pid)?.queues.get_mut(&name).ok_or(Errno::INVAL)?;
        queue.is_leaving = true;
        // If it is not suspended it goes at once.
        Ok(Next::Wait(Why::Suspended(name)))
    }

    /// Takes a queue away. What is not through yet is returned.
    pub(super) fn remove_queue(
        &mut self,
        world: &mut World<'_>,
        pid: u32,
        name: u32,
    ) -> BTreeSet<CallId> {
        let Some(process) = self.processes.get_mut(&pid) else { return BTreeSet::new() };
        // If somebody else destroyed it meanwhile, that is as good.
        let Some(queue) = process.queues.remove(&name) else { return BTreeSet::new() };
        let gpu_id = queue.entry.gpu_id;
        if process.is_debugged() {
            let exceptions = process.device_exceptions.entry(gpu_id).or_default();
            *exceptions = *exceptions | Exceptions::QUEUE_DELETE;
            process.announce(Exceptions::QUEUE_DELETE);
        }
        world.devices.close_queue(queue.device_id);
        self.remap(world, &BTreeSet::from([gpu_id]))
    }

    pub(super) fn update_queue(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &Asked,
    ) -> Result<Next, Errno> {
        let block: UpdateQueue = asked.block();
        check_share(block.percentage, block.priority)?;
        let queues = &mut self.process(caller.pid)?.queues;
        let queue = queues.get_mut(&block.queue_id).ok_or(Errno::FAULT)?;
        (queue.percentage, queue.priority) = (block.percentage & 0xff, block.priority);
        if block.ring_base != 0 {
            (queue.entry.ring_base, queue.entry.ring_size) = (block.ring_base, block.ring_size);
        }
        Ok(Next::Wait(Why::Devices(self.apply(world, caller.pid, &[block.queue_id]))))
    }

    pub(super) fn runtime_enable(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &Asked,
    ) -> Result<Next, Errno> {
        if self.rules.version < Version::DEBUG {
            return Err(Errno::NOTTY);
        }
        let block: RuntimeEnable = asked.block();
        let begins = block.mode & 1 != 0;
        let is_taken = self.is_taken(caller.pid);
        let process = self.process(caller.pid)?;
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
        process.info.r_debug = if begins { block.r_debug } else { 0 };
        if !is_debugged {
            return Ok(Next::Done);
        }
        if was_enabled {
            process.resume_all();
        }
        process.exceptions = process.exceptions | Exceptions::RUNTIME;
        process.announce(Exceptions::RUNTIME);
        if was_enabled {
            self.apply_all(world, caller.pid);
        }
        Ok(Next::Wait(Why::Debugger))
    }

    /// Pauses a process or lets it go on. Pauses are counted, ends are not: as in the kernel.
    pub(super) fn criu(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        if self.rules.version < Version::PAUSE {
            return Err(Errno::NOTTY);
        }
        let mut block: Criu = asked.block();
        let pid = asked.through.unwrap_or(caller.pid);
        self.process(pid)?;
        if pid != caller.pid && (world.tracer_of)(pid) != Some(caller.thread) {
            return Err(Errno::BADF);
        }
        if !caller.may_checkpoint {
            return Err(Errno::PERM);
        }
        let operation = criu_operation(block.operation)?;
        let process = self.process(pid)?;
        match operation {
            CriuOperation::ProcessInfo if process.queues.is_empty() => return Err(Errno::NODEV),
            CriuOperation::ProcessInfo => {
                process.evictions += 1;
                process.is_paused = true;
                block.pid = pid;
                block.device_count = 1;
            }
            CriuOperation::Unpause if !process.is_paused => return Err(Errno::INVAL),
            CriuOperation::Unpause => {
                process.evictions -= 1;
                process.is_paused = false;
            }
        }
        asked.set_block(&block);
        Ok(Next::Wait(Why::Devices(self.apply_all(world, pid))))
    }
}

/// Whether a queue may have that much of the device, and that priority.
fn check_share(percentage: u32, priority: u32) -> Result<(), Errno> {
    if percentage & 0xff > 100 || priority > PRIORITY_MAX {
        return Err(Errno::INVAL);
    }
    Ok(())
}
