//! Reads rings for the scheduler loop, with one thread per process.
//!
//! When the loop reads the first queue of a round, it sends requests to all threads and waits a
//! moment for each answer: a read takes microseconds, and decisions should not be based on the last
//! interval. A read may block as long as the process likes ([`BackgroundReader`]). Then the last
//! result counts, and the loop is notified when a new one arrives. A process whose rings were not
//! read for a second counts as busy.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;

use super::report::Report;
use super::{AmdBackend, BUSY, QueueState};
use crate::amd::abi::trap::QueueEntry;
use crate::amd::background_reader::BackgroundReader;
use crate::amd::ring_memory::ProcessMemory;
use crate::controller::{ControlLimit, ControllerReport, Reporter};
use crate::process::ProcessKey;

/// A read takes microseconds, but the machine may be overloaded.
const LATE: Duration = Duration::from_secs(1);

/// How long the loop waits for all reads of a round together.
const WAIT: Duration = Duration::from_millis(1);

type Wanted = Vec<(QueueId, Vec<QueueEntry>)>;
/// Without the rings that could not be read.
type Views = BTreeMap<QueueId, RingView>;

#[derive(Debug)]
pub(super) struct RingReader {
    reader: BackgroundReader<Arc<Wanted>, Arc<Views>>,
    wanted: Arc<Wanted>,
    /// The number of answers before the awaited one.
    before: Option<u64>,
    /// Whether the problem was reported.
    is_late: bool,
}

impl RingReader {
    fn start(process: ProcessKey, reports: Reporter<Report>) -> io::Result<Self> {
        let mut memory = None;
        let look = move |wanted: Arc<Wanted>| {
            if memory.is_none() {
                // Opened before the check: from then on the file cannot refer to another process.
                memory = ProcessMemory::open(process.pid).ok().filter(|_| process.check().is_ok());
            }
            let view = |rings: &[QueueEntry]| match &memory {
                Some(memory) => memory.observe_all(rings),
                None => Some(BUSY),
            };
            let views = wanted.iter().filter_map(|(queue, rings)| Some((*queue, view(rings)?)));
            Arc::new(views.collect())
        };
        let mut before = Arc::new(Views::new());
        let told = move |views: &Arc<Views>, was_awaited: bool| {
            let is_news = is_news(&before, views);
            before = Arc::clone(views);
            if is_news && !was_awaited {
                // The backend ends this thread.
                let _ = reports.send(Report::Rings(process));
            }
        };
        let reader = BackgroundReader::start(Some(process.pid), look, told)?;
        Ok(Self { reader, wanted: Arc::default(), before: None, is_late: false })
    }

    fn ask(&mut self) {
        if !self.wanted.is_empty() {
            self.before = self.reader.ask_anew(Arc::clone(&self.wanted));
        }
    }

    /// The view of a queue, waiting for the awaited answer until `until`.
    fn observe(&mut self, queue: QueueId, until: Instant) -> Option<RingView> {
        if let Some(before) = self.before.take() {
            self.reader.await_more(before, until);
        }
        self.latest(queue)
    }

    fn latest(&self, queue: QueueId) -> Option<RingView> {
        self.reader.latest()?.get(&queue).copied()
    }

    fn is_late(&self) -> bool {
        self.reader.silence().is_some_and(|silence| silence >= LATE)
    }
}

/// Whether the scheduler would decide differently: that a queue is still busy is not news.
fn is_news(before: &Views, now: &Views) -> bool {
    now.iter().any(|(queue, view)| {
        let was_busy = before.get(queue).is_some_and(|view| view.has_work());
        (was_busy && !view.has_work()) || (!was_busy && before.get(queue) != Some(view))
    })
}

fn sentence(process: ProcessKey) -> String {
    format!(
        "process {process}: its rings cannot be read, because its memory does not respond; it \
         counts as busy until it does"
    )
}

