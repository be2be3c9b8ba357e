//! KFD's rules: who may do what, what is answered, who waits for whom.
//!
//! A state machine without a clock and without threads. Calls come in as bytes with a [`Ticket`];
//! answers come out when it is time ([`Driver::poll_answer`]), which may be never if a process
//! waits for a debugger that says nothing, as in the kernel. Devices are told what to do and
//! [`Driver::handle_done`] is how the driver learns that they have.

mod debug;
mod frame;
mod hardware;
mod own;
mod preempt;
mod process;
mod queue;
mod scheduler;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpreempt_kfd::abi::block::{self, CriuOperation, GetVersion};
use gpreempt_kfd::abi::own::{PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY};
use gpreempt_kfd::abi::trap::{DBG_TRAP, RuntimeState};
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

use super::rules::Rules;
use super::world::World;
pub use frame::{Answer, Asked, Caller, Ticket};
use process::Process;
use scheduler::Schedulers;
pub use view::{ProcessView, QueueView};

/// The driver.
#[derive(Debug)]
pub struct Driver {
    rules: Rules,
    processes: BTreeMap<u32, Process>,
    waiting: BTreeMap<Ticket, Waiting>,
    answers: VecDeque<(Ticket, Answer)>,
    /// How often the queues of each device were all taken off and put on again.
    remaps: BTreeMap<u32, u64>,
    schedulers: Schedulers,
    last_call: u64,
    last_pasid: u32,
    /// The last serial number that a queue was given.
    last_serial: u64,
    /// Grows with every change that somebody could see.
    changes: u64,
}

/// A call that is not answered yet.
#[derive(Debug)]
struct Waiting {
    /// Whose it is.
    pid: u32,
    why: Why,
    answer: Answer,
}

/// What a call waits for.
#[derive(Debug)]
enum Why {
    /// The devices.
    Devices(BTreeSet<CallId>),
    /// The debugger's answer to the caller's runtime.
    Debugger,
    /// A suspended queue that is to be destroyed.
    Suspended(u32),
}

/// How a call goes on.
#[derive(Debug)]
enum Next {
    Done,
    Wait(Why),
}

/// Calls of the driver to its devices have names that nobody else uses.
const FIRST_CALL: u64 = 1 << 63;
/// The first number of a process for the devices.
const FIRST_PASID: u32 = 0x8000;

impl Driver {
    /// One without processes.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
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

    /// A process opens the device.
    pub fn open(&mut self, pid: u32) {
        self.changes += 1;
        let process = self.processes.entry(pid).or_insert_with(|| {
            self.last_pasid += 1;
            Process { pasid: self.last_pasid, ..Process::default() }
        });
        process.opened += 1;
    }

    /// A process closes it. The last time is its end.
    pub fn close(&mut self, world: &mut World<'_>, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.opened = process.opened.saturating_sub(1);
        if process.opened == 0 {
            self.end_process(world, pid);
        }
    }

    /// A process ends: its queues go, its sessions end, and nobody waits in it any longer.
    pub fn end_process(&mut self, world: &mut World<'_>, pid: u32) {
        self.changes += 1;
        self.end_debugger(world, pid);
        let mut devices = BTreeSet::new();
        for queue in self.processes.remove(&pid).into_iter().flat_map(|process| process.queues) {
            devices.insert(queue.1.entry.gpu_id);
            world.devices.close_queue(queue.1.device_id);
        }
        self.remap(world, &devices);
        let theirs =
            |(&ticket, waiting): (&Ticket, &Waiting)| (waiting.pid == pid).then_some(ticket);
        let tickets: Vec<Ticket> = self.waiting.iter().filter_map(theirs).collect();
        for ticket in tickets {
            self.end_wait(ticket, Err(Errno::INTR));
        }
        self.settle(world);
    }

    /// A process ends as a debugger: its sessions end, and everything they did, and what it
    /// preempted goes on.
    pub fn end_debugger(&mut self, world: &mut World<'_>, pid: u32) {
        let is_theirs = |process: &Process| process.debugger == Some(pid);
        let processes = self.processes.iter().filter(|(_, process)| is_theirs(process));
        let targets: Vec<u32> = processes.map(|(&target, _)| target).collect();
        for target in targets {
            self.end_session(world, target);
        }
        self.release_owner(world, pid);
        self.settle(world);
    }

