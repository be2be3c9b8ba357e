//! Runs a worker's debug session: suspends and resumes queues on command, and reports queues.
//!
//! Commands for the queues of a process arrive within microseconds of each other, and one call
//! costs every queue of the device a switch, however many queues it names. So the loop gathers
//! commands and makes one call.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::job::Job;
use super::report::{Report, StopUnit};
use super::worker::{Next, ProcessControl};
use crate::amd::abi::trap::{QueueEntry, RuntimeState};
use crate::amd::blocked_destroy::BlockedDestroys;
use crate::amd::change::AmdChange;
use crate::amd::queue::Kind;
use crate::amd::session::{DebugSession, Outcome, QueueKey, SessionError};
use crate::controller::{Disconnected, PendingCompletion};
use crate::worker_thread::timespec;

/// How often the loop checks for threads that are blocked in `DESTROY_QUEUE`.
const LOOK: Duration = Duration::from_millis(100);
/// How long a process with queues may have no runtime before the session is given up.
const RUNTIME_WAIT: Duration = Duration::from_secs(10);

struct DebugSessionLoop<'a> {
    control: &'a ProcessControl,
    session: DebugSession,
    blocked_destroys: BlockedDestroys,
    suspended: BTreeSet<QueueKey>,
    /// Whether there are queues that could be suspended if there were a runtime.
    has_queues: bool,
    lacks_runtime_since: Option<Instant>,
    /// Set if listing the queues failed and is to be repeated; its value is `fresh` of the report.
    unlisted: Option<bool>,
    /// The last check for blocked `DESTROY_QUEUE` calls.
    looked: Instant,
}

impl ProcessControl {
    /// Runs until the worker is to end or the session ends.
    pub(super) fn run_session(&self, session: DebugSession) -> Result<Next, Disconnected> {
        // If this program is stopped, the keeper ends the session, which resumes every queue.
        let act = AmdChange::Session { site: self.instance.name.clone() }.into();
        if let Err(error) = self.undo_log.perform(self.process, &act, false) {
            let sentence = format!("process {} is not controlled: {error}", self.process);
            return Ok(Next::Wait(sentence));
        }
        let blocked_destroys = BlockedDestroys::of(&self.instance, self.process.pid);
        let suspended = BTreeSet::new();
        let mut held = DebugSessionLoop {
            control: self,
            session,
            blocked_destroys,
            suspended,
            has_queues: false,
            lacks_runtime_since: None,
            unlisted: None,
            looked: Instant::now(),
        };
        held.list(true)?;
        let next = held.work()?;
        if let Err(error) = held.session.detach() {
            self.reports.send(Report::Problem(error.to_string()))?;
        }
        Ok(next)
    }
}

