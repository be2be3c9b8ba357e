//! A debugger's process, as it sees KFD.

use gpreempt_kfd::abi::trap::DBG_TRAP;
use gpreempt_kfd::{Call, DebuggerIoctl, Ioctl};
use rustix::io::Errno;

use super::{Caller, FakeKfd, Tracer, own_thread};

/// A debugger's process. When it is dropped, it has died, and the kernel ends its sessions.
#[derive(Debug)]
pub struct FakeDoor {
    kfd: FakeKfd,
    pid: u32,
    may_checkpoint: bool,
}

impl FakeDoor {
    pub(super) fn new(kfd: FakeKfd, pid: u32) -> Self {
        Self { kfd, pid, may_checkpoint: true }
    }

    /// The same without the capabilities to pause processes and to preempt their queues.
    #[must_use]
    pub fn without_capability(mut self) -> Self {
        self.may_checkpoint = false;
        self
    }

    fn caller(&self) -> Caller {
        let (may_checkpoint, is_admin) = (self.may_checkpoint, self.may_checkpoint);
        Caller { pid: self.pid, thread: own_thread(), may_checkpoint, is_admin }
    }
}

/// The process that a debugger asks about.
fn subject(call: &Call<'_>) -> Option<u32> {
    let pid = call.block.first_chunk().copied().map(u32::from_ne_bytes);
    pid.filter(|_| call.opcode == DBG_TRAP)
}

impl Ioctl for FakeDoor {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        if let Some(pid) = subject(&call) {
            self.kfd.wait_to_speak(pid);
        }
        self.kfd.call(self.caller(), None, call)
    }
}

impl DebuggerIoctl for FakeDoor {
    fn seize(&self, pid: u32) -> Result<(), Errno> {
        self.kfd.wait_to_speak(pid);
        let mut state = self.kfd.state();
        if !state.driver.knows(pid) {
            return Err(Errno::SRCH);
        }
        if state.untraceable.contains(&pid) || state.tracer_of(pid).is_some() {
            return Err(Errno::PERM);
        }
        state.tracers.insert(pid, Tracer::Thread(own_thread()));
        Ok(())
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        self.kfd.state().tracer_of(pid)
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        self.kfd.call(self.caller(), Some(pid), call)
    }
}

impl Drop for FakeDoor {
    fn drop(&mut self) {
        self.kfd.kill_debugger(self.pid);
    }
}
