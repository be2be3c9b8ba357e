//! A debugger's process, as it sees KFD.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::process::{FakeSession, Process, Tracer};
use super::{FakeKfd, State};
use crate::amd::abi::block::CriuOperation;
use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::{
    DebugEvent, DeviceEntry, QUEUE_ERROR, QUEUE_INVALID, QueueEntry, RuntimeInfo, RuntimeState,
};
use crate::amd::abi::version::Version;
use crate::amd::door::Door;

/// A debugger's process. When it is dropped, it has died, and the kernel ends its sessions.
#[derive(Debug)]
pub struct FakeDoor {
    kfd: FakeKfd,
    pid: u32,
    may_checkpoint: bool,
}

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

impl FakeDoor {
    pub(super) fn new(kfd: FakeKfd, pid: u32) -> Self {
        Self { kfd, pid, may_checkpoint: true }
    }

    /// The same without the capability to pause processes.
    #[must_use]
    pub fn without_capability(mut self) -> Self {
        self.may_checkpoint = false;
        self
    }

    /// Finds the process and makes sure that it may be asked for that, in the kernel's order.
    fn target<'a>(
        &self,
        state: &'a mut State,
        pid: u32,
        need: Need,
    ) -> Result<&'a mut Process, Errno> {
        let rules = state.rules;
        if rules.version < Version::DEBUG {
            return Err(Errno::NOTTY);
        }
        let process = state.processes.get_mut(&pid).ok_or(Errno::SRCH)?;
        let is_tracer = process.living_tracer() == Some(own_thread());
        let is_owner = rules.owner_may && process.debugger == Some(self.pid);
        if !(pid == self.pid || is_tracer || is_owner) {
            return Err(Errno::PERM);
        }
        if need != Need::Right && !process.is_debugged() {
            return Err(Errno::INVAL);
        }
        if need == Need::Runtime && process.info.runtime() != RuntimeState::Enabled {
            return Err(Errno::PERM);
        }
        Ok(process)
    }
}

fn own_thread() -> u32 {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0)
}

/// What a list answers: what fits, and how many there are.
fn cut<E>(mut entries: Vec<E>, room: u32) -> (Vec<E>, u32) {
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    entries.truncate(usize::try_from(room).unwrap_or(usize::MAX));
    (entries, count)
}

impl Door for FakeDoor {
    fn version(&self) -> Result<Version, Errno> {
        Ok(self.kfd.state().rules.version)
    }

