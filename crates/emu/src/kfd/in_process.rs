//! A KFD inside one test program. Processes are pids without a process; tracers are real threads of
//! the program and end with them, as in the kernel.
//!
//! The rules are the emulator's. Its devices run nothing ([`FakeKfd::with`]), or run in virtual
//! time while a call waits for them ([`FakeKfd::over`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::block::{CreateQueue, QueueType};
use gpreempt_kfd::abi::trap::{DBG_TRAP, RuntimeState};
use gpreempt_kfd::{Call, DebuggerIoctl, Ioctl, KfdClientCalls};
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

use crate::kfd::driver::{Answer, Caller, Driver, IoctlRequest, Ticket};
use crate::kfd::driver_env::{Devices, DriverEnv, InstantDevices};
use crate::kfd::kernel_profile::KfdProfile;
use crate::kfd::parameters::Parameters;

/// A KFD that several processes use. Clones share it.
#[derive(Clone)]
pub struct FakeKfd {
    shared: Arc<Shared>,
}

pub trait LocalDevices: Devices + Send {
    /// Advances the time until a call completes, and returns the completed calls. Empty if no call
    /// can complete.
    fn advance(&mut self) -> Vec<CallId>;
}

impl LocalDevices for InstantDevices {
    fn advance(&mut self) -> Vec<CallId> {
        Vec::new()
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    driver: Driver,
    devices: Box<dyn LocalDevices>,
    tracers: BTreeMap<u32, Tracer>,
    untraceable: BTreeSet<u32>,
    /// Processes about which calls block.
    silent: BTreeSet<u32>,
    /// Processes about which a call fails, after this many that do not.
    failing: BTreeMap<u32, (u32, Errno)>,
    answers: BTreeMap<Ticket, Answer>,
    last_ticket: u64,
    now: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracer {
    /// A thread of this program.
    Thread(u32),
    /// A tracer outside the test.
    External(u32),
}

impl Tracer {
    /// Its id, while it lives.
    fn living(self) -> Option<u32> {
        match self {
            Self::External(tracer) => Some(tracer),
            Self::Thread(thread) => {
                Path::new(&format!("/proc/self/task/{thread}")).exists().then_some(thread)
            }
        }
    }
}

impl State {
    /// Calls the driver with the devices and tracers.
    fn act<T>(&mut self, what: impl FnOnce(&mut Driver, &mut DriverEnv<'_>) -> T) -> T {
        let tracers = &self.tracers;
        let tracer_of = |pid: u32| tracers.get(&pid).and_then(|tracer| tracer.living());
        let now = self.now;
        let mut env = DriverEnv { devices: &mut *self.devices, tracer_of: &tracer_of, now };
        let result = what(&mut self.driver, &mut env);
        while let Some((ticket, answer)) = self.driver.poll_answer() {
            self.answers.insert(ticket, answer);
        }
        result
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        self.tracers.get(&pid)?.living()
    }

    /// Advances the devices. Returns whether a call completed.
    fn advance(&mut self) -> bool {
        let done = self.devices.advance();
        for call in &done {
            self.act(|driver, _| driver.handle_done(*call));
        }
        !done.is_empty()
    }
}

impl FakeKfd {
    /// A KFD of a new kernel with a new device.
    pub fn new() -> Self {
        Self::with(KfdProfile::default())
    }

    pub fn with(profile: KfdProfile) -> Self {
        Self::over(profile, InstantDevices::default())
    }

    pub fn over(profile: KfdProfile, devices: impl LocalDevices + 'static) -> Self {
        let state = State {
            driver: Driver::new(profile),
            devices: Box::new(devices),
            tracers: BTreeMap::new(),
            untraceable: BTreeSet::new(),
            silent: BTreeSet::new(),
            failing: BTreeMap::new(),
            answers: BTreeMap::new(),
            last_ticket: 0,
            now: Instant::ZERO,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// KFD as a debugger opened it. Dropping it is the end of that process.
    pub fn debugger(&self, pid: u32) -> FakeDebugger {
        FakeDebugger::new(self.clone(), pid)
    }

    /// A process that uses KFD. Dropping it is the end of that process.
    pub fn client(&self, pid: u32) -> FakeClient {
        self.act(|driver, _| driver.open(pid));
        FakeClient::new(self.clone(), pid)
    }

    /// Ends a debugger: KFD ends its sessions.
    pub fn kill_debugger(&self, pid: u32) {
        self.act(|driver, env| driver.end_debugger(env, pid));
    }

    /// From now on a tracer outside the test traces a process.
    pub fn trace_externally(&self, pid: u32, tracer: u32) {
        self.state().tracers.insert(pid, Tracer::External(tracer));
    }

    pub fn end_tracing(&self, pid: u32) {
        self.state().tracers.remove(&pid);
    }

    /// From now on a process may not be traced, as if it belonged to another user.
    pub fn forbid_tracing(&self, pid: u32) {
        self.state().untraceable.insert(pid);
    }

    /// From now on calls about a process block, or no longer do.
    pub fn hang(&self, pid: u32, hangs: bool) {
        let mut state = self.state();
        if hangs {
            state.silent.insert(pid);
        } else {
            state.silent.remove(&pid);
        }
        drop(state);
        self.wake_all();
    }

    /// Lets one debugger's call about a process fail, after this many that do not.
    pub fn fail_once(&self, pid: u32, after: u32, errno: Errno) {
        self.state().failing.insert(pid, (after, errno));
    }

    /// The error if the current call is the one to fail.
    fn failure(&self, pid: u32) -> Option<Errno> {
        let mut state = self.state();
        let (after, errno) = state.failing.remove(&pid)?;
        if after == 0 {
            return Some(errno);
        }
        state.failing.insert(pid, (after - 1, errno));
        None
    }

    pub fn interrupt(&self, ticket: Ticket) {
        self.state().driver.forget(ticket);
    }

    /// Blocks while calls about a process block.
    fn wait_to_speak(&self, pid: u32) {
        let waits = |state: &mut State| state.silent.contains(&pid);
        drop(self.shared.changed.wait_while(self.state(), waits));
    }

    pub fn break_queue(&self, pid: u32, queue: u32) {
        self.state().driver.break_queue(pid, queue);
    }

    /// Advances the time of timeouts and of the scheduler. Devices have their own time.
    pub fn pass(&self, time: Duration) {
        self.state().now += time;
        self.act(|driver, env| {
            driver.expire(env);
            driver.schedule(env);
        });
    }

    pub fn set_patched(&self, patched: bool) {
        self.act(|driver, env| driver.set_patched(env, patched));
    }

    pub fn set_parameters(&self, parameters: Parameters) {
        self.act(|driver, env| driver.set_parameters(env, parameters));
    }

    /// Starts a call without waiting for its answer.
    pub fn begin(&self, caller: Caller, request: IoctlRequest) -> Ticket {
        let ticket = {
            let mut state = self.state();
            state.last_ticket += 1;
            let ticket = Ticket(state.last_ticket);
            state.act(|driver, env| driver.call(env, ticket, caller, request));
            ticket
        };
        self.wake_all();
        ticket
    }

    /// The answer to a started call, if it is ready. Advances the devices.
    pub fn poll(&self, ticket: Ticket) -> Option<Answer> {
        let mut state = self.state();
        loop {
            if let Some(answer) = state.answers.remove(&ticket) {
                return Some(answer);
            }
            if !state.advance() {
                return None;
            }
        }
    }

    fn call(&self, caller: Caller, through: Option<u32>, call: Call<'_>) -> Result<(), Errno> {
        let file = match call.file {
            Some(passed) => Some(rustix::io::fcntl_dupfd_cloexec(passed.file, 0)?),
            None => None,
        };
        let array = call.array.as_ref().map(|array| array.bytes.to_vec());
        let block = call.block.to_vec();
        let ticket =
            self.begin(caller, IoctlRequest { opcode: call.opcode, block, array, file, through });
        let mut state = self.state();
        let answer = loop {
            if let Some(answer) = state.answers.remove(&ticket) {
                break answer;
            }
            if state.advance() {
                // Other calls may wait for the same devices.
                self.wake_all();
            } else {
                let waited = self.shared.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        };
        call.block.copy_from_slice(&answer.block);
        if let (Some(array), Some(bytes)) = (call.array, answer.array) {
            array.bytes.copy_from_slice(&bytes);
        }
        answer.result
    }

    fn act<T>(&self, what: impl FnOnce(&mut Driver, &mut DriverEnv<'_>) -> T) -> T {
        let result = self.state().act(what);
        self.wake_all();
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        self.shared.changed.notify_all();
    }
}

fn own_thread() -> u32 {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0)
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

/// Gives tests the driver's views under the same names.
macro_rules! views {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        impl FakeKfd {
            $(pub fn $name(&self, $($argument: $type),*) -> $result {
                self.state().driver.$name($($argument),*)
            })+
        }
    };
}

views! {
    is_running(pid: u32, queue: u32) -> Option<bool>;
    serial(pid: u32, queue: u32) -> Option<u64>;
    device_id(pid: u32, queue: u32) -> Option<QueueId>;
    is_debugged(pid: u32) -> bool;
    waiting(pid: u32) -> usize;
    remaps() -> u64;
    runtime(pid: u32) -> Option<RuntimeState>;
    logical_priority(pid: u32) -> Option<u8>;
    logical_priority_of(pid: u32, queue: u32) -> Option<u8>;
}

/// A process. Dropping it is its end.
#[derive(Debug)]
pub struct FakeClient {
    kfd: FakeKfd,
    pid: u32,
}

impl FakeClient {
    pub(super) fn new(kfd: FakeKfd, pid: u32) -> Self {
        Self { kfd, pid }
    }

    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Creates an AQL queue on a device.
    pub fn open_queue(&self, gpu_id: u32) -> Result<u32, Errno> {
        let mut block: CreateQueue = zerocopy::FromZeros::new_zeroed();
        // CAST: `QueueType` has 32 bits.
        let queue_type = QueueType::ComputeAql as u32;
        (block.gpu_id, block.queue_type, block.percentage) = (gpu_id, queue_type, 100);
        self.create_queue(&mut block)?;
        Ok(block.queue_id)
    }

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
        self.kfd.act(|driver, env| driver.end_process(env, self.pid));
    }
}

/// A debugger. Dropping it is its end, and KFD ends its sessions.
#[derive(Debug)]
pub struct FakeDebugger {
    kfd: FakeKfd,
    pid: u32,
    may_checkpoint: bool,
}

impl FakeDebugger {
    pub(super) fn new(kfd: FakeKfd, pid: u32) -> Self {
        Self { kfd, pid, may_checkpoint: true }
    }

    /// Without the capabilities to pause processes and to preempt their queues.
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

/// The process that a debugger's call is about.
fn subject(call: &Call<'_>) -> Option<u32> {
    let pid = call.block.first_chunk().copied().map(u32::from_ne_bytes);
    pid.filter(|_| call.opcode == DBG_TRAP)
}

impl Ioctl for FakeDebugger {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        if let Some(pid) = subject(&call) {
            self.kfd.wait_to_speak(pid);
            if let Some(errno) = self.kfd.failure(pid) {
                return Err(errno);
            }
        }
        self.kfd.call(self.caller(), None, call)
    }
}

impl DebuggerIoctl for FakeDebugger {
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

impl Drop for FakeDebugger {
    fn drop(&mut self) {
        self.kfd.kill_debugger(self.pid);
    }
}
