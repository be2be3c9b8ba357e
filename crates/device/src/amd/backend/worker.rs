//! A thread that has the session with one process, and makes the calls there.
//!
//! Commands for the queues of a process come one by one within microseconds, and a call costs every
//! queue of the device a switch, however many queues it names. So what comes together is done in
//! one call.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::report::Report;
use crate::amd::abi::trap::RuntimeState;
use crate::amd::door::Door;
use crate::amd::session::{Outcome, Session, SessionError};
use crate::controller::{Alone, Awaited, Reporter, Waker};

/// How long more commands are waited for when one has come.
const GATHER: Duration = Duration::from_micros(100);

/// One thing to do to one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// The queue's name in its process.
    pub(super) queue: u32,
    /// What, and whom to tell.
    pub(super) awaited: Awaited,
}

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts one that begins a session with a process.
    ///
    /// # Errors
    /// If there are no more threads or descriptors.
    pub(super) fn start(
        door: Arc<dyn Door>,
        task: TaskId,
        pid: u32,
        reports: Reporter<Report>,
    ) -> io::Result<Self> {
        let (jobs, incoming) = channel();
        let waker = Waker::new()?;
        let hands = Hands { task, reports, incoming, waker: waker.clone() };
        let thread = std::thread::Builder::new().name("amd process".into()).spawn(move || {
            // Whoever started us ends us when nobody listens any more.
            let _ = hands.attach(door, pid);
        })?;
        Ok(Self { jobs: Some(jobs), waker, thread: Some(thread) })
    }

    /// Gives it something to do. Says whether it will be.
    pub(super) fn give(&self, job: Job) -> bool {
        let is_given = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        self.waker.wake();
        is_given
    }

    /// Tells it to end its session, and itself. What is suspended is resumed by that.
    pub(super) fn end(&mut self) {
        self.jobs = None;
        self.waker.wake();
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end.
    pub(super) fn join(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Hands {
    task: TaskId,
    reports: Reporter<Report>,
    incoming: Receiver<Job>,
    waker: Waker,
}

impl Hands {
    fn attach(self, door: Arc<dyn Door>, pid: u32) -> Result<(), Alone> {
        match Session::attach(door, pid) {
            Ok(mut session) => {
                self.list(&mut session, true)?;
                self.work(&mut session)?;
                if let Err(error) = session.detach() {
                    self.reports.send(Report::Problem(error.to_string()))?;
                }
            }
            Err(error) => self.reports.send(Report::Problem(error.to_string()))?,
        }
        // Jobs that came meanwhile are answered, before anybody hears of the end.
        let rest: Vec<Job> = self.incoming.try_iter().collect();
        self.tell(&rest, &Err(SessionError::Over(pid)))?;
        self.reports.send(Report::Over(self.task))
    }

    /// Until it is told to end, or the session does.
    fn work(&self, session: &mut Session) -> Result<(), Alone> {
        loop {
            let mut fds =
                [PollFd::new(&self.waker, PollFlags::IN), PollFd::new(session, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    return self.reports.send(Report::Problem(format!("poll: {errno}")));
                }
            }
            let (has_jobs, has_events) =
                (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if has_events && self.take_events(session)? {
                return Ok(());
            }
            if has_jobs && self.take_jobs(session)? {
                return Ok(());
            }
        }
    }

    /// Says whether the session is over.
    fn take_events(&self, session: &mut Session) -> Result<bool, Alone> {
        match session.handle_events() {
            Ok(happened) if happened.is_over => return Ok(true),
            Ok(happened) if happened.queues || happened.runtime.is_some() => {
                // A runtime that ended has resumed everything on its way out.
                let fresh = happened.runtime == Some(RuntimeState::Disabled);
                self.list(session, fresh)?;
            }
            Ok(_) => {}
            Err(SessionError::Over(_)) => return Ok(true),
            Err(error) => self.reports.send(Report::Problem(error.to_string()))?,
        }
        Ok(false)
    }

    /// Says whether it is to end.
    fn take_jobs(&self, session: &mut Session) -> Result<bool, Alone> {
        self.waker.clear();
        std::thread::sleep(GATHER);
        let mut jobs = Vec::new();
        let is_over = loop {
            match self.incoming.try_recv() {
                Ok(job) => jobs.push(job),
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        let (stops, resumes): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| matches!(job.awaited, Awaited::Preempt(_)));
        let names = |jobs: &[Job]| jobs.iter().map(|job| job.queue).collect::<Vec<u32>>();
        if !stops.is_empty() {
            let outcomes = session.suspend(&names(&stops), 0);
            self.tell(&stops, &outcomes)?;
        }
        if !resumes.is_empty() {
            let outcomes = session.resume(&names(&resumes));
            self.tell(&resumes, &outcomes)?;
        }
        Ok(is_over)
    }

    /// Tells what became of every job.
    fn tell(
        &self,
        jobs: &[Job],
        outcomes: &Result<Vec<Outcome>, SessionError>,
    ) -> Result<(), Alone> {
        if let Err(error) = outcomes
            && !error.is_over()
            && !jobs.is_empty()
        {
            self.reports.send(Report::Problem(error.to_string()))?;
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
                Err(_) => Err(Fault::Refused(0)),
            };
            self.reports.send(Report::Event(job.awaited.event(result)))?;
        }
        Ok(())
    }

    fn list(&self, session: &mut Session, fresh: bool) -> Result<(), Alone> {
        match session.queues() {
            Ok(queues) => self.reports.send(Report::Queues { task: self.task, queues, fresh }),
            // That it is over shows by itself.
            Err(error) if error.is_over() => Ok(()),
            Err(error) => self.reports.send(Report::Problem(error.to_string())),
        }
    }
}
