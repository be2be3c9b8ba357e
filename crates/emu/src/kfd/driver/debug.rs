//! What a debugger asks.

use gpreempt_kfd::abi::exception::{Exceptions, RUNTIME_CODE};
use gpreempt_kfd::abi::trap::{
    DebugEvent, Enable, ExceptionInfo, Operation, QUEUE_ERROR, QUEUE_INVALID, ResumeQueues,
    RuntimeInfo, RuntimeState, Snapshot, SuspendQueues, Trap,
};
use gpreempt_kfd::abi::version::Version;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::process::Debugged;
use super::{Asked, Caller, Driver, Next, Why};
use crate::kfd::world::World;

/// Bytes of a [`RuntimeInfo`].
const INFO_BYTES: u32 = 16;
const _: () = assert!(size_of::<RuntimeInfo>() == INFO_BYTES as usize);

/// What an operation needs before it is looked into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The right to talk about the process.
    Right,
    /// And a session.
    Session,
    /// And a runtime that can be controlled.
    Runtime,
}

impl Driver {
    pub(super) fn trap(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let mut trap: Trap = asked.block();
        let pid = trap.pid;
        let operation = operation(trap.operation);
        let need = match operation {
            Some(Operation::Enable) => Need::Right,
            Some(Operation::SuspendQueues | Operation::ResumeQueues) => Need::Runtime,
            Some(_) | None => Need::Session,
        };
        self.check(world, caller, pid, operation, need)?;
        let next = match operation.ok_or(Errno::INVAL)? {
            Operation::Enable => self.enable(world, caller, &mut trap, asked)?,
            Operation::Disable => {
                self.end_session(world, pid);
                Next::Done
            }
            Operation::SendRuntimeEvent => {
                self.process(pid)?.answers += 1;
                Next::Done
            }
            Operation::SuspendQueues => self.suspend(world, &trap, asked)?,
            Operation::ResumeQueues => self.resume(world, &trap, asked)?,
            Operation::QueryDebugEvent => {
                let event = self.next_event(pid, trap.block::<DebugEvent>().exceptions)?;
                trap = Trap::new(pid, Operation::QueryDebugEvent, &event);
                Next::Done
            }
            Operation::QueryExceptionInfo => {
                self.exception_info(pid, &mut trap, asked)?;
                Next::Done
            }
            Operation::QueueSnapshot => {
                self.queue_snapshot(pid, &mut trap, asked)?;
                Next::Done
            }
            Operation::DeviceSnapshot => {
                self.device_snapshot(world, pid, &mut trap, asked)?;
                Next::Done
            }
        };
        asked.set_block(&trap);
        Ok(next)
    }

