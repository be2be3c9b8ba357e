//! A process as KFD keeps it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::queue::Queue;
use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::RuntimeInfo;

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) queues: BTreeMap<u32, Queue>,
    pub(super) next_queue: u32,
    pub(super) info: RuntimeInfo,
    /// The session, if there is one.
    pub(super) session: Option<FakeSession>,
    /// Who began it, or tried to: the kernel writes that down first.
    pub(super) debugger: Option<u32>,
    /// What happened to the process that nobody took note of.
    pub(super) exceptions: Exceptions,
    /// What happened on its devices that nobody took note of.
    pub(super) device_exceptions: BTreeMap<u32, Exceptions>,
    /// Answers that nobody has waited for yet.
    pub(super) answers: u32,
    pub(super) tracer: Option<Tracer>,
    pub(super) may_be_traced: bool,
    /// How many threads wait in the kernel.
    pub(super) waiting: usize,
    /// How often it was paused, less how often it was let go on.
    pub(super) evictions: u32,
    pub(super) is_paused: bool,
}

/// What a session needs.
#[derive(Debug)]
pub(super) struct FakeSession {
    pub(super) wanted: Exceptions,
    pub(super) events: OwnedFd,
}

/// Who traces a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracer {
    /// A thread of this program.
    Thread(u32),
    /// Somebody else.
    Somebody(u32),
}

impl Default for Process {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            next_queue: 0,
            info: RuntimeInfo::default(),
            session: None,
            debugger: None,
            exceptions: Exceptions::NONE,
            device_exceptions: BTreeMap::new(),
            answers: 0,
            tracer: None,
            may_be_traced: true,
            waiting: 0,
            evictions: 0,
            is_paused: false,
        }
    }
}

impl Process {
    pub(super) fn is_debugged(&self) -> bool {
        self.session.is_some()
    }

    pub(super) fn is_running(&self, queue: u32) -> Option<bool> {
        let queue = self.queues.get(&queue)?;
        Some(!queue.is_suspended && queue.percentage > 0 && self.evictions == 0)
    }

    pub(super) fn break_queue(&mut self, queue: u32) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.is_broken = true;
        }
    }

    /// The thread that traces it, as long as that lives.
    pub(super) fn living_tracer(&mut self) -> Option<u32> {
        match self.tracer? {
            Tracer::Somebody(tracer) => Some(tracer),
            Tracer::Thread(thread) => {
                if Path::new(&format!("/proc/self/task/{thread}")).exists() {
                    return Some(thread);
                }
                self.tracer = None;
                None
            }
        }
    }

    /// Something happened: whoever wants to know gets a byte.
    pub(super) fn announce(&self, exceptions: Exceptions) {
        if let Some(session) = &self.session
            && session.wanted.has(exceptions)
        {
            // A pipe that is full says enough.
            let _ = rustix::io::write(&session.events, b".");
        }
    }

    /// Everything that a debugger suspended goes on.
    pub(super) fn resume_all(&mut self) {
        for queue in self.queues.values_mut() {
            queue.is_suspended = false;
        }
    }

    /// Ends the session, and with it everything it did.
    pub(super) fn end_session(&mut self) {
        self.resume_all();
        self.session = None;
        self.debugger = None;
        self.exceptions = Exceptions::NONE;
        self.device_exceptions.clear();
        for queue in self.queues.values_mut() {
            queue.entry.exceptions = Exceptions::NONE;
        }
        // A runtime that could not be activated is as good as before.
        if self.info.state > 1 {
            self.info.state = 1;
        }
    }
}
