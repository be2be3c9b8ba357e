//! The calls of a process about itself, and the pause of a whole process.

use std::collections::BTreeSet;

use gpreempt_kfd::abi::block::{
    CreateQueue, Criu, CriuOperation, DestroyQueue, PRIORITY_MAX, RuntimeEnable, UpdateQueue,
};
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::trap::RuntimeState;
use gpreempt_kfd::abi::version::Version;
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

use super::process::Queue;
use super::{CallProgress, Caller, Driver, IoctlRequest, WaitReason};
use crate::kfd::driver_env::DriverEnv;

/// The kernel's limit per process.
const QUEUES_MAX: usize = 1024;

impl Driver {
    pub(super) fn create_queue(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let mut block: CreateQueue = request.block();
        check_share(block.percentage, block.priority)?;
        if block.ring_size != 0 && !block.ring_size.is_power_of_two() {
            return Err(Errno::INVAL);
        }
        let process = self.process(caller.pid)?;
        if process.queues.len() >= QUEUES_MAX {
            return Err(Errno::NOMEM);
        }
        let device_id = env.devices.open_queue(caller.pid, &block, request.file.take())?;
        self.last_serial += 1;
        let serial = self.last_serial;
        let process = self.process(caller.pid)?;
        block.queue_id = process.free_name();
        process.queues.insert(block.queue_id, Queue::new(device_id, serial, &block));
        process.announce(Exceptions::QUEUE_NEW);
        request.set_block(&block);
        Ok(CallProgress::Wait(WaitReason::Devices(self.apply(env, caller.pid, &[block.queue_id]))))
    }

    pub(super) fn destroy_queue(
        &mut self,
        caller: Caller,
        request: &IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let name = request.block::<DestroyQueue>().queue_id;
        let queue = self.process(caller.pid)?.queues.get_mut(&name).ok_or(Errno::INVAL)?;
        queue.is_leaving = true;
        // Completes at once if the queue is not suspended.
        Ok(CallProgress::Wait(WaitReason::Suspended(name)))
    }

    /// Removes a queue. Returns the device calls that have not completed.
    pub(super) fn remove_queue(
        &mut self,
        env: &mut DriverEnv<'_>,
        pid: u32,
        name: u32,
    ) -> BTreeSet<CallId> {
        let Some(process) = self.processes.get_mut(&pid) else { return BTreeSet::new() };
        // Another thread may have destroyed it meanwhile.
        let Some(queue) = process.queues.remove(&name) else { return BTreeSet::new() };
        let gpu_id = queue.entry.gpu_id;
        if process.is_debugged() {
            let exceptions = process.device_exceptions.entry(gpu_id).or_default();
            *exceptions = *exceptions | Exceptions::QUEUE_DELETE;
            process.announce(Exceptions::QUEUE_DELETE);
        }
        env.devices.close_queue(queue.device_id);
        self.remap(env, &BTreeSet::from([gpu_id]))
    }

    pub(super) fn update_queue(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let block: UpdateQueue = request.block();
        check_share(block.percentage, block.priority)?;
        let queues = &mut self.process(caller.pid)?.queues;
        let queue = queues.get_mut(&block.queue_id).ok_or(Errno::FAULT)?;
        (queue.percentage, queue.priority) = (block.percentage & 0xff, block.priority);
        if block.ring_base != 0 {
            (queue.entry.ring_base, queue.entry.ring_size) = (block.ring_base, block.ring_size);
        }
        Ok(CallProgress::Wait(WaitReason::Devices(self.apply(env, caller.pid, &[block.queue_id]))))
    }

    pub(super) fn runtime_enable(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        if self.profile.version < Version::DEBUG {
            return Err(Errno::NOTTY);
        }
        let block: RuntimeEnable = request.block();
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
            return Ok(CallProgress::Done);
        }
        if was_enabled {
            process.resume_all();
        }
        process.exceptions = process.exceptions | Exceptions::RUNTIME;
        process.announce(Exceptions::RUNTIME);
        if was_enabled {
            self.apply_all(env, caller.pid);
        }
        Ok(CallProgress::Wait(WaitReason::Debugger))
    }

    /// Pauses or unpauses a process. As in the kernel, pauses are counted and ends are not.
    pub(super) fn criu(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        if self.profile.version < Version::PAUSE {
            return Err(Errno::NOTTY);
        }
        let mut block: Criu = request.block();
        let pid = request.through.unwrap_or(caller.pid);
        self.process(pid)?;
        if pid != caller.pid && (env.tracer_of)(pid) != Some(caller.thread) {
            return Err(Errno::BADF);
        }
        if !caller.may_checkpoint {
            return Err(Errno::PERM);
        }
        let operation = CriuOperation::of(block.operation).ok_or(Errno::INVAL)?;
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
        request.set_block(&block);
        Ok(CallProgress::Wait(WaitReason::Devices(self.apply_all(env, pid))))
    }
}

fn check_share(percentage: u32, priority: u32) -> Result<(), Errno> {
    if percentage & 0xff > 100 || priority > PRIORITY_MAX {
        return Err(Errno::INVAL);
    }
    Ok(())
}
