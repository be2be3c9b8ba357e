//! KFD's rules: which call is permitted, what it returns, and what it waits for.
//!
//! A state machine without a clock and without threads. Calls arrive as bytes with a [`Ticket`];
//! [`Driver::poll_answer`] returns their answers when they are ready, which may be never: a process
//! may wait for a debugger that does not reply, as in the kernel. Calls to devices are
//! asynchronous; [`Driver::handle_done`] reports their completion.

mod client_calls;
mod debug;
mod preempt;
mod process;
mod request;
mod run_list;
mod scheduler;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpreempt_kfd::abi::block::{self, GetVersion};
use gpreempt_kfd::abi::patched::{PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY};
use gpreempt_kfd::abi::trap::{DBG_TRAP, RuntimeState};
use gpreempt_sim::external_gpu::CallId;
use process::Process;
pub use process::{ProcessView, QueueView};
pub use request::{Answer, Caller, IoctlRequest, Ticket};
use rustix::io::Errno;
use scheduler::Schedulers;

use super::driver_env::DriverEnv;
use super::kernel_profile::KfdProfile;

#[derive(Debug)]
pub struct Driver {
    profile: KfdProfile,
    processes: BTreeMap<u32, Process>,
    waiting: BTreeMap<Ticket, Waiting>,
    answers: VecDeque<(Ticket, Answer)>,
    /// How often each device's run list was replaced.
    remaps: BTreeMap<u32, u64>,
    schedulers: Schedulers,
    last_call: u64,
    last_pasid: u32,
    last_serial: u64,
    /// Increases with every change that the files show.
    changes: u64,
}

#[derive(Debug)]
struct Waiting {
    pid: u32,
    why: WaitReason,
    answer: Answer,
}

#[derive(Debug)]
enum WaitReason {
    Devices(BTreeSet<CallId>),
    /// The debugger's reply to the caller's runtime.
    Debugger,
    /// A suspended queue that is to be destroyed.
    Suspended(u32),
}

#[derive(Debug)]
enum CallProgress {
    Done,
    Wait(WaitReason),
}

/// The driver's calls to devices have ids from here on.
const FIRST_CALL: u64 = 1 << 63;
/// The first PASID, the number of a process for the devices.
const FIRST_PASID: u32 = 0x8000;

impl Driver {
    pub fn new(profile: KfdProfile) -> Self {
        Self {
            profile,
            processes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            answers: VecDeque::new(),
            remaps: BTreeMap::new(),
            schedulers: Schedulers::default(),
            last_call: FIRST_CALL,
            last_pasid: FIRST_PASID,
            last_serial: 0,
            changes: 0,
        }
    }

    pub fn open(&mut self, pid: u32) {
        self.changes += 1;
        let process = self.processes.entry(pid).or_insert_with(|| {
            self.last_pasid += 1;
            Process { pasid: self.last_pasid, ..Process::default() }
        });
        process.opened += 1;
    }

    /// The last close of a process is its end.
    pub fn close(&mut self, env: &mut DriverEnv<'_>, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.opened = process.opened.saturating_sub(1);
        if process.opened == 0 {
            self.end_process(env, pid);
        }
    }

    /// A process ends: KFD destroys its queues, ends its session and interrupts its calls.
    pub fn end_process(&mut self, env: &mut DriverEnv<'_>, pid: u32) {
        self.changes += 1;
        self.end_debugger(env, pid);
        let mut devices = BTreeSet::new();
        for queue in self.processes.remove(&pid).into_iter().flat_map(|process| process.queues) {
            devices.insert(queue.1.entry.gpu_id);
            env.devices.close_queue(queue.1.device_id);
        }
        self.remap(env, &devices);
        let theirs =
            |(&ticket, waiting): (&Ticket, &Waiting)| (waiting.pid == pid).then_some(ticket);
        let tickets: Vec<Ticket> = self.waiting.iter().filter_map(theirs).collect();
        for ticket in tickets {
            self.end_wait(ticket, Err(Errno::INTR));
        }
        self.settle(env);
    }

    /// A debugger ends: KFD ends its sessions and resumes what it suspended or preempted.
    pub fn end_debugger(&mut self, env: &mut DriverEnv<'_>, pid: u32) {
        let is_theirs = |process: &Process| process.debugger == Some(pid);
        let processes = self.processes.iter().filter(|(_, process)| is_theirs(process));
        let targets: Vec<u32> = processes.map(|(&target, _)| target).collect();
        for target in targets {
            self.end_session(env, target);
        }
        self.release_owner(env, pid);
        self.settle(env);
    }

    /// Starts a call. `poll_answer` returns its answer.
    pub fn call(
        &mut self,
        env: &mut DriverEnv<'_>,
        ticket: Ticket,
        caller: Caller,
        mut request: IoctlRequest,
    ) {
        self.changes += 1;
        let next = self.perform(env, caller, &mut request);
        let answer = request.answer();
        match next {
            Ok(CallProgress::Wait(WaitReason::Devices(calls))) if calls.is_empty() => {
                self.answers.push_back((ticket, answer));
            }
            Ok(CallProgress::Done) => self.answers.push_back((ticket, answer)),
            Ok(CallProgress::Wait(why)) => {
                self.waiting.insert(ticket, Waiting { pid: caller.pid, why, answer });
            }
            Err(errno) => self.answers.push_back((ticket, Answer { result: Err(errno), ..answer })),
        }
        self.settle(env);
    }

