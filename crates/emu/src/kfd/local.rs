//! KFD inside of one program, for tests: processes are numbers, and their tracers are real threads
//! of the program, which are gone when they have ended, as in the kernel.
//!
//! The rules are the emulator's. Behind them is nothing that runs ([`FakeKfd::with`]), or devices
//! whose time passes while somebody waits for them ([`FakeKfd::over`]).

mod client;
mod door;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::Call;
use gpreempt_kfd::abi::trap::RuntimeState;
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

use super::driver::{Answer, Asked, Caller, Driver, Ticket};
use super::parameters::Parameters;
use super::rules::Rules;
use super::world::{Devices, Obedient, World};
pub use client::FakeClient;
pub use door::FakeDoor;

/// A KFD that several processes use. A clone is the same one.
#[derive(Clone)]
pub struct FakeKfd {
    shared: Arc<Shared>,
}

/// Devices of one program.
pub trait LocalDevices: Devices + Send {
    /// Lets time pass until a call is through. Says which; none if nothing happens by itself.
    fn advance(&mut self) -> Vec<CallId>;
}

impl LocalDevices for Obedient {
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
    /// Processes of which the kernel does not let go whoever asks about them.
    silent: BTreeSet<u32>,
    /// Processes about which a call fails, after so many that do not.
    failing: BTreeMap<u32, (u32, Errno)>,
    answers: BTreeMap<Ticket, Answer>,
    last_ticket: u64,
    now: Instant,
}

/// Who traces a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracer {
    /// A thread of this program.
    Thread(u32),
    /// Somebody else.
    Somebody(u32),
}

impl Tracer {
    /// Its number, as long as it lives.
    fn living(self) -> Option<u32> {
        match self {
            Self::Somebody(tracer) => Some(tracer),
            Self::Thread(thread) => {
                Path::new(&format!("/proc/self/task/{thread}")).exists().then_some(thread)
            }
        }
    }
}

impl State {
    /// Does something with the driver, which sees the devices and who traces whom.
    fn act<T>(&mut self, what: impl FnOnce(&mut Driver, &mut World<'_>) -> T) -> T {
        let tracers = &self.tracers;
        let tracer_of = |pid: u32| tracers.get(&pid).and_then(|tracer| tracer.living());
        let now = self.now;
        let mut world = World { devices: &mut *self.devices, tracer_of: &tracer_of, now };
        let result = what(&mut self.driver, &mut world);
        while let Some((ticket, answer)) = self.driver.poll_answer() {
            self.answers.insert(ticket, answer);
        }
        result
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        self.tracers.get(&pid)?.living()
    }

    /// Lets the devices go on. Whether anything came of it.
    fn advance(&mut self) -> bool {
        let done = self.devices.advance();
        for call in &done {
            self.act(|driver, _| driver.handle_done(*call));
        }
        !done.is_empty()
    }
}

impl FakeKfd {
    /// One of a new kernel with a new device.
    pub fn new() -> Self {
        Self::with(Rules::default())
    }

    /// One with those rules, and devices that do at once what they are told.
    pub fn with(rules: Rules) -> Self {
        Self::over(rules, Obedient::default())
    }