    fn seize(&self, pid: u32) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let process = state.processes.get_mut(&pid).ok_or(Errno::SRCH)?;
        if !process.may_be_traced || process.living_tracer().is_some() {
            return Err(Errno::PERM);
        }
        process.tracer = Some(Tracer::Thread(own_thread()));
        Ok(())
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        self.kfd.state().processes.get_mut(&pid)?.living_tracer()
    }

    fn enable(
        &self,
        pid: u32,
        wanted: Exceptions,
        events: BorrowedFd<'_>,
    ) -> Result<RuntimeInfo, Errno> {
        let mut state = self.kfd.state();
        let (rules, is_taken) = (state.rules, state.is_taken(pid));
        let process = self.target(&mut state, pid, Need::Right)?;
        // Before anything can go wrong, as the kernel does.
        process.debugger = Some(self.pid);
        if process.is_debugged() {
            return Err(Errno::ALREADY);
        }
        if !rules.devices_know_debuggers {
            return Err(Errno::NODEV);
        }
        let events = rustix::io::fcntl_dupfd_cloexec(events, 0)?;
        if process.info.runtime() == RuntimeState::Enabled && is_taken {
            process.info.state = 2;
        }
        process.session = Some(FakeSession { wanted, events });
        Ok(process.info)
    }

    fn disable(&self, pid: u32) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        // Older kernels let anybody do this.
        if state.rules.owner_may {
            self.target(&mut state, pid, Need::Session)?;
        }
        let process = state.processes.get_mut(&pid).ok_or(Errno::SRCH)?;
        if !process.is_debugged() {
            return Err(Errno::INVAL);
        }
        process.end_session();
        self.kfd.wake_all();
        Ok(())
    }

    fn suspend_queues(&self, pid: u32, queues: &mut [u32], _grace: u32) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let by_queue = state.rules.by_queue;
        let process = self.target(&mut state, pid, Need::Runtime)?;
        let mut devices = Vec::new();
        for name in queues {
            match process.queues.get_mut(name) {
                Some(queue) if !queue.is_off_limits() => {
                    devices.push(queue.entry.gpu_id);
                    queue.is_suspended = !queue.is_broken;
                    *name |= if queue.is_broken { QUEUE_ERROR } else { 0 };
                }
                Some(_) | None => *name |= QUEUE_INVALID,
            }
        }
        state.remaps += remaps(devices, by_queue);
        Ok(())
    }

    fn resume_queues(&self, pid: u32, queues: &mut [u32]) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        let by_queue = state.rules.by_queue;
        let process = self.target(&mut state, pid, Need::Runtime)?;
        let mut devices = Vec::new();
        for name in queues {
            match process.queues.get_mut(name) {
                Some(queue) => {
                    devices.push(queue.entry.gpu_id);
                    queue.is_suspended = false;
                }
                None => *name |= QUEUE_INVALID,
            }
        }
        state.remaps += remaps(devices, by_queue);
        self.kfd.wake_all();
        Ok(())
    }

    fn queues(
        &self,
        pid: u32,
        noted: Exceptions,
        room: u32,
    ) -> Result<(Vec<QueueEntry>, u32), Errno> {
        let mut state = self.kfd.state();
        let process = self.target(&mut state, pid, Need::Session)?;
        let shown = usize::try_from(room).unwrap_or(usize::MAX);
        let answer = cut(process.queues.values().map(|queue| queue.entry).collect(), room);
        for queue in process.queues.values_mut().take(shown) {
            queue.entry.exceptions = queue.entry.exceptions.without(noted);
        }
        Ok(answer)
    }

    fn devices(&self, pid: u32, room: u32) -> Result<(Vec<DeviceEntry>, u32), Errno> {
        let mut state = self.kfd.state();
        let process = self.target(&mut state, pid, Need::Session)?;
        let mut names: Vec<u32> = process.queues.values().map(|queue| queue.entry.gpu_id).collect();
        names.sort_unstable();
        names.dedup();
        let entry = |gpu_id| DeviceEntry { gpu_id, xccs: 1, ..DeviceEntry::default() };
        Ok(cut(names.into_iter().map(entry).collect(), room))
    }

    fn next_event(&self, pid: u32, noted: Exceptions) -> Result<DebugEvent, Errno> {
        let mut state = self.kfd.state();
        let process = self.target(&mut state, pid, Need::Session)?;
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

    fn runtime_info(&self, pid: u32) -> Result<RuntimeInfo, Errno> {
        let mut state = self.kfd.state();
        let process = self.target(&mut state, pid, Need::Session)?;
        if !process.exceptions.has(Exceptions::RUNTIME) {
            return Err(Errno::NODATA);
        }
        process.exceptions = process.exceptions.without(Exceptions::RUNTIME);
        Ok(process.info)
    }

    fn send_runtime_event(&self, pid: u32) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        self.target(&mut state, pid, Need::Session)?.answers += 1;
        self.kfd.wake_all();
        Ok(())
    }

    fn criu(&self, pid: u32, operation: CriuOperation) -> Result<(), Errno> {
        let mut state = self.kfd.state();
        if state.rules.version < Version::PAUSE {
            return Err(Errno::NOTTY);
        }
        let process = state.processes.get_mut(&pid).ok_or(Errno::SRCH)?;
        if pid != self.pid && process.living_tracer() != Some(own_thread()) {
            return Err(Errno::BADF);
        }
        if !self.may_checkpoint {
            return Err(Errno::PERM);
        }
        match operation {
            CriuOperation::ProcessInfo if process.queues.is_empty() => Err(Errno::NODEV),
            CriuOperation::ProcessInfo => {
                process.evictions += 1;
                process.is_paused = true;
                Ok(())
            }
            CriuOperation::Unpause if !process.is_paused => Err(Errno::INVAL),
            CriuOperation::Unpause => {
                process.evictions -= 1;
                process.is_paused = false;
                Ok(())
            }
        }
    }
}

/// How many devices have all their queues taken off and put on again for that.
fn remaps(mut devices: Vec<u32>, by_queue: bool) -> u64 {
    devices.sort_unstable();
    devices.dedup();
    if by_queue { 0 } else { u64::try_from(devices.len()).unwrap_or(u64::MAX) }
}

impl Drop for FakeDoor {
    fn drop(&mut self) {
        self.kfd.kill_debugger(self.pid);
    }
}
