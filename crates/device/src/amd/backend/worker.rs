//! A thread per process that makes KFD calls about it.
//!
//! ```text
//! attach ─ ok ─> session ─ ended, process lives ─> attach
//!    │              └─ no debugger slot ─> pause
//!    ├─ no session possible ─> pause ─ now and then, while it runs ─> attach
//!    └─ has another debugger, or not permitted ─> wait ─> attach
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;

use super::job::{Gathered, Job, gather};
use super::mqd_cache::MqdCache;
use super::report::Report;
use crate::amd::KfdInstance;
use crate::amd::session::{AttachError, DebugSession};
use crate::controller::{ControlLimit, Disconnected, Reporter};
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;
use crate::worker_thread::{Orders, WorkerThread};

/// How often to check whether a worker has ended.
const LOOK: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Worker {
    thread: WorkerThread<Job>,
    /// Set when a caller waits for its end.
    is_awaited: Arc<AtomicBool>,
}

impl Worker {
    /// Starts a worker that controls a process as soon as its predecessor has ended.
    pub(super) fn start(
        (instance, undo_log, mqds): (KfdInstance, UndoLog, MqdCache),
        (task, process): (TaskId, ProcessKey),
        before: Option<Self>,
        reports: Reporter<Report>,
    ) -> io::Result<Self> {
        let is_awaited = Arc::new(AtomicBool::new(false));
        let awaited = Arc::clone(&is_awaited);
        let thread = WorkerThread::start_polling("amd process", move |jobs| {
            let control = ProcessControl {
                instance,
                undo_log,
                mqds,
                task,
                process,
                reports,
                jobs,
                is_awaited: awaited,
            };
            let is_over = control.wait_for(before).unwrap_or(true);
            // The backend ends this thread when it drops the receiver of reports.
            let _ = control.run(is_over);
        })?;
        Ok(Self { thread, is_awaited })
    }

    /// Sends a command. Returns whether the worker will execute it.
    pub(super) fn give(&self, job: Job) -> bool {
        self.thread.send(job)
    }

    /// Tells the worker to revert its changes and end.
    pub(super) fn end(&mut self) {
        self.thread.end();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.has_ended()
    }

    /// Ends it, and limits how long it retries, because a caller waits.
    fn end_soon(&mut self) {
        // ORDERING: a flag that is polled; no other memory depends on it.
        self.is_awaited.store(true, Ordering::Relaxed);
        self.end();
    }

    pub(super) fn has_ended_by(&mut self, end: Instant) -> bool {
        self.end_soon();
        self.thread.has_ended_by(end)
    }
}

pub(super) struct ProcessControl {
    pub(super) instance: KfdInstance,
    pub(super) undo_log: UndoLog,
    pub(super) mqds: MqdCache,
    pub(super) task: TaskId,
    pub(super) process: ProcessKey,
    pub(super) reports: Reporter<Report>,
    pub(super) jobs: Orders<Job>,
    is_awaited: Arc<AtomicBool>,
}

/// How a step ended, and what comes next.
#[derive(Debug)]
pub(super) enum Next {
    /// End: the worker was told to, or the process has ended.
    End,
    /// Try to attach again.
    Again,
    /// Pause the whole process, because of `why`. `may_change`: a session may be possible later.
    PauseProcess { why: String, may_change: bool },
    /// Nothing can be done, because of this; try to attach again later.
    Wait(String),
}

impl ProcessControl {
    /// Waits for the predecessor to end. Returns whether this worker is to end.
    fn wait_for(&self, before: Option<Worker>) -> Result<bool, Disconnected> {
        let Some(mut before) = before else { return Ok(false) };
        before.end_soon();
        let mut is_over = false;
        // Even if this worker is to end: its successor must not start before the predecessor has
        // ended.
        while !before.has_ended() {
            if is_over {
                std::thread::sleep(LOOK);
            } else {
                is_over = self.wait(LOOK)?;
            }
        }
        Ok(is_over)
    }

    fn run(self, is_over: bool) -> Result<(), Disconnected> {
        let end = if is_over { Ok(()) } else { self.control() };
        // No message about the process is true any more.
        let _ = self.reports.send(Report::Solved(self.process.pid));
        // Reverts every change and removes the journal's record.
        self.put_back()?;
        end?;
        // Late commands are answered before the end is reported.
        self.answer_all(&self.gather().unwrap_or_default())?;
        self.reports.send(Report::Over(self.task))
    }

