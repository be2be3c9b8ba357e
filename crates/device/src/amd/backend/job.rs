//! Commands about queues, gathered so that one call executes them together.

use std::thread;
use std::time::Duration;

use gpreempt_core::id::TaskId;

use crate::amd::session::QueueKey;
use crate::controller::PendingCompletion;
use crate::worker_thread::Orders;

/// How long to gather more commands after the first.
const GATHER: Duration = Duration::from_micros(100);

/// The commands that arrive together, and whether the thread has to end after them.
pub(super) fn gather<C>(commands: &Orders<C>) -> (Vec<C>, bool) {
    thread::sleep(GATHER);
    commands.take()
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