/// One pass over all queues in ascending order.
#[derive(Debug)]
pub(super) struct ReadingRound {
    last: QueueId,
    until: Instant,
}

impl ReadingRound {
    pub(super) fn new() -> Self {
        Self { last: QueueId(u64::MAX), until: Instant::now() }
    }

    /// Records the next queue. Returns whether it begins a new round.
    fn takes(&mut self, queue: QueueId) -> bool {
        let is_new = queue <= std::mem::replace(&mut self.last, queue);
        if is_new {
            self.until = Instant::now() + WAIT;
        }
        is_new
    }
}

impl AmdBackend {
    /// Starts to read the rings of a process, unless an earlier thread of it is still blocked.
    pub(super) fn begin_reading(&mut self, process: ProcessKey) {
        if self.readers.contains_key(&process) {
            return;
        }
        match RingReader::start(process, self.reports.clone()) {
            Ok(reader) => {
                self.readers.insert(process, reader);
            }
            Err(error) => {
                let problem = format!(
                    "process {process}: its rings are not read ({error}); it counts as busy"
                );
                self.notes.push_back(ControllerReport::Problem(problem));
            }
        }
    }

    /// Ends readers without a task, except blocked ones: those cannot be ended, and their process
    /// may be adopted again.
    pub(super) fn end_readings(&mut self) {
        let tasks = &self.tasks;
        self.readers.retain(|process, reader| {
            let is_ours = tasks.values().any(|adopted| adopted.process == *process);
            is_ours || (reader.reader.silence().is_some() && process.check().is_ok())
        });
    }

    /// Updates which rings are read.
    pub(super) fn aim_reader(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get(&task) else { return };
        let Some(reader) = self.readers.get_mut(&adopted.process) else { return };
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let shown = own.filter(|(_, target)| target.are_rings_shown());
        let wanted = shown.map(|(queue, target)| (*queue, target.listed.rings.clone()));
        reader.wanted = Arc::new(wanted.collect());
    }

    /// The latest view of a ring, after a short wait for a new one.
    pub(super) fn look_at(&mut self, queue: QueueId) -> Option<RingView> {
        if self.round.takes(queue) {
            self.readers.values_mut().for_each(RingReader::ask);
        }
        let until = self.round.until;
        let target = self.queues.get(&queue)?;
        let process = self.tasks.get(&target.task)?.process;
        let Some(reader) = self.readers.get_mut(&process).filter(|_| target.are_rings_shown())
        else {
            return Some(BUSY);
        };
        let view = reader.observe(queue, until);
        let is_late = reader.is_late();
        if is_late != std::mem::replace(&mut reader.is_late, is_late) {
            let sentence = sentence(process);
            let note = if is_late {
                ControllerReport::Problem(sentence)
            } else {
                ControllerReport::Solved(sentence)
            };
            self.notes.push_back(note);
        }
        if is_late {
            // Indices never decrease.
            return Some(RingView { running: Some(true), ..view.unwrap_or(BUSY) });
        }
        view
    }

    /// A reader has a result that the loop did not wait for.
    pub(super) fn take_readings(&mut self, process: ProcessKey) {
        let Some(task) = self.task_of(process) else { return };
        let Some(reader) = self.readers.get(&process) else { return };
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let views = own.filter_map(|(queue, _)| Some((*queue, reader.latest(*queue)?)));
        let events = views.map(|(queue, ring)| Event::RingObserved { queue, ring });
        self.events.extend(events);
    }

    pub(super) fn reading_limit(&self, process: ProcessKey) -> Option<ControlLimit> {
        let is_late = self.readers.get(&process).is_some_and(|reader| reader.is_late);
        is_late.then(|| ControlLimit { sentence: sentence(process), is_uncontrollable: false })
    }
}

impl QueueState {
    /// Whether the addresses of its rings are known.
    fn are_rings_shown(&self) -> bool {
        let rings = &self.listed.rings;
        !rings.is_empty() && rings.iter().all(|ring| ring.write_pointer != 0)
    }
}
