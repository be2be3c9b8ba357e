//! A thread for each process, which makes the calls there.
//!
//! ```text
//! attach ─ ok ─> session ─ over, and it lives ─> attach
//!    │              └─ the device has no room ─> whole
//!    ├─ this way is closed ─> whole ─ now and then, while it runs ─> attach
//!    └─ somebody else has it, or we may not ─> wait ─> attach
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backoff::Backoff;
use super::mqds::Dumps;
use super::report::Report;
use crate::amd::Site;
use crate::amd::session::{AttachError, QueueName, Session};
use crate::controller::{Alone, Awaited, Limit, Reporter, Waker};
use crate::ledger::Ledger;
use crate::process::ProcessKey;

/// How long more commands are waited for when one has come.
const GATHER: Duration = Duration::from_micros(100);
/// How often it is looked whether a worker has ended.
const LOOK: Duration = Duration::from_millis(2);

/// One thing to do to one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// Which one: what has its number later is another.
    pub(super) name: QueueName,
    /// Its device.
    pub(super) gpu_id: u32,
    /// What, and whom to tell.
    pub(super) awaited: Awaited,
}

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    waker: Waker,
    /// Set when somebody waits for its end.
    is_awaited: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts one that takes a process under control, as soon as the one before has let go of it.
    ///
    /// # Errors
    /// If there are no more threads or descriptors.
    pub(super) fn start(
        (site, ledger, dumps): (Site, Ledger, Dumps),
        (task, process): (TaskId, ProcessKey),
        before: Option<Self>,
        reports: Reporter<Report>,
    ) -> io::Result<Self> {
        let (jobs, incoming) = channel();
        let waker = Waker::new()?;
        let is_awaited = Arc::new(AtomicBool::new(false));
        let hands = Hands {
            site,
            ledger,
            dumps,
            task,
            process,
            reports,
            incoming,
            waker: waker.clone(),
            is_awaited: Arc::clone(&is_awaited),
        };
        let thread = std::thread::Builder::new().name("amd process".into()).spawn(move || {
            let is_over = hands.wait_for(before).unwrap_or(true);
            // Whoever started us ends us when nobody listens any more.
            let _ = hands.run(is_over);
        })?;
        Ok(Self { jobs: Some(jobs), waker, is_awaited, thread: Some(thread) })
    }

    /// Gives it something to do. Says whether it will be.
    pub(super) fn give(&self, job: Job) -> bool {
        let is_given = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        self.waker.wake();
        is_given
    }

    /// Tells it to put its process back as it was, and to end.
    pub(super) fn end(&mut self) {
        self.jobs = None;
        self.waker.wake();
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The same, and not to try for long what does not work: somebody waits for it.
    fn end_soon(&mut self) {
        // ORDERING: it is looked at again and again, and nothing else depends on it.
        self.is_awaited.store(true, Ordering::Relaxed);
        self.end();
    }

    /// Waits for its end until then. Says whether it has ended: a call of the kernel's about its
    /// process may never return.
    pub(super) fn has_ended_by(&mut self, end: Instant) -> bool {
        self.end_soon();
        while !self.has_ended() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// What the thread works with.
pub(super) struct Hands {
    pub(super) site: Site,
    pub(super) ledger: Ledger,
    pub(super) dumps: Dumps,
    pub(super) task: TaskId,
    pub(super) process: ProcessKey,
    pub(super) reports: Reporter<Report>,
    incoming: Receiver<Job>,
    pub(super) waker: Waker,
    is_awaited: Arc<AtomicBool>,
}

/// How something ended, and what comes next.
#[derive(Debug)]
pub(super) enum Next {
    /// The end, because somebody wants it or the process is gone.
    End,
    /// From the beginning.
    Again,
    /// The whole process instead of its queues, and why. `may_change` if that may be different
    /// later.
    Whole { why: String, may_change: bool },
    /// Nothing can be done, and why; from the beginning after a while.
    Wait(String),
}

/// Jobs that came together.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) stops: Vec<Job>,
    pub(super) resumes: Vec<Job>,
    /// Nobody will say anything any more.
    pub(super) is_over: bool,
}

impl Gathered {
    /// Those for which something is so, and the others.
    pub(super) fn split(self, is_so: impl Fn(&Job) -> bool) -> (Self, Self) {
        let (stops, other_stops) = self.stops.into_iter().partition(&is_so);
        let (resumes, other_resumes) = self.resumes.into_iter().partition(&is_so);
        let others = Self { stops: other_stops, resumes: other_resumes, is_over: self.is_over };
        (Self { stops, resumes, is_over: self.is_over }, others)
    }
}

impl Hands {
    /// Waits until somebody else has let go of the process. Says whether it is to end before that.
    fn wait_for(&self, before: Option<Worker>) -> Result<bool, Alone> {
        let Some(mut before) = before else { return Ok(false) };
        before.end_soon();
        let mut is_over = false;
        // Not even to end sooner: whoever comes after us may not begin before it has ended.
        while !before.has_ended() {
            if is_over {
                std::thread::sleep(LOOK);
            } else {
                is_over = self.wait(LOOK)?;
            }
        }
        Ok(is_over)
    }

    /// Until it is told to end, which it may be already.
    fn run(self, is_over: bool) -> Result<(), Alone> {
        let end = if is_over { Ok(()) } else { self.control() };
        // What was said of it is no longer true of anybody.
        let _ = self.reports.send(Report::Solved(self.process.pid));
        // Whatever happened, nothing of ours stays in the process, and what is written down goes.
        self.put_back()?;
        end?;
        // Jobs that came meanwhile are answered, before anybody hears of the end.
        self.answer_all(&self.gather().unwrap_or_default())?;
        self.reports.send(Report::Over(self.task))
    }

    fn control(&self) -> Result<(), Alone> {
        // A worker before us may have crossed it out.
        if let Err(error) = self.ledger.claim(self.process) {
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
                        let next = self.hold_session(session)?;
                        // Somebody may have taken it over; not too often.
                        let is_lost = matches!(next, Next::Again) && self.process.check().is_ok();
                        if is_lost && self.wait(backoff.next())? { Next::End } else { next }
                    }
                    Err(next) => next,
                },
                Next::Whole { why, may_change } => self.control_whole(&why, may_change)?,
                Next::Wait(problem) => {
                    let limit = Limit { sentence: problem.clone(), is_beyond: true };
                    self.reports.send(Report::Limit(self.task, Some(limit)))?;
                    self.reports.send(Report::Problem(problem))?;
                    if self.wait(backoff.next())? { Next::End } else { Next::Again }
                }
            };
            if self.process.check().is_err() {
                return Ok(());
            }
        }
    }

    /// Lets the process on if it is paused still: whoever had it before us could not do that, or we
    /// could not.
    fn end_left_pause(&self) -> Result<(), Next> {
        let pause = self.pause_act();
        if !self.ledger.has(self.process, &pause) {
            return Ok(());
        }
        match self.ledger.perform(self.process, &pause, true) {
            Err(error) if !error.is_gone() => {
                Err(Next::Wait(format!("process {} is paused still: {error}", self.process)))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn attach(&self) -> Result<Session, Next> {
        Session::attach(self.site.door.clone(), self.process).map_err(|error| {
            let why = error.to_string();
            if error.allows_pause() {
                Next::Whole { why, may_change: error.may_change() }
            } else if matches!(error, AttachError::Gone(_)) {
                Next::End
            } else {
                Next::Wait(why)
            }
        })
    }

    /// Nothing is in the way any more.
    fn free_of_limits(&self) -> Result<(), Alone> {
        self.reports.send(Report::Solved(self.process.pid))?;
        self.reports.send(Report::Limit(self.task, None))
    }

    /// Puts the process back as it was. Somebody may trace it, and then it is tried for as long as
    /// nobody waits for us; whoever does tries it again.
    fn put_back(&self) -> Result<(), Alone> {
        const TRIES: u32 = 20;
        const PAUSE: Duration = Duration::from_millis(50);
        for tries in 0.. {
            let Err(problem) = self.ledger.undo_process(self.process) else {
                // What was said of it is not so any more.
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

    /// Waits. Says whether it is to end.
    pub(super) fn wait(&self, time: Duration) -> Result<bool, Alone> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if !self.is_woken(left) {
                continue;
            }
            let jobs = self.gather().unwrap_or_default();
            self.answer_all(&jobs)?;
            if jobs.is_over {
                return Ok(true);
            }
        }
    }

    /// Waits for jobs, for so long. Says whether there may be some.
    pub(super) fn is_woken(&self, time: Duration) -> bool {
        let mut fds = [PollFd::new(&self.waker, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(time))).is_ok_and(|ready| ready > 0)
    }

    /// The jobs that came together, if there are any or there will be none.
    pub(super) fn gather(&self) -> Option<Gathered> {
        self.waker.clear();
        std::thread::sleep(GATHER);
        let mut gathered = Gathered::default();
        loop {
            match self.incoming.try_recv() {
                Ok(job) if matches!(job.awaited, Awaited::Preempt(_)) => gathered.stops.push(job),
                Ok(job) => gathered.resumes.push(job),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    gathered.is_over = true;
                    break;
                }
            }
        }
        let is_empty = gathered.stops.is_empty() && gathered.resumes.is_empty();
        (!is_empty || gathered.is_over).then_some(gathered)
    }

    /// Answers jobs of a process that is not under control: nothing is stopped in it.
    pub(super) fn answer_all(&self, jobs: &Gathered) -> Result<(), Alone> {
        self.answer(&jobs.stops, Err(Fault::Gone))?;
        self.answer(&jobs.resumes, Ok(()))
    }

    /// Answers jobs, all in the same way.
    pub(super) fn answer(&self, jobs: &[Job], result: Result<(), Fault>) -> Result<(), Alone> {
        jobs.iter().try_for_each(|job| self.reports.send(Report::Event(job.awaited.event(result))))
    }
}

pub(super) fn timespec(time: Duration) -> Timespec {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() }
}