    /// A call. Its answer comes when it is time.
    pub fn call(
        &mut self,
        world: &mut World<'_>,
        ticket: Ticket,
        caller: Caller,
        mut asked: Asked,
    ) {
        self.changes += 1;
        let next = self.perform(world, caller, &mut asked);
        let answer = asked.answer();
        match next {
            Ok(Next::Wait(Why::Devices(calls))) if calls.is_empty() => {
                self.answers.push_back((ticket, answer));
            }
            Ok(Next::Done) => self.answers.push_back((ticket, answer)),
            Ok(Next::Wait(why)) => {
                self.waiting.insert(ticket, Waiting { pid: caller.pid, why, answer });
            }
            Err(errno) => self.answers.push_back((ticket, Answer { result: Err(errno), ..answer })),
        }
        self.settle(world);
    }

    /// Whoever made a call does not wait for its answer any longer.
    pub fn forget(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// The next answer.
    pub fn poll_answer(&mut self) -> Option<(Ticket, Answer)> {
        self.answers.pop_front()
    }

    /// The devices have done something.
    pub fn handle_done(&mut self, call: CallId) {
        let mut through = Vec::new();
        for (&ticket, waiting) in &mut self.waiting {
            if let Why::Devices(calls) = &mut waiting.why
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

    /// Whether a call is one of this driver's to its devices.
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
        world: &mut World<'_>,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
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
        if asked.opcode >> 8 & 0xff != u32::from(b'K') {
            return Err(Errno::NOTTY);
        }
        if !asked.is_whole() {
            return Err(Errno::FAULT);
        }
        // Through a file of somebody else there is one thing that can be asked.
        if asked.through.is_some_and(|pid| pid != caller.pid) && asked.number() != CRIU {
            return Err(Errno::BADF);
        }
        match asked.number() {
            VERSION => {
                let version = self.rules.version;
                asked.set_block(&GetVersion { major: version.major, minor: version.minor });
                Ok(Next::Done)
            }
            CREATE => self.create_queue(world, caller, asked),
            DESTROY => self.destroy_queue(caller, asked),
            UPDATE => self.update_queue(world, caller, asked),
            CRIU => self.criu(world, caller, asked),
            RUNTIME => self.runtime_enable(world, caller, asked),
            TRAP => self.trap(world, caller, asked),
            PREEMPT if self.rules.own_calls => self.preempt_queue(world, caller, asked),
            RESUME if self.rules.own_calls => self.resume_queue(world, caller, asked),
            SET_PRIORITY if self.rules.own_calls => self.set_preempt_priority(caller, asked),
            _ => Err(Errno::NOTTY),
        }
    }

    /// Lets those go on who wait for something that is so by now.
    fn settle(&mut self, world: &mut World<'_>) {
        let tickets: Vec<Ticket> = self.waiting.keys().copied().collect();
        for ticket in tickets {
            let Some(waiting) = self.waiting.get(&ticket) else { continue };
            let pid = waiting.pid;
            match waiting.why {
                Why::Devices(_) => {}
                Why::Debugger => {
                    let Some(process) = self.processes.get_mut(&pid) else { continue };
                    if let Some(rest) = process.answers.checked_sub(1) {
                        process.answers = rest;
                        self.end_wait(ticket, Ok(()));
                    }
                }
                Why::Suspended(queue) => {
                    let queues = self.processes.get(&pid).map(|process| &process.queues);
                    let found = queues.and_then(|queues| queues.get(&queue));
                    if found.is_some_and(|queue| queue.is_suspended) {
                        continue;
                    }
                    let calls = self.remove_queue(world, pid, queue);
                    if calls.is_empty() {
                        self.end_wait(ticket, Ok(()));
                    } else if let Some(waiting) = self.waiting.get_mut(&ticket) {
                        waiting.why = Why::Devices(calls);
                    }
                }
            }
        }
    }

    fn process(&mut self, pid: u32) -> Result<&mut Process, Errno> {
        self.processes.get_mut(&pid).ok_or(Errno::SRCH)
    }

    /// Whether another process has the only place for a debugged one.
    fn is_taken(&self, pid: u32) -> bool {
        let is_active = |process: &Process| {
            process.is_debugged() && process.info.runtime() == RuntimeState::Enabled
        };
        self.rules.one_debugged
            && self.processes.iter().any(|(other, process)| *other != pid && is_active(process))
    }
}

/// The operation of that number, if it is one that is used here.
fn criu_operation(number: u32) -> Result<CriuOperation, Errno> {
    const PROCESS_INFO: u32 = CriuOperation::ProcessInfo as u32;
    const UNPAUSE: u32 = CriuOperation::Unpause as u32;
    match number {
        PROCESS_INFO => Ok(CriuOperation::ProcessInfo),
        UNPAUSE => Ok(CriuOperation::Unpause),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests;
