//! The calls of a debugger (`AMDKFD_IOC_DBG_TRAP`).

use gpreempt_kfd::abi::exception::{Exceptions, RUNTIME_CODE};
use gpreempt_kfd::abi::trap::{
    DebugEvent, Enable, ExceptionInfo, Operation, QUEUE_ERROR, QUEUE_INVALID, ResumeQueues,
    RuntimeInfo, RuntimeState, Snapshot, SuspendQueues, Trap,
};
use gpreempt_kfd::abi::version::Version;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::process::{DebugSession, Queue};
use super::{CallProgress, Caller, Driver, IoctlRequest, WaitReason};
use crate::kfd::driver_env::DriverEnv;

const INFO_BYTES: u32 = 16;
const _: () = assert!(size_of::<RuntimeInfo>() == INFO_BYTES as usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Requirement {
    /// The caller may debug the process.
    Right,
    /// The process also has a session.
    Session,
    /// It also has a registered runtime.
    Runtime,
}

impl Driver {
    pub(super) fn trap(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let mut trap: Trap = request.block();
        let pid = trap.pid;
        let operation = Operation::of(trap.operation);
        let required = match operation {
            Some(Operation::Enable) => Requirement::Right,
            Some(Operation::SuspendQueues | Operation::ResumeQueues) => Requirement::Runtime,
            Some(_) | None => Requirement::Session,
        };
        self.check(env, caller, pid, operation, required)?;
        let next = match operation.ok_or(Errno::INVAL)? {
            Operation::Enable => self.enable(env, caller, &mut trap, request)?,
            Operation::Disable => {
                self.end_session(env, pid);
                CallProgress::Done
            }
            Operation::SendRuntimeEvent => {
                self.process(pid)?.answers += 1;
                CallProgress::Done
            }
            Operation::SuspendQueues => {
                let SuspendQueues { exceptions, count, .. } = trap.block();
                self.change_queues(env, pid, request, count, |queue| {
                    if queue.is_off_limits() {
                        return None;
                    }
                    queue.is_suspended = !queue.is_broken;
                    queue.entry.exceptions = queue.entry.exceptions.without(exceptions);
                    Some(if queue.is_broken { QUEUE_ERROR } else { 0 })
                })?
            }
            Operation::ResumeQueues => {
                let count = trap.block::<ResumeQueues>().count;
                self.change_queues(env, pid, request, count, |queue| {
                    queue.is_suspended = false;
                    Some(0)
                })?
            }
            Operation::QueryDebugEvent => {
                let event = self.next_event(pid, trap.block::<DebugEvent>().exceptions)?;
                trap = Trap::new(pid, Operation::QueryDebugEvent, &event);
                CallProgress::Done
            }
            Operation::QueryExceptionInfo => {
                self.exception_info(pid, &mut trap, request)?;
                CallProgress::Done
            }
            Operation::QueueSnapshot => {
                self.queue_snapshot(pid, &mut trap, request)?;
                CallProgress::Done
            }
            Operation::DeviceSnapshot => {
                self.device_snapshot(env, pid, &mut trap, request)?;
                CallProgress::Done
            }
        };
        request.set_block(&trap);
        Ok(next)
    }

    /// Checks the precondition, in the kernel's order.
    fn check(
        &mut self,
        env: &DriverEnv<'_>,
        caller: Caller,
        pid: u32,
        operation: Option<Operation>,
        required: Requirement,
    ) -> Result<(), Errno> {
        let profile = self.profile;
        if profile.version < Version::DEBUG {
            return Err(Errno::NOTTY);
        }
        let process = self.process(pid)?;
        let is_owner = profile.owner_may && process.debugger == Some(caller.pid);
        // Older kernels accept the end of a session from any process.
        let is_open = !profile.owner_may && operation == Some(Operation::Disable);
        let may =
            pid == caller.pid || is_owner || is_open || (env.tracer_of)(pid) == Some(caller.thread);
        if !may {
            return Err(Errno::PERM);
        }
        if required != Requirement::Right && !process.is_debugged() {
            return Err(Errno::INVAL);
        }
        if required == Requirement::Runtime && process.info.runtime() != RuntimeState::Enabled {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    fn enable(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        trap: &mut Trap,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let pid = trap.pid;
        let (profile, is_taken) = (self.profile, self.is_taken(pid));
        let process = self.process(pid)?;
        // Set before any check can fail, as in the kernel.
        process.debugger = Some(caller.pid);
        if process.is_debugged() {
            return Err(Errno::ALREADY);
        }
        if !profile.devices_know_debuggers {
            return Err(Errno::NODEV);
        }
        let mut block: Enable = trap.block();
        let events = request.file.take().ok_or(Errno::BADF)?;
        let mut info = process.info;
        if info.runtime() == RuntimeState::Enabled && is_taken {
            info.state = 2;
        }
        put(request, info.as_bytes(), block.info_size)?;
        process.info = info;
        process.session = Some(DebugSession { wanted: block.exceptions, events });
        block.info_size = INFO_BYTES;
        *trap = Trap::new(pid, Operation::Enable, &block);
        // KFD updates the run list.
        Ok(CallProgress::Wait(WaitReason::Devices(self.apply_all(env, pid))))
    }

    /// Ends a session, if there is one, and reverts what it did.
    pub(super) fn end_session(&mut self, env: &mut DriverEnv<'_>, pid: u32) {
        let Ok(process) = self.process(pid) else { return };
        let was_debugged = process.is_debugged();
        process.end_session();
        if was_debugged {
            self.apply_all(env, pid);
        }
    }

    /// Changes the queues whose ids are in the array. `change` returns the result bits of a queue,
    /// or None if the queue cannot be changed.
    fn change_queues(
        &mut self,
        env: &mut DriverEnv<'_>,
        pid: u32,
        request: &mut IoctlRequest,
        count: u32,
        change: impl Fn(&mut Queue) -> Option<u32>,
    ) -> Result<CallProgress, Errno> {
        let mut names = request.names(count)?;
        let process = self.process(pid)?;
        let mut touched = Vec::new();
        for name in &mut names {
            match process.queues.get_mut(name).and_then(&change) {
                Some(bits) => {
                    touched.push(*name);
                    *name |= bits;
                }
                None => *name |= QUEUE_INVALID,
            }
        }
        request.set_names(&names);
        Ok(CallProgress::Wait(WaitReason::Devices(self.apply(env, pid, &touched))))
    }

    fn next_event(&mut self, pid: u32, noted: Exceptions) -> Result<DebugEvent, Errno> {
        let process = self.process(pid)?;
        let wanted = process.session.as_ref().map_or(Exceptions::NONE, |session| session.wanted);
        let happened = |exceptions: &mut Exceptions, gpu_id: u32, queue_id: u32| {
            let event = DebugEvent { exceptions: *exceptions, gpu_id, queue_id };
            *exceptions = exceptions.without(noted);
            Ok(event)
        };
        for queue in process.queues.values_mut() {
            if queue.entry.exceptions.has(wanted) {
                let (gpu_id, queue_id) = (queue.entry.gpu_id, queue.entry.queue_id);
                return happened(&mut queue.entry.exceptions, gpu_id, queue_id);
            }
        }
        for (gpu_id, exceptions) in &mut process.device_exceptions {
            if exceptions.has(wanted) {
                return happened(exceptions, *gpu_id, 0);
            }
        }
        if process.exceptions.has(wanted) {
            return happened(&mut process.exceptions, 0, 0);
        }
        Err(Errno::AGAIN)
    }

    fn exception_info(
        &mut self,
        pid: u32,
        trap: &mut Trap,
        request: &mut IoctlRequest,
    ) -> Result<(), Errno> {
        let mut block: ExceptionInfo = trap.block();
        let process = self.process(pid)?;
        // The runtime's exception is the only one that occurs here.
        if block.code != RUNTIME_CODE || !process.exceptions.has(Exceptions::RUNTIME) {
            return Err(Errno::NODATA);
        }
        put(request, process.info.as_bytes(), block.info_size)?;
        if block.clear != 0 {
            process.exceptions = process.exceptions.without(Exceptions::RUNTIME);
        }
        block.info_size = INFO_BYTES;
        *trap = Trap::new(pid, Operation::QueryExceptionInfo, &block);
        Ok(())
    }

    fn queue_snapshot(
        &mut self,
        pid: u32,
        trap: &mut Trap,
        request: &mut IoctlRequest,
    ) -> Result<(), Errno> {
        let block: Snapshot = trap.block();
        let process = self.process(pid)?;
        let entries: Vec<_> = process.queues.values().map(|queue| queue.entry).collect();
        let block = fill(request, block, &entries)?;
        let shown = trap.block::<Snapshot>().count;
        for queue in process.queues.values_mut().take(usize::try_from(shown).unwrap_or(0)) {
            queue.entry.exceptions = queue.entry.exceptions.without(block.exceptions);
        }
        *trap = Trap::new(pid, Operation::QueueSnapshot, &block);
        Ok(())
    }

    fn device_snapshot(
        &mut self,
        env: &DriverEnv<'_>,
        pid: u32,
        trap: &mut Trap,
        request: &mut IoctlRequest,
    ) -> Result<(), Errno> {
        let process = self.process(pid)?;
        let mut names: Vec<u32> = process.queues.values().map(|queue| queue.entry.gpu_id).collect();
        names.sort_unstable();
        names.dedup();
        let entries: Vec<_> = names.iter().map(|name| env.devices.describe(*name)).collect();
        let block = fill(request, trap.block(), &entries)?;
        *trap = Trap::new(pid, Operation::DeviceSnapshot, &block);
        Ok(())
    }
}

/// Writes at most `wanted` bytes into the array.
fn put(request: &mut IoctlRequest, bytes: &[u8], wanted: u32) -> Result<(), Errno> {
    let length = usize::try_from(wanted).unwrap_or(usize::MAX).min(bytes.len());
    request.array(length)?.copy_from_slice(&bytes[..length]);
    Ok(())
}

/// Writes as many entries as fit. With an entry size other than the kernel's, entries are truncated
/// or followed by bytes that stay unchanged.
fn fill<E: IntoBytes + Immutable>(
    request: &mut IoctlRequest,
    mut block: Snapshot,
    entries: &[E],
) -> Result<Snapshot, Errno> {
    let stride = usize::try_from(block.entry_size).map_err(|_| Errno::INVAL)?;
    let room = usize::try_from(block.count).map_err(|_| Errno::INVAL)?;
    if stride == 0 {
        return Err(Errno::INVAL);
    }
    let length = stride.min(size_of::<E>());
    let shown = room.min(entries.len());
    let bytes = shown.checked_mul(stride).ok_or(Errno::INVAL)?;
    let array = request.array(bytes)?;
    for (place, entry) in array.chunks_exact_mut(stride).zip(entries) {
        place[..length].copy_from_slice(&entry.as_bytes()[..length]);
    }
    block.count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    block.entry_size = u32::try_from(length).unwrap_or(u32::MAX);
    Ok(block)
}