impl DebugSessionLoop<'_> {
    fn work(&mut self) -> Result<Next, Disconnected> {
        loop {
            let lacks_runtime = self.has_queues && self.session.runtime() == RuntimeState::Disabled;
            let since = self.lacks_runtime_since.filter(|_| lacks_runtime);
            self.lacks_runtime_since = lacks_runtime.then(|| since.unwrap_or_else(Instant::now));
            let has_missed = self.session.has_missed() || self.unlisted.is_some();
            let wait = match (has_missed || !self.suspended.is_empty(), lacks_runtime) {
                (true, _) => Some(timespec(LOOK)),
                (false, true) => Some(timespec(RUNTIME_WAIT)),
                (false, false) => None,
            };
            let mut fds = [
                PollFd::new(&self.control.jobs, PollFlags::IN),
                PollFd::new(&self.session, PollFlags::IN),
            ];
            match poll(&mut fds, wait.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Ok(Next::Wait(format!("{}: poll: {errno}", self.name()))),
            }
            let (has_jobs, has_events) =
                (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            let is_due = self.looked.elapsed() >= LOOK;
            if (has_events || (is_due && self.session.has_missed()))
                && let Some(next) = self.take_events()?
            {
                return Ok(next);
            }
            if is_due && let Some(fresh) = self.unlisted {
                self.list(fresh)?;
            }
            if has_jobs && self.take_jobs()? {
                return Ok(Next::End);
            }
            // By the clock: a process whose queues change all the time never leaves the poll idle.
            if is_due {
                self.looked = Instant::now();
                self.free_awaited()?;
            }
            if self.lacks_runtime_since.is_some_and(|since| since.elapsed() >= RUNTIME_WAIT) {
                let why = format!("{} has no ROCm runtime that a debugger could use", self.name());
                return Ok(Next::PauseProcess { why, may_change: false });
            }
        }
    }

    fn name(&self) -> String {
        format!("process {}", self.control.process)
    }

    /// Returns what to do next, if the session is over.
    fn take_events(&mut self) -> Result<Option<Next>, Disconnected> {
        let has_missed = self.session.has_missed();
        let happened = match self.session.handle_events() {
            Ok(happened) => happened,
            Err(SessionError::Over(_)) => return Ok(Some(Next::Again)),
            // Tried again, and reported once.
            Err(_) if has_missed => return Ok(None),
            Err(error) => {
                self.control.reports.send(Report::Problem(error.to_string()))?;
                return Ok(None);
            }
        };
        if happened.is_over {
            return Ok(Some(Next::Again));
        }
        if matches!(happened.runtime, Some(RuntimeState::Busy | RuntimeState::Failed)) {
            let why = SessionError::Busy(self.control.process.pid).to_string();
            return Ok(Some(Next::PauseProcess { why, may_change: true }));
        }
        if happened.queues || happened.runtime.is_some() {
            // The kernel resumed every queue when the runtime was unregistered.
            let fresh = happened.runtime == Some(RuntimeState::Disabled);
            self.list(fresh)?;
        }
        Ok(None)
    }

    /// Returns whether the worker is to end.
    fn take_jobs(&mut self) -> Result<bool, Disconnected> {
        let Some(jobs) = self.control.gather() else { return Ok(false) };
        if !jobs.stops.is_empty() {
            let outcomes = self.session.suspend_named(&names(&jobs.stops), 0);
            self.note(&jobs.stops, &outcomes, true);
            self.tell(&jobs.stops, &outcomes)?;
        }
        if !jobs.resumes.is_empty() {
            let outcomes = self.session.resume_named(&names(&jobs.resumes));
            self.note(&jobs.resumes, &outcomes, false);
            self.tell(&jobs.resumes, &outcomes)?;
        }
        Ok(jobs.is_over)
    }

    fn note(
        &mut self,
        jobs: &[Job],
        outcomes: &Result<Vec<Outcome>, SessionError>,
        are_stops: bool,
    ) {
        let Ok(outcomes) = outcomes else { return };
        for (job, outcome) in jobs.iter().zip(outcomes) {
            if are_stops && *outcome == Outcome::Done {
                self.suspended.insert(job.key);
            } else if *outcome != Outcome::Failed {
                self.suspended.remove(&job.key);
            }
        }
    }

    /// Resumes suspended queues for which a thread is blocked in `DESTROY_QUEUE`, so that the call
    /// completes.
    fn free_awaited(&mut self) -> Result<(), Disconnected> {
        if self.suspended.is_empty() {
            return Ok(());
        }
        let Self { session, blocked_destroys, suspended, .. } = self;
        let awaited = blocked_destroys.awaited(session, suspended);
        if awaited.is_empty() {
            return Ok(());
        }
        match self.session.resume_named(&awaited) {
            Ok(_) => {
                self.suspended.retain(|name| !awaited.contains(name));
                // They run now, even if the call did not destroy them, so they are reported as new.
                self.session.rename(&awaited);
                self.list(false)?;
            }
            Err(error) if error.is_over() => {}
            Err(error) => self.control.reports.send(Report::Problem(error.to_string()))?,
        }
        Ok(())
    }

    /// Reports the result of every job.
    fn tell(
        &self,
        jobs: &[Job],
        outcomes: &Result<Vec<Outcome>, SessionError>,
    ) -> Result<(), Disconnected> {
        if let Err(error) = outcomes
            && !error.is_over()
        {
            self.control.reports.send(Report::Problem(error.to_string()))?;
        }
        for (index, job) in jobs.iter().enumerate() {
            let result = match outcomes {
                Ok(outcomes) => match outcomes.get(index) {
                    Some(Outcome::Done) => Ok(()),
                    Some(Outcome::Failed) => Err(Fault::Refused(0)),
                    Some(Outcome::Gone) | None => Err(Fault::Gone),
                },
                // Without a session no queue is suspended.
                Err(error) if error.is_over() => match job.awaited {
                    PendingCompletion::Resume(_) => Ok(()),
                    PendingCompletion::Preempt(_) => Err(Fault::Gone),
                },
                Err(SessionError::Refused(_, Errno::TIME | Errno::TIMEDOUT)) => {
                    Err(Fault::TimedOut)
                }
                Err(SessionError::Refused(_, errno)) => {
                    Err(Fault::Refused(errno.raw_os_error().unsigned_abs()))
                }
                Err(_) => Err(Fault::Refused(0)),
            };
            self.control.answer(std::slice::from_ref(job), result)?;
        }
        Ok(())
    }

    fn list(&mut self, fresh: bool) -> Result<(), Disconnected> {
        let control = self.control;
        match self.session.queues() {
            Ok(entries) => {
                self.unlisted = None;
                let session = &self.session;
                let is_there = |name: &QueueKey| {
                    let mut names = entries.iter().map(|entry| session.key_of(entry.queue_id));
                    names.any(|other| other == *name)
                };
                self.suspended.retain(|name| !fresh && is_there(name));
                let is_ours =
                    |entry: &QueueEntry| Kind::of_snapshot(entry.queue_type) == Kind::Compute;
                let listed = |entry: QueueEntry| {
                    StopUnit::queue(session.key_of(entry.queue_id).generation, entry)
                };
                let queues: Vec<StopUnit> =
                    entries.into_iter().filter(is_ours).map(listed).collect();
                self.has_queues = !queues.is_empty();
                control.reports.send(Report::Queues { task: control.task, queues, fresh })
            }
            // The end of the session is reported by `take_events`.
            Err(error) if error.is_over() => Ok(()),
            Err(error) => {
                // Tried again, and reported once.
                let before = self.unlisted.replace(fresh || self.unlisted == Some(true));
                match before {
                    Some(_) => Ok(()),
                    None => control.reports.send(Report::Problem(error.to_string())),
                }
            }
        }
    }
}

fn names(jobs: &[Job]) -> Vec<QueueKey> {
    jobs.iter().map(|job| job.key).collect()
}
