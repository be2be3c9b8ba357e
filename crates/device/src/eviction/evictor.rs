//! The daemon's side of evictions: jobs in threads, and their reports to the loop.
//!
//! A thread records each process of its job in the journal, then gives the order to an evictor
//! program and reads its lines. The loop never waits. If the program is killed, the thread has
//! another one recover; if the daemon is killed, the keeper does.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::adoption::{self, AdoptError, LeftEviction};
use super::change::{EvictChange, Member};
use super::child::{EvictorChild, program};
use super::measure::measure;
use super::order::{Line, Order, Outcome, Task};
use super::{EvictTarget, Step};
use crate::controller::Waker;
use crate::journal::GpuChange;
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;

/// The longest time for which the driver waits for kernels.
pub const LOCK_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Programs without an order that are kept: starting one initialises libcuda.
const IDLE_MAX: usize = 2;
/// How long such a program is kept.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// How often a thread tries to recover after its program was killed.
const RECOVERIES: u32 = 3;

/// A set of processes that are evicted together: all are locked before any is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictJob {
    /// Chosen by the owner.
    pub id: u64,
    pub processes: Vec<EvictTarget>,
    /// How long the driver waits for the kernels of each process.
    pub lock_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictorReport {
    Step {
        id: u64,
        step: Step,
    },
    /// All processes that live are evicted. `bytes` is 0 if it is not known.
    Evicted {
        id: u64,
        bytes: u64,
        took: Duration,
    },
    /// If it is undone, the processes run and have no record. Otherwise call
    /// [`Evictor::restore`] later.
    EvictFailed {
        id: u64,
        sentence: String,
        is_undone: bool,
    },
    /// The processes run, and have no record.
    Restored {
        id: u64,
        took: Duration,
    },
    /// The processes are still evicted. Call [`Evictor::restore`] later.
    RestoreFailed {
        id: u64,
        why: NotRestored,
    },
    /// All processes of the job have ended.
    Gone {
        id: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRestored {
    NoRoom { needed: u64, free: u64 },
    Other(String),
}

/// Carries out an order, and passes on what is reported meanwhile.
pub(super) type Launch = dyn Fn(&Order, &mut dyn FnMut(Line)) -> io::Result<Outcome> + Send + Sync;
/// What has to be known of a process before it is evicted.
pub(super) type Measure = dyn Fn(&EvictTarget) -> Result<Member, String> + Send + Sync;

/// The evictions of one owner.
pub struct Evictor {
    shared: Arc<Shared>,
    is_over: Arc<AtomicBool>,
    jobs: BTreeMap<u64, Job>,
    messages: Receiver<Message>,
}

#[derive(Clone, Debug)]
struct Job {
    processes: Vec<ProcessKey>,
    /// None until it is recorded.
    change: Option<EvictChange>,
    is_busy: bool,
    /// Why no restore can succeed while all of its processes live.
    lost: Option<String>,
}

impl Job {
    fn lives(&self) -> bool {
        self.processes.iter().all(|process| process.check().is_ok())
    }
}

struct Shared {
    undo_log: UndoLog,
    waker: Waker,
    sender: Sender<Message>,
    launch: Box<Launch>,
    measure: Box<Measure>,
}

enum Message {
    Report(EvictorReport),
    /// The job, if there is one of that id, is as before.
    Refused(EvictorReport),
    /// A thread has recorded what it is about to do.
    Recorded(u64, EvictChange),
    /// The driver refuses to restore a process for as long as it lives.
    Lost(u64, String),
}

impl fmt::Debug for Evictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evictor").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl Evictor {
    /// `program` replaces the program beside this one.
    pub fn new(undo_log: UndoLog, waker: Waker, program: Option<PathBuf>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let programs = Programs { program, is_over: Arc::clone(&is_over), ..Programs::default() };
        let launch = move |order: &Order, take: &mut dyn FnMut(Line)| programs.run(order, take);
        let mut evictor = Self::with(undo_log, waker, Box::new(launch), Box::new(measure));
        evictor.is_over = is_over;
        evictor
    }

    pub(super) fn with(
        undo_log: UndoLog,
        waker: Waker,
        launch: Box<Launch>,
        measure: Box<Measure>,
    ) -> Self {
        let (sender, messages) = channel();
        let shared = Arc::new(Shared { undo_log, waker, sender, launch, measure });
        Self { shared, is_over: Arc::default(), jobs: BTreeMap::new(), messages }
    }

    /// Evicts the processes of a job. They must not be changed otherwise: released by their
    /// controllers, resumed, without other records.
    pub fn evict(&mut self, job: EvictJob) {
        let id = job.id;
        let processes: Vec<ProcessKey> = job.processes.iter().map(|target| target.key).collect();
        // A second record of a process would replace that of the first job.
        let is_known = |known: &Job| processes.iter().any(|key| known.processes.contains(key));
        if self.jobs.contains_key(&id) || self.jobs.values().any(is_known) {
            let sentence = "it is evicted already".to_owned();
            let report = EvictorReport::EvictFailed { id, sentence, is_undone: false };
            return self.shared.tell(Message::Refused(report));
        }
        self.jobs.insert(id, Job { processes, change: None, is_busy: true, lost: None });
        self.start(id, move |shared| shared.evict(&job));
    }

    /// Restores the processes of a job, if there is room. Also after a failure.
    pub fn restore(&mut self, id: u64) {
        let not = |sentence: &str| {
            let why = NotRestored::Other(sentence.to_owned());
            Message::Refused(EvictorReport::RestoreFailed { id, why })
        };
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.shared.tell(not("it is not evicted"));
        };
        let Some(change) = job.change.clone().filter(|_| !job.is_busy) else {
            return self.shared.tell(not("its memory is moving"));
        };
        if let Some(lost) = job.lost.take() {
            // The driver would only refuse it again.
            if job.lives() {
                let refused = not(&lost);
                job.lost = Some(lost);
                return self.shared.tell(refused);
            }
        }
        job.is_busy = true;
        self.start(id, move |shared| shared.restore(id, &change));
    }

    /// Takes over what a dead owner left, so that [`Self::restore`] restores it.
    pub fn adopt(&mut self, id: u64, left: &LeftEviction) -> Result<(), AdoptError> {
        let change = adoption::adopt(&self.shared.undo_log, left)?;
        let processes = change.members().iter().map(|member| member.process).collect();
        self.jobs.insert(id, Job { processes, change: Some(change), is_busy: false, lost: None });
        Ok(())
    }

    /// The next report.
    pub fn poll(&mut self) -> Option<EvictorReport> {
        loop {
            match self.messages.try_recv().ok()? {
                Message::Recorded(id, change) => {
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.change = Some(change);
                    }
                }
                Message::Lost(id, sentence) => {
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.lost = Some(sentence);
                    }
                }
                Message::Report(report) => {
                    self.note(&report);
                    return Some(report);
                }
                Message::Refused(report) => return Some(report),
            }
        }
    }

    fn note(&mut self, report: &EvictorReport) {
        let (id, is_over) = match *report {
            EvictorReport::Step { .. } => return,
            EvictorReport::Evicted { id, .. } | EvictorReport::RestoreFailed { id, .. } => {
                (id, false)
            }
            EvictorReport::EvictFailed { id, is_undone, .. } => (id, is_undone),
            EvictorReport::Restored { id, .. } | EvictorReport::Gone { id } => (id, true),
        };
        if is_over {
            self.jobs.remove(&id);
        } else if let Some(job) = self.jobs.get_mut(&id) {
            job.is_busy = false;
        }
    }

    fn start(&self, id: u64, work: impl FnOnce(&Shared) + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("gpreempt-evict".to_owned());
        if let Err(error) = thread.spawn(move || work(&shared)) {
            let is_recorded = self.jobs.get(&id).is_some_and(|job| job.change.is_some());
            let sentence = format!("no thread can be started: {error}");
            self.shared.report(match is_recorded {
                true => EvictorReport::RestoreFailed { id, why: NotRestored::Other(sentence) },
                false => EvictorReport::EvictFailed { id, sentence, is_undone: true },
            });
        }
    }
}

