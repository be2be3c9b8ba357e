//! What a worker does with its session.
//!
//! Commands for the queues of a process come one by one within microseconds, and a call costs every
//! queue of the device a switch, however many queues it names. So what comes together is done in
//! one call.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::report::{Listed, Report};
use super::worker::{Hands, Job, Next, timespec};
use crate::amd::abi::trap::{QueueEntry, RuntimeState};
use crate::amd::act::AmdAct;
use crate::amd::destroyer::Destroyers;
use crate::amd::queue::Kind;
use crate::amd::session::{Outcome, QueueName, Session, SessionError};
use crate::controller::{Alone, Awaited};

/// How often it is looked whether a process waits for a queue that is suspended.
const LOOK: Duration = Duration::from_millis(100);
/// How long a process with queues may be without a runtime before it is taken to have none.
const RUNTIME_WAIT: Duration = Duration::from_secs(10);

/// A session in use.
struct Use<'a> {
    hands: &'a Hands,
    session: Session,
    destroyers: Destroyers,
    /// What we suspended.
    suspended: BTreeSet<QueueName>,
    /// Whether there are queues that could be suspended if there were a runtime.
    has_queues: bool,
    /// Since when there are such queues and no runtime.
    lacks_runtime_since: Option<Instant>,
    /// Set if the queues could not be listed, which is tried again; whether none was off by then.
    unlisted: Option<bool>,
    /// When it was last looked whether somebody waits for a suspended queue.
    looked: Instant,
}

