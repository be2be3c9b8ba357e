//! Threads that execute commands of the backend: the handle, the receiving side, and commands about
//! queues that are executed together.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpreempt_core::id::TaskId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::amd::session::QueueKey;
use crate::controller::{PendingCompletion, Waker};

/// How long to gather more commands after the first.
const GATHER: Duration = Duration::from_micros(100);
/// How often to check whether a thread has ended.
const LOOK: Duration = Duration::from_millis(1);

/// The handle of a thread that executes commands.
#[derive(Debug)]
pub(super) struct CommandThread<C> {
    commands: Option<Sender<C>>,
    waker: Waker,
    thread: JoinHandle<()>,
}

/// The commands to a thread.
#[derive(Debug)]
pub(super) struct CommandQueue<C> {
    incoming: Receiver<C>,
    waker: Waker,
}

impl<C: Send + 'static> CommandThread<C> {
    pub(super) fn start(
        name: &str,
        body: impl FnOnce(CommandQueue<C>) + Send + 'static,
    ) -> io::Result<Self> {
        let (commands, incoming) = channel();
        let waker = Waker::new()?;
        let queue = CommandQueue { incoming, waker: waker.clone() };
        let thread = thread::Builder::new().name(name.into()).spawn(move || body(queue))?;
        Ok(Self { commands: Some(commands), waker, thread })
    }

    /// Sends a command. Returns whether the thread will execute it.
    pub(super) fn send(&self, command: C) -> bool {
        let is_sent = self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok());
        self.waker.wake();
        is_sent
    }

    /// Tells the thread to end.
    pub(super) fn end(&mut self) {
        self.commands = None;
        self.waker.wake();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it and waits until `end`. Returns whether it has ended: a KFD call may never return.
    pub(super) fn has_ended_by(&mut self, end: Instant) -> bool {
        self.end();
        while !self.has_ended() {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }
}

impl<C> CommandQueue<C> {
    /// Waits for commands. Returns whether there may be some.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(time))).is_ok_and(|ready| ready > 0)
    }

    /// The commands that arrive together, and whether the handle has ended the thread.
    pub(super) fn gather(&self) -> (Vec<C>, bool) {
        self.waker.clear();
        thread::sleep(GATHER);
        let mut commands = Vec::new();
        loop {
            match self.incoming.try_recv() {
                Ok(command) => commands.push(command),
                Err(TryRecvError::Empty) => return (commands, false),
                Err(TryRecvError::Disconnected) => return (commands, true),
            }
        }
    }
}

impl<C> AsFd for CommandQueue<C> {
    /// Readable when there may be commands.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// A command about one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) task: TaskId,
    pub(super) key: QueueKey,
    pub(super) gpu_id: u32,
    /// The command, and the event that completes it.
    pub(super) awaited: PendingCompletion,
}

/// Commands about queues that are executed together.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) stops: Vec<Job>,
    pub(super) resumes: Vec<Job>,
    /// The handle has ended the thread.
    pub(super) is_over: bool,
}

impl Gathered {
    pub(super) fn new(jobs: Vec<Job>, is_over: bool) -> Self {
        let is_stop = |job: &Job| matches!(job.awaited, PendingCompletion::Preempt(_));
        let (stops, resumes) = jobs.into_iter().partition(is_stop);
        Self { stops, resumes, is_over }
    }

    pub(super) fn split(self, is_so: impl Fn(&Job) -> bool) -> (Self, Self) {
        let (stops, other_stops) = self.stops.into_iter().partition(&is_so);
        let (resumes, other_resumes) = self.resumes.into_iter().partition(&is_so);
        let others = Self { stops: other_stops, resumes: other_resumes, is_over: self.is_over };
        (Self { stops, resumes, is_over: self.is_over }, others)
    }
}

pub(super) fn timespec(time: Duration) -> Timespec {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() }
}