    /// The caller was interrupted and does not wait for the answer any longer.
    pub fn forget(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    pub fn poll_answer(&mut self) -> Option<(Ticket, Answer)> {
        self.answers.pop_front()
    }

    /// A call to the devices has completed.
    pub fn handle_done(&mut self, call: CallId) {
        let mut through = Vec::new();
        for (&ticket, waiting) in &mut self.waiting {
            if let WaitReason::Devices(calls) = &mut waiting.why
                && calls.remove(&call)
                && calls.is_empty()
            {
                through.push(ticket);
            }
        }
        self.changes += 1;
        for ticket in through {
            self.end_wait(ticket, Ok(()));
        }
    }

    pub fn is_ours(call: CallId) -> bool {
        call.0 >= FIRST_CALL
    }

    fn end_wait(&mut self, ticket: Ticket, result: Result<(), Errno>) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            self.answers.push_back((ticket, Answer { result, ..waiting.answer }));
        }
    }

    fn perform(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        const VERSION: u32 = block::GET_VERSION & 0xff;
        const CREATE: u32 = block::CREATE_QUEUE & 0xff;
        const DESTROY: u32 = block::DESTROY_QUEUE & 0xff;
        const UPDATE: u32 = block::UPDATE_QUEUE & 0xff;
        const CRIU: u32 = block::CRIU & 0xff;
        const RUNTIME: u32 = block::RUNTIME_ENABLE & 0xff;
        const TRAP: u32 = DBG_TRAP & 0xff;
        const PREEMPT: u32 = PREEMPT_QUEUE & 0xff;
        const RESUME: u32 = RESUME_QUEUE & 0xff;
        const SET_PRIORITY: u32 = SET_PREEMPT_PRIORITY & 0xff;
        if request.opcode >> 8 & 0xff != u32::from(b'K') {
            return Err(Errno::NOTTY);
        }
        if !request.is_whole() {
            return Err(Errno::FAULT);
        }
        // Through a descriptor of another process only one call is permitted.
        if request.through.is_some_and(|pid| pid != caller.pid) && request.number() != CRIU {
            return Err(Errno::BADF);
        }
        match request.number() {
            VERSION => {
                let version = self.profile.version;
                request.set_block(&GetVersion { major: version.major, minor: version.minor });
                Ok(CallProgress::Done)
            }
            CREATE => self.create_queue(env, caller, request),
            DESTROY => self.destroy_queue(caller, request),
            UPDATE => self.update_queue(env, caller, request),
            CRIU => self.criu(env, caller, request),
            RUNTIME => self.runtime_enable(env, caller, request),
            TRAP => self.trap(env, caller, request),
            PREEMPT if self.profile.patched => self.preempt_queue(env, caller, request),
            RESUME if self.profile.patched => self.resume_queue(env, caller, request),
            SET_PRIORITY if self.profile.patched => self.set_preempt_priority(caller, request),
            _ => Err(Errno::NOTTY),
        }
    }

    /// Completes waiting calls whose condition holds now.
    fn settle(&mut self, env: &mut DriverEnv<'_>) {
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        for ticket in tickets {
            let Some(waiting) = self.waiting.get(&ticket) else { continue };
            let pid = waiting.pid;
            match waiting.why {
                WaitReason::Devices(_) => {}
                WaitReason::Debugger => {
                    let Some(process) = self.processes.get_mut(&pid) else { continue };
                    if let Some(rest) = process.answers.checked_sub(1) {
                        process.answers = rest;
                        self.end_wait(ticket, Ok(()));
                    }
                }
                WaitReason::Suspended(queue) => {
                    let queues = self.processes.get(&pid).map(|process| &process.queues);
                    let found = queues.and_then(|queues| queues.get(&queue));
                    if found.is_some_and(|queue| queue.is_suspended) {
                        continue;
                    }
                    let calls = self.remove_queue(env, pid, queue);
                    if calls.is_empty() {
                        self.end_wait(ticket, Ok(()));
                    } else if let Some(waiting) = self.waiting.get_mut(&ticket) {
                        waiting.why = WaitReason::Devices(calls);
                    }
                }
            }
        }
    }

    fn process(&mut self, pid: u32) -> Result<&mut Process, Errno> {
        self.processes.get_mut(&pid).ok_or(Errno::SRCH)
    }

    /// Whether another process has the only debugger slot.
    fn is_taken(&self, pid: u32) -> bool {
        let is_active = |process: &Process| {
            process.is_debugged() && process.info.runtime() == RuntimeState::Enabled
        };
        self.profile.one_debugged
            && self.processes.iter().any(|(other, process)| *other != pid && is_active(process))
    }
}

#[cfg(test)]
mod tests;