    fn control(&self) -> Result<(), Disconnected> {
        // An earlier worker may have removed the record.
        if let Err(error) = self.undo_log.claim(self.process) {
            return self
                .reports
                .send(Report::Problem(format!("process {}: {error}", self.process)));
        }
        let (mut backoff, mut next) = (Backoff::new(), Next::Again);
        loop {
            next = match next {
                Next::End => return Ok(()),
                Next::Again => match self.end_left_pause().and_then(|()| self.attach()) {
                    Ok(session) => {
                        self.free_of_limits()?;
                        let next = self.run_session(session)?;
                        // Another program may have ended the session, so attach is delayed.
                        let is_lost = matches!(next, Next::Again) && self.process.check().is_ok();
                        if is_lost && self.wait(backoff.next())? { Next::End } else { next }
                    }
                    Err(next) => next,
                },
                Next::PauseProcess { why, may_change } => {
                    self.control_as_whole(&why, may_change)?
                }
                Next::Wait(problem) => {
                    let limit = ControlLimit { sentence: problem.clone(), is_uncontrollable: true };
                    self.reports.send(Report::ControlLimit(self.task, Some(limit)))?;
                    self.reports.send(Report::Problem(problem))?;
                    if self.wait(backoff.next())? { Next::End } else { Next::Again }
                }
            };
            if self.process.check().is_err() {
                return Ok(());
            }
        }
    }

    /// Ends a pause that an earlier worker, or this one, could not end.
    fn end_left_pause(&self) -> Result<(), Next> {
        let pause = self.pause_act();
        if !self.undo_log.has(self.process, &pause) {
            return Ok(());
        }
        match self.undo_log.perform(self.process, &pause, true) {
            Err(error) if !error.is_gone() => {
                Err(Next::Wait(format!("process {} is paused still: {error}", self.process)))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn attach(&self) -> Result<DebugSession, Next> {
        DebugSession::attach(self.instance.kfd.clone(), self.process).map_err(|error| {
            let why = error.to_string();
            if error.allows_pause() {
                Next::PauseProcess { why, may_change: error.may_change() }
            } else if matches!(error, AttachError::Gone(_)) {
                Next::End
            } else {
                Next::Wait(why)
            }
        })
    }

    /// Reports that the process has no limit and no problem any more.
    fn free_of_limits(&self) -> Result<(), Disconnected> {
        self.reports.send(Report::Solved(self.process.pid))?;
        self.reports.send(Report::ControlLimit(self.task, None))
    }

    /// Reverts all changes to the process. A tracer may prevent that; then this retries until a
    /// caller waits for the worker, which retries itself.
    fn put_back(&self) -> Result<(), Disconnected> {
        const TRIES: u32 = 20;
        const PAUSE: Duration = Duration::from_millis(50);
        for tries in 0.. {
            let Err(problem) = self.undo_log.undo_process(self.process) else {
                let _ = self.reports.send(Report::Solved(self.process.pid));
                return Ok(());
            };
            if tries == TRIES {
                self.reports.send(Report::Problem(problem.to_string()))?;
            }
            // ORDERING: see `Worker::end_soon`.
            if tries >= TRIES && self.is_awaited.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits. Returns whether the worker is to end.
    pub(super) fn wait(&self, time: Duration) -> Result<bool, Disconnected> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if !self.jobs.wait(left) {
                continue;
            }
            let jobs = self.gather().unwrap_or_default();
            self.answer_all(&jobs)?;
            if jobs.is_over {
                return Ok(true);
            }
        }
    }

    /// The gathered commands, if there are any or the worker is to end.
    pub(super) fn gather(&self) -> Option<Gathered> {
        let (jobs, is_over) = gather(&self.jobs);
        (!jobs.is_empty() || is_over).then(|| Gathered::new(jobs, is_over))
    }

    /// Answers commands for a process without control: no queue of it is off.
    pub(super) fn answer_all(&self, jobs: &Gathered) -> Result<(), Disconnected> {
        self.answer(&jobs.stops, Err(Fault::Gone))?;
        self.answer(&jobs.resumes, Ok(()))
    }

    pub(super) fn answer(
        &self,
        jobs: &[Job],
        result: Result<(), Fault>,
    ) -> Result<(), Disconnected> {
        jobs.iter().try_for_each(|job| self.reports.send(Report::Event(job.awaited.event(result))))
    }
}

const FIRST: Duration = Duration::from_millis(500);
const LAST: Duration = Duration::from_secs(30);

/// Doubles the wait each time, up to half a minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) const fn new() -> Self {
        Self { next: FIRST }
    }

    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LAST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit() {
        let mut backoff = Backoff::new();
        let waits: Vec<u128> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits[..3], [500, 1000, 2000]);
        assert_eq!(waits[7..], [30_000, 30_000]);
    }
}