impl Drop for Evictor {
    /// Programs with an order end before their next call. What is evicted stays: its records are
    /// in the journal, for the keeper.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn report(&self, report: EvictorReport) {
        self.tell(Message::Report(report));
    }

    fn tell(&self, message: Message) {
        // The evictor may have been dropped.
        let _ = self.sender.send(message);
        self.waker.wake();
    }

    fn evict(&self, job: &EvictJob) {
        let (id, since) = (job.id, Instant::now());
        let report = match self.begin(job) {
            Err(sentence) => EvictorReport::EvictFailed { id, sentence, is_undone: true },
            Ok(change) => {
                self.tell(Message::Recorded(id, change.clone()));
                match self.run(id, Task::Evict, &change) {
                    Ok(Outcome::Done { bytes }) => {
                        EvictorReport::Evicted { id, bytes, took: since.elapsed() }
                    }
                    Ok(outcome) => self.failed(id, outcome, &change),
                    Err(error) => self.undo_after(id, &error, &change),
                }
            }
        };
        self.report(report);
    }

    /// Records the change for all processes, or for none.
    fn begin(&self, job: &EvictJob) -> Result<EvictChange, String> {
        let limit = job.lock_timeout.min(LOCK_TIMEOUT_MAX).as_millis();
        let lock_timeout_ms = u64::try_from(limit).unwrap_or(u64::MAX);
        let measured = job.processes.iter().map(|target| (self.measure)(target));
        let with_limit = |member: Member| Member { lock_timeout_ms, ..member };
        let members: Vec<Member> =
            measured.map(|member| member.map(with_limit)).collect::<Result<_, _>>()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let journal = self.undo_log.folder();
        let change = EvictChange::Evict { journal, members, since: now };
        self.record(&change)?;
        Ok(change)
    }

    fn record(&self, change: &EvictChange) -> Result<(), String> {
        for member in change.members() {
            let recorded = self.undo_log.record(member.process, &change.clone().into());
            recorded.map_err(|error| {
                self.forget(change);
                error.to_string()
            })?;
        }
        Ok(())
    }

    fn forget(&self, change: &EvictChange) {
        let recorded: GpuChange = change.clone().into();
        for member in change.members() {
            self.undo_log.forget(member.process, &recorded);
        }
    }

    fn run(&self, id: u64, task: Task, change: &EvictChange) -> io::Result<Outcome> {
        let EvictChange::Evict { journal, members, .. } = change;
        let order = Order { task, journal: Some(journal.clone()), members: members.clone() };
        (self.launch)(&order, &mut |line| {
            if let Line::Step { step } = line {
                self.report(EvictorReport::Step { id, step });
            }
        })
    }

    /// An eviction that did not succeed.
    fn failed(&self, id: u64, outcome: Outcome, change: &EvictChange) -> EvictorReport {
        let is_undone = match outcome {
            Outcome::Failed { is_undone, .. } => is_undone,
            // In the last case the keeper has taken the record, and undoes it.
            Outcome::Gone | Outcome::Stopped => true,
            Outcome::Done { .. } | Outcome::NoRoom { .. } | Outcome::Lost { .. } => false,
        };
        if is_undone {
            self.forget(change);
        }
        if outcome == Outcome::Gone {
            return EvictorReport::Gone { id };
        }
        EvictorReport::EvictFailed { id, sentence: outcome.to_string(), is_undone }
    }

    /// The program was killed, or could not be started.
    fn undo_after(&self, id: u64, error: &io::Error, change: &EvictChange) -> EvictorReport {
        let sentence = format!("{error}; nothing was evicted");
        match self.recover(id, change) {
            Ok(Outcome::Done { .. }) => {
                self.forget(change);
                EvictorReport::EvictFailed { id, sentence, is_undone: true }
            }
            Ok(Outcome::Gone) => self.failed(id, Outcome::Gone, change),
            Ok(outcome) => {
                EvictorReport::EvictFailed { id, sentence: outcome.to_string(), is_undone: false }
            }
            Err(other) => {
                let sentence = format!("{error}, and undoing it failed: {other}");
                EvictorReport::EvictFailed { id, sentence, is_undone: false }
            }
        }
    }

    fn restore(&self, id: u64, change: &EvictChange) {
        let since = Instant::now();
        let other = |sentence| NotRestored::Other(sentence);
        let report = match self.recover(id, change) {
            Ok(Outcome::Done { .. }) => {
                self.forget(change);
                EvictorReport::Restored { id, took: since.elapsed() }
            }
            Ok(Outcome::Gone) => {
                self.forget(change);
                EvictorReport::Gone { id }
            }
            Ok(Outcome::NoRoom { needed, free }) => {
                EvictorReport::RestoreFailed { id, why: NotRestored::NoRoom { needed, free } }
            }
            Ok(outcome) => {
                if let Outcome::Lost { sentence } = &outcome {
                    self.tell(Message::Lost(id, sentence.clone()));
                }
                EvictorReport::RestoreFailed { id, why: other(outcome.to_string()) }
            }
            Err(error) => EvictorReport::RestoreFailed { id, why: other(error.to_string()) },
        };
        self.report(report);
    }

    /// Recovers, and again if the program is killed meanwhile.
    fn recover(&self, id: u64, change: &EvictChange) -> io::Result<Outcome> {
        let task = Task::Recover { is_patient: false };
        let mut result = self.run(id, task, change);
        for _ in 1..RECOVERIES {
            if result.is_ok() {
                break;
            }
            result = self.run(id, task, change);
        }
        result
    }
}

/// Running evictor programs without an order.
#[derive(Debug, Default)]
struct Programs {
    program: Option<PathBuf>,
    idle: Mutex<Vec<(EvictorChild, Instant)>>,
    is_over: Arc<AtomicBool>,
}

impl Programs {
    fn run(&self, order: &Order, take: &mut dyn FnMut(Line)) -> io::Result<Outcome> {
        let idle = self.idle().pop().map(|(child, _)| child);
        let warm = idle.and_then(|mut child| child.send(order).is_ok().then_some(child));
        let mut child = match warm {
            Some(child) => child,
            None => {
                let path = self.program.clone().map_or_else(program, Ok)?;
                let mut child = EvictorChild::start(&path)?;
                child.send(order)?;
                child
            }
        };
        let is_over = || self.is_over.load(Ordering::Relaxed);
        let outcome = child.read_to_end(take, is_over)?;
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push((child, Instant::now()));
        }
        Ok(outcome)
    }

    /// Those that are still of use. The others end.
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(EvictorChild, Instant)>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, since)| since.elapsed() < IDLE_TIME);
        idle
    }
}