impl Hands {
    /// Until it is told to end, or the session does.
    pub(super) fn hold_session(&self, session: Session) -> Result<Next, Alone> {
        // Should we stand still, our keeper ends the session, and with it every suspension.
        let act = AmdAct::Session { site: self.site.name.clone() }.into();
        if let Err(error) = self.ledger.perform(self.process, &act, false) {
            let sentence = format!("process {} is left alone: {error}", self.process);
            return Ok(Next::Wait(sentence));
        }
        let destroyers = Destroyers::of(&self.site, self.process.pid);
        let suspended = BTreeSet::new();
        let mut held = Use {
            hands: self,
            session,
            destroyers,
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

impl Use<'_> {
    fn work(&mut self) -> Result<Next, Alone> {
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
                PollFd::new(&self.hands.waker, PollFlags::IN),
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
            // By the clock: a process whose queues come and go all the time is never quiet.
            if is_due {
                self.looked = Instant::now();
                self.free_awaited()?;
            }
            if self.lacks_runtime_since.is_some_and(|since| since.elapsed() >= RUNTIME_WAIT) {
                let why = format!("{} has no ROCm runtime that a debugger could use", self.name());
                return Ok(Next::Whole { why, may_change: false });
            }
        }
    }

    fn name(&self) -> String {
        format!("process {}", self.hands.process)
    }

    /// Says what comes next, if the session is over.
    fn take_events(&mut self) -> Result<Option<Next>, Alone> {
        let has_missed = self.session.has_missed();
        let happened = match self.session.handle_events() {
            Ok(happened) => happened,
            Err(SessionError::Over(_)) => return Ok(Some(Next::Again)),
            // It is tried again, and said once.
            Err(_) if has_missed => return Ok(None),
            Err(error) => {
                self.hands.reports.send(Report::Problem(error.to_string()))?;
                return Ok(None);
            }
        };
        if happened.is_over {
            return Ok(Some(Next::Again));
        }
        if matches!(happened.runtime, Some(RuntimeState::Busy | RuntimeState::Failed)) {
            let why = SessionError::Busy(self.hands.process.pid).to_string();
            return Ok(Some(Next::Whole { why, may_change: true }));
        }
        if happened.queues || happened.runtime.is_some() {
            // A runtime that ended has resumed everything on its way out.
            let fresh = happened.runtime == Some(RuntimeState::Disabled);
            self.list(fresh)?;
        }
        Ok(None)
    }

    /// Says whether it is to end.
    fn take_jobs(&mut self) -> Result<bool, Alone> {
        let Some(jobs) = self.hands.gather() else { return Ok(false) };
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

    /// Remembers what is suspended now.
    fn note(
        &mut self,
        jobs: &[Job],
        outcomes: &Result<Vec<Outcome>, SessionError>,
        are_stops: bool,
    ) {
        let Ok(outcomes) = outcomes else { return };
        for (job, outcome) in jobs.iter().zip(outcomes) {
            if are_stops && *outcome == Outcome::Done {
                self.suspended.insert(job.name);
            } else if *outcome != Outcome::Failed {
                self.suspended.remove(&job.name);
            }
        }
    }

    /// Whoever waits in the kernel to destroy a queue that is suspended does not have to: it is
    /// resumed, and gone the moment after.
    fn free_awaited(&mut self) -> Result<(), Alone> {
        if self.suspended.is_empty() {
            return Ok(());
        }
        let Self { session, destroyers, suspended, .. } = self;
        let awaited = destroyers.awaited(session, suspended);
        if awaited.is_empty() {
            return Ok(());
        }
        match self.session.resume_named(&awaited) {
            Ok(_) => {
                self.suspended.retain(|name| !awaited.contains(name));
                // They run now. Whoever only seemed to want that is not gone the moment after.
                self.session.rename(&awaited);
                self.list(false)?;
            }
            Err(error) if error.is_over() => {}
            Err(error) => self.hands.reports.send(Report::Problem(error.to_string()))?,
        }
        Ok(())
    }

    /// Tells what became of every job.
    fn tell(
        &self,
        jobs: &[Job],
        outcomes: &Result<Vec<Outcome>, SessionError>,
    ) -> Result<(), Alone> {
        if let Err(error) = outcomes
            && !error.is_over()
        {
            self.hands.reports.send(Report::Problem(error.to_string()))?;
        }
        for (index, job) in jobs.iter().enumerate() {
            let result = match outcomes {
                Ok(outcomes) => match outcomes.get(index) {
                    Some(Outcome::Done) => Ok(()),
                    Some(Outcome::Failed) => Err(Fault::Refused(0)),
                    Some(Outcome::Gone) | None => Err(Fault::Gone),
                },
                // Without a session nothing is suspended.
                Err(error) if error.is_over() => match job.awaited {
                    Awaited::Resume(_) => Ok(()),
                    Awaited::Preempt(_) => Err(Fault::Gone),
                },
                Err(SessionError::Refused(_, Errno::TIME | Errno::TIMEDOUT)) => {
                    Err(Fault::TimedOut)
                }
                Err(SessionError::Refused(_, errno)) => {
                    Err(Fault::Refused(errno.raw_os_error().unsigned_abs()))
                }
                Err(_) => Err(Fault::Refused(0)),
            };
            self.hands.answer(std::slice::from_ref(job), result)?;
        }
        Ok(())
    }

    fn list(&mut self, fresh: bool) -> Result<(), Alone> {
        let hands = self.hands;
        match self.session.queues() {
            Ok(entries) => {
                self.unlisted = None;
                let session = &self.session;
                let is_there = |name: &QueueName| {
                    let mut names = entries.iter().map(|entry| session.name(entry.queue_id));
                    names.any(|other| other == *name)
                };
                self.suspended.retain(|name| !fresh && is_there(name));
                let is_ours =
                    |entry: &QueueEntry| Kind::of_snapshot(entry.queue_type) == Kind::Compute;
                let listed =
                    |entry: QueueEntry| Listed::queue(session.name(entry.queue_id).epoch, entry);
                let queues: Vec<Listed> = entries.into_iter().filter(is_ours).map(listed).collect();
                self.has_queues = !queues.is_empty();
                hands.reports.send(Report::Queues { task: hands.task, queues, fresh })
            }
            // That it is over shows by itself.
            Err(error) if error.is_over() => Ok(()),
            Err(error) => {
                // It is tried again, and said once.
                let before = self.unlisted.replace(fresh || self.unlisted == Some(true));
                match before {
                    Some(_) => Ok(()),
                    None => hands.reports.send(Report::Problem(error.to_string())),
                }
            }
        }
    }
}

fn names(jobs: &[Job]) -> Vec<QueueName> {
    jobs.iter().map(|job| job.name).collect()
}
