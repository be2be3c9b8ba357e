//! KFD's rules without KFD: who may do what, what it answers, who waits for whom.
//!
//! For tests, and a beginning for an emulated KFD. There are no devices behind it: a queue runs
//! when nothing keeps it from running, and that can be asked. Processes are numbers; their tracers
//! are real threads of the program under test, which are gone when they have ended, as in the
//! kernel.

mod client;
mod door;
mod process;
mod queue;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::abi::trap::RuntimeState;
use super::abi::version::Version;
pub use client::FakeClient;
pub use door::FakeDoor;
use process::Process;

/// A KFD that several processes use. A clone is the same one.
#[derive(Clone)]
pub struct FakeKfd {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What differs between kernels and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which interface it has.
    pub version: Version,
    /// Whether whoever began a session may talk to it without being the tracer (6.12.103).
    pub owner_may: bool,
    /// Whether a device has room for one debugged process only (before gfx9.4.2, and gfx10).
    pub one_debugged: bool,
    /// Whether the device knows debuggers at all (gfx9 and later).
    pub devices_know_debuggers: bool,
    /// Whether single queues are taken off (gfx11 and later), or all of the device are remapped.
    pub by_queue: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            version: Version { major: 1, minor: 17 },
            owner_may: true,
            one_debugged: false,
            devices_know_debuggers: true,
            by_queue: false,
        }
    }
}

struct State {
    rules: Rules,
    processes: BTreeMap<u32, Process>,
    /// How often the queues of a device were all taken off and put on again.
    remaps: u64,
}

impl FakeKfd {
    /// One of a new kernel with a new device.
    pub fn new() -> Self {
        Self::with(Rules::default())
    }

    /// One with those rules.
    pub fn with(rules: Rules) -> Self {
        let state = State { rules, processes: BTreeMap::new(), remaps: 0 };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// The device as a debugger's process opened it. When it is dropped, that process has died.
    pub fn door(&self, pid: u32) -> FakeDoor {
        FakeDoor::new(self.clone(), pid)
    }

    /// A process that uses the device. When it is dropped, it has died.
    pub fn client(&self, pid: u32) -> FakeClient {
        self.state().processes.insert(pid, Process::default());
        FakeClient::new(self.clone(), pid)
    }

    /// Whether a queue is on its device, if there is one of that name.
    pub fn is_running(&self, pid: u32, queue: u32) -> Option<bool> {
        self.state().processes.get(&pid)?.is_running(queue)
    }

    /// Whether a process has a debugger.
    pub fn is_debugged(&self, pid: u32) -> bool {
        self.state().processes.get(&pid).is_some_and(Process::is_debugged)
    }

    /// How many threads of a process wait in the kernel: for its debugger, or for a suspended
    /// queue.
    pub fn waiting(&self, pid: u32) -> usize {
        self.state().processes.get(&pid).map_or(0, |process| process.waiting)
    }

    /// How often the queues of a device were all taken off and put on again.
    pub fn remaps(&self) -> u64 {
        self.state().remaps
    }

    /// How a process stands with its runtime.
    pub fn runtime(&self, pid: u32) -> Option<RuntimeState> {
        self.state().processes.get(&pid).map(|process| process.info.runtime())
    }

    /// A debugger's process is killed: the kernel ends its sessions.
    pub fn kill_debugger(&self, pid: u32) {
        for process in self.state().processes.values_mut() {
            if process.debugger == Some(pid) {
                process.end_session();
            }
        }
        self.wake_all();
    }

    /// Somebody who is not part of the test traces a process from now on.
    pub fn trace_by_somebody(&self, pid: u32, tracer: u32) {
        if let Some(process) = self.state().processes.get_mut(&pid) {
            process.tracer = Some(process::Tracer::Somebody(tracer));
        }
    }

    /// A process may no longer be traced: it is another user's, or there is a policy.
    pub fn forbid_tracing(&self, pid: u32) {
        if let Some(process) = self.state().processes.get_mut(&pid) {
            process.may_be_traced = false;
        }
    }

    /// The hardware no longer does what it is told about a queue.
    pub fn break_queue(&self, pid: u32, queue: u32) {
        if let Some(process) = self.state().processes.get_mut(&pid) {
            process.break_queue(queue);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a process is ready for something, which is asked again whenever anything
    /// changed. None if the process dies meanwhile.
    fn wait<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        pid: u32,
        mut ready: impl FnMut(&mut Process) -> Option<T>,
    ) -> Option<T> {
        state.processes.get_mut(&pid)?.waiting += 1;
        loop {
            let process = state.processes.get_mut(&pid)?;
            if let Some(result) = ready(process) {
                process.waiting -= 1;
                return Some(result);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake_all(&self) {
        self.shared.changed.notify_all();
    }
}

impl State {
    /// Whether another process has the only place for a debugged one.
    fn is_taken(&self, pid: u32) -> bool {
        let is_active = |process: &Process| {
            process.is_debugged() && process.info.runtime() == RuntimeState::Enabled
        };
        self.rules.one_debugged
            && self.processes.iter().any(|(other, process)| *other != pid && is_active(process))
    }
}

impl Default for FakeKfd {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeKfd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeKfd")
    }
}
