//! A process as the driver keeps it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::trap::RuntimeInfo;
use rustix::event::{PollFd, PollFlags, poll};

use super::queue::Queue;

/// A process.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Its number for the devices.
    pub(super) pasid: u32,
    /// How often it has the device open.
    pub(super) opened: u32,
    pub(super) queues: BTreeMap<u32, Queue>,
    pub(super) info: RuntimeInfo,
    /// The session, if there is one.
    pub(super) session: Option<Debugged>,
    /// Who began it, or tried to: the kernel writes that down first.
    pub(super) debugger: Option<u32>,
    /// What happened to the process that nobody took note of.
    pub(super) exceptions: Exceptions,
    /// What happened on its devices that nobody took note of.
    pub(super) device_exceptions: BTreeMap<u32, Exceptions>,
    /// Answers that nobody has waited for yet.
    pub(super) answers: u32,
    /// How often it was paused, less how often it was let go on.
    pub(super) evictions: u32,
    pub(super) is_paused: bool,
    /// How important its queues are to the scheduler, if somebody said so.
    pub(super) logical_priority: Option<u8>,
}

/// What a session needs.
#[derive(Debug)]
pub(super) struct Debugged {
    pub(super) wanted: Exceptions,
    pub(super) events: OwnedFd,
}

impl Process {
    pub(super) fn is_debugged(&self) -> bool {
        self.session.is_some()
    }

    /// Whether nothing keeps a queue from being on its device.
    pub(super) fn may_run(&self, queue: &Queue) -> bool {
        !queue.is_suspended && !queue.is_preempted() && queue.percentage > 0 && self.evictions == 0
    }

    /// Something happened: whoever wants to know gets a byte.
    pub(super) fn announce(&self, exceptions: Exceptions) {
        let Some(session) = &self.session else { return };
        // A pipe that is full says enough, and one that would make us wait is not written to.
        let mut files = [PollFd::new(&session.events, PollFlags::OUT)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let may_write =
            poll(&mut files, Some(&now)).is_ok() && files[0].revents().contains(PollFlags::OUT);
        if session.wanted.has(exceptions) && may_write {
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

    /// The lowest name that no queue has: names are given again at once, as in the kernel.
    pub(super) fn free_name(&self) -> u32 {
        (0..).find(|name| !self.queues.contains_key(name)).unwrap_or(u32::MAX)
    }

    /// The names of its queues.
    pub(super) fn names(&self) -> Vec<u32> {
        self.queues.keys().copied().collect()
    }
}