    /// Whether the process is there and may be asked for that, in the kernel's order.
    fn check(
        &mut self,
        world: &World<'_>,
        caller: Caller,
        pid: u32,
        operation: Option<Operation>,
        need: Need,
    ) -> Result<(), Errno> {
        let rules = self.rules;
        if rules.version < Version::DEBUG {
            return Err(Errno::NOTTY);
        }
        let process = self.process(pid)?;
        let is_owner = rules.owner_may && process.debugger == Some(caller.pid);
        // Older kernels let anybody end a session.
        let is_open = !rules.owner_may && operation == Some(Operation::Disable);
        let may = pid == caller.pid
            || is_owner
            || is_open
            || (world.tracer_of)(pid) == Some(caller.thread);
        if !may {
            return Err(Errno::PERM);
        }
        if need != Need::Right && !process.is_debugged() {
            return Err(Errno::INVAL);
        }
        if need == Need::Runtime && process.info.runtime() != RuntimeState::Enabled {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    fn enable(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        trap: &mut Trap,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let pid = trap.pid;
        let (rules, is_taken) = (self.rules, self.is_taken(pid));
        let process = self.process(pid)?;
        // Before anything can go wrong, as the kernel does.
        process.debugger = Some(caller.pid);
        if process.is_debugged() {
            return Err(Errno::ALREADY);
        }
        if !rules.devices_know_debuggers {
            return Err(Errno::NODEV);
        }
        let mut block: Enable = trap.block();
        let events = asked.file.take().ok_or(Errno::BADF)?;
        let mut info = process.info;
        if info.runtime() == RuntimeState::Enabled && is_taken {
            info.state = 2;
        }
        put(asked, info.as_bytes(), block.info_size)?;
        process.info = info;
        process.session = Some(Debugged { wanted: block.exceptions, events });
        block.info_size = INFO_BYTES;
        *trap = Trap::new(pid, Operation::Enable, &block);
        // It refreshes the list.
        Ok(Next::Wait(Why::Devices(self.apply_all(world, pid))))
    }

    /// Ends a session, if there is one: everything it did is undone.
    pub(super) fn end_session(&mut self, world: &mut World<'_>, pid: u32) {
        let Ok(process) = self.process(pid) else { return };
        let was_debugged = process.is_debugged();
        process.end_session();
        if was_debugged {
            self.apply_all(world, pid);
        }
    }

    fn suspend(
        &mut self,
        world: &mut World<'_>,
        trap: &Trap,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let block: SuspendQueues = trap.block();
        let mut names = asked.names(block.count)?;
        let process = self.process(trap.pid)?;
        let mut touched = Vec::new();
        for name in &mut names {
            match process.queues.get_mut(name) {
                Some(queue) if !queue.is_off_limits() => {
                    touched.push(*name);
                    queue.is_suspended = !queue.is_broken;
                    queue.entry.exceptions = queue.entry.exceptions.without(block.exceptions);
                    *name |= if queue.is_broken { QUEUE_ERROR } else { 0 };
                }
                Some(_) | None => *name |= QUEUE_INVALID,
            }
        }
        asked.set_names(&names);
        Ok(Next::Wait(Why::Devices(self.apply(world, trap.pid, &touched))))
    }

    fn resume(
        &mut self,
        world: &mut World<'_>,
        trap: &Trap,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let block: ResumeQueues = trap.block();
        let mut names = asked.names(block.count)?;
        let process = self.process(trap.pid)?;
        let mut touched = Vec::new();
        for name in &mut names {
            match process.queues.get_mut(name) {
                Some(queue) => {
                    touched.push(*name);
                    queue.is_suspended = false;
                }
                None => *name |= QUEUE_INVALID,
            }
        }
        asked.set_names(&names);
        Ok(Next::Wait(Why::Devices(self.apply(world, trap.pid, &touched))))
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
        asked: &mut Asked,
    ) -> Result<(), Errno> {
        let mut block: ExceptionInfo = trap.block();
        let process = self.process(pid)?;
        // Of all exceptions only that of the runtime happens here.
        if block.code != RUNTIME_CODE || !process.exceptions.has(Exceptions::RUNTIME) {
            return Err(Errno::NODATA);
        }
        put(asked, process.info.as_bytes(), block.info_size)?;
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
        asked: &mut Asked,
    ) -> Result<(), Errno> {
        let block: Snapshot = trap.block();
        let process = self.process(pid)?;
        let entries: Vec<_> = process.queues.values().map(|queue| queue.entry).collect();
        let block = fill(asked, block, &entries)?;
        let shown = trap.block::<Snapshot>().count;
        for queue in process.queues.values_mut().take(usize::try_from(shown).unwrap_or(0)) {
            queue.entry.exceptions = queue.entry.exceptions.without(block.exceptions);
        }
        *trap = Trap::new(pid, Operation::QueueSnapshot, &block);
        Ok(())
    }

    fn device_snapshot(
        &mut self,
        world: &World<'_>,
        pid: u32,
        trap: &mut Trap,
        asked: &mut Asked,
    ) -> Result<(), Errno> {
        let process = self.process(pid)?;
        let mut names: Vec<u32> = process.queues.values().map(|queue| queue.entry.gpu_id).collect();
        names.sort_unstable();
        names.dedup();
        let entries: Vec<_> = names.iter().map(|name| world.devices.describe(*name)).collect();
        let block = fill(asked, trap.block(), &entries)?;
        *trap = Trap::new(pid, Operation::DeviceSnapshot, &block);
        Ok(())
    }
}

/// Writes the beginning of something into the array: as much as the caller says it wants.
fn put(asked: &mut Asked, bytes: &[u8], wanted: u32) -> Result<(), Errno> {
    let length = usize::try_from(wanted).unwrap_or(usize::MAX).min(bytes.len());
    asked.array(length)?.copy_from_slice(&bytes[..length]);
    Ok(())
}

/// Writes as many entries as there is room for. Entries of another length than ours are cut off,
/// or have bytes behind them that stay as they are.
fn fill<E: IntoBytes + Immutable>(
    asked: &mut Asked,
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
    let array = asked.array(bytes)?;
    for (place, entry) in array.chunks_exact_mut(stride).zip(entries) {
        place[..length].copy_from_slice(&entry.as_bytes()[..length]);
    }
    block.count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    block.entry_size = u32::try_from(length).unwrap_or(u32::MAX);
    Ok(block)
}

/// The operation of that number, if it is one that is used here.
fn operation(number: u32) -> Option<Operation> {
    use Operation::{
        DeviceSnapshot, Disable, Enable, QueryDebugEvent, QueryExceptionInfo, QueueSnapshot,
        ResumeQueues, SendRuntimeEvent, SuspendQueues,
    };
    let known = [
        Enable,
        Disable,
        SendRuntimeEvent,
        SuspendQueues,
        ResumeQueues,
        QueryDebugEvent,
        QueryExceptionInfo,
        QueueSnapshot,
        DeviceSnapshot,
    ];
    // CAST: `Operation` has 32 bits.
    known.into_iter().find(|operation| *operation as u32 == number)
}