    /// One with those rules over those devices.
    pub fn over(rules: Rules, devices: impl LocalDevices + 'static) -> Self {
        let state = State {
            driver: Driver::new(rules),
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

    /// The device as a debugger's process opened it. When it is dropped, that process has died.
    pub fn door(&self, pid: u32) -> FakeDoor {
        FakeDoor::new(self.clone(), pid)
    }

    /// A process that uses the device. When it is dropped, it has died.
    pub fn client(&self, pid: u32) -> FakeClient {
        self.act(|driver, _| driver.open(pid));
        FakeClient::new(self.clone(), pid)
    }

    /// Whether nothing keeps a queue from being on its device, if there is one of that name.
    pub fn is_running(&self, pid: u32, queue: u32) -> Option<bool> {
        self.state().driver.is_running(pid, queue)
    }

    /// The serial number of a queue.
    pub fn serial(&self, pid: u32, queue: u32) -> Option<u64> {
        self.state().driver.serial(pid, queue)
    }

    /// What the devices call a queue.
    pub fn device_id(&self, pid: u32, queue: u32) -> Option<QueueId> {
        self.state().driver.device_id(pid, queue)
    }

    /// Whether a process has a debugger.
    pub fn is_debugged(&self, pid: u32) -> bool {
        self.state().driver.is_debugged(pid)
    }

    /// How many threads of a process wait in the kernel: for its debugger, or for a suspended
    /// queue.
    pub fn waiting(&self, pid: u32) -> usize {
        self.state().driver.waiting(pid)
    }

    /// How often the queues of a device were all taken off and put on again.
    pub fn remaps(&self) -> u64 {
        self.state().driver.remaps()
    }

    /// How a process stands with its runtime.
    pub fn runtime(&self, pid: u32) -> Option<RuntimeState> {
        self.state().driver.runtime(pid)
    }

    /// How important a process's queues are to the scheduler of a patched one, if somebody said so.
    pub fn logical_priority(&self, pid: u32) -> Option<u8> {
        self.state().driver.logical_priority(pid)
    }

    /// The same of one queue, if somebody said so of that alone.
    pub fn logical_priority_of(&self, pid: u32, queue: u32) -> Option<u8> {
        self.state().driver.logical_priority_of(pid, queue)
    }

    /// A debugger's process is killed: the kernel ends its sessions.
    pub fn kill_debugger(&self, pid: u32) {
        self.act(|driver, world| driver.end_debugger(world, pid));
    }

    /// Somebody who is not part of the test traces a process from now on.
    pub fn trace_by_somebody(&self, pid: u32, tracer: u32) {
        self.state().tracers.insert(pid, Tracer::Somebody(tracer));
    }

    /// Whoever traced a process has left.
    pub fn end_tracing(&self, pid: u32) {
        self.state().tracers.remove(&pid);
    }

    /// A process may no longer be traced: it is another user's, or there is a policy.
    pub fn forbid_tracing(&self, pid: u32) {
        self.state().untraceable.insert(pid);
    }

    /// Whoever traces or debugs a process waits in the kernel from now on, or no longer does.
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

    /// One call of a debugger about a process fails, after so many that do not.
    pub fn fail_once(&self, pid: u32, after: u32, errno: Errno) {
        self.state().failing.insert(pid, (after, errno));
    }

    /// Whether it is this call about a process that fails.
    fn failure(&self, pid: u32) -> Option<Errno> {
        let mut state = self.state();
        let (after, errno) = state.failing.remove(&pid)?;
        if after == 0 {
            return Some(errno);
        }
        state.failing.insert(pid, (after - 1, errno));
        None
    }

    /// Whoever waited for the answer to a call is interrupted.
    pub fn interrupt(&self, ticket: Ticket) {
        self.state().driver.forget(ticket);
    }

    /// Returns when the kernel lets whoever asks about a process go on.
    fn wait_to_speak(&self, pid: u32) {
        let waits = |state: &mut State| state.silent.contains(&pid);
        drop(self.shared.changed.wait_while(self.state(), waits));
    }

    /// The hardware no longer does what it is told about a queue.
    pub fn break_queue(&self, pid: u32, queue: u32) {
        self.state().driver.break_queue(pid, queue);
    }

    /// Lets time pass for whatever was preempted for a time, and for the scheduler. Devices have a
    /// time of their own.
    pub fn pass(&self, time: Duration) {
        self.state().now += time;
        self.act(|driver, world| {
            driver.expire(world);
            driver.schedule(world);
        });
    }

    /// From now on it is patched, or no longer is.
    pub fn set_own_calls(&self, own_calls: bool) {
        self.act(|driver, world| driver.set_own_calls(world, own_calls));
    }

    /// Sets the scheduler inside of a patched one.
    pub fn set_parameters(&self, parameters: Parameters) {
        self.act(|driver, world| driver.set_parameters(world, parameters));
    }

    /// Begins a call without waiting for its answer.
    pub fn begin(&self, caller: Caller, asked: Asked) -> Ticket {
        let ticket = {
            let mut state = self.state();
            state.last_ticket += 1;
            let ticket = Ticket(state.last_ticket);
            state.act(|driver, world| driver.call(world, ticket, caller, asked));
            ticket
        };
        self.wake_all();
        ticket
    }

    /// The answer to a call that was begun, if there is one. The devices go on meanwhile.
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

    /// Makes a call and waits for its answer.
    fn call(&self, caller: Caller, through: Option<u32>, call: Call<'_>) -> Result<(), Errno> {
        let file = match call.file {
            Some(passed) => Some(rustix::io::fcntl_dupfd_cloexec(passed.file, 0)?),
            None => None,
        };
        let array = call.array.as_ref().map(|array| array.bytes.to_vec());
        let block = call.block.to_vec();
        let ticket = self.begin(caller, Asked { opcode: call.opcode, block, array, file, through });
        let mut state = self.state();
        let answer = loop {
            if let Some(answer) = state.answers.remove(&ticket) {
                break answer;
            }
            if state.advance() {
                // Others may wait for what was done.
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

    fn act<T>(&self, what: impl FnOnce(&mut Driver, &mut World<'_>) -> T) -> T {
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

/// The calling thread.
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
