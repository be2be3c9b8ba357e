//! What rings show, read for the loop by a thread for each process.
//!
//! When the loop wants to know, it asks all of them at once, and waits for a moment: reading takes
//! microseconds, and what it decides by should not be what was true one interval ago. But it may
//! take as long as the process likes ([`Lookout`]). Then nobody waits for it: what was read last
//! counts, and the loop is told when that has changed. A process whose rings were not read for too
//! long is taken to be busy.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;

use super::report::Report;
use super::{AmdBackend, BUSY, Target};
use crate::amd::abi::trap::QueueEntry;
use crate::amd::activity::Memory;
use crate::amd::lookout::Lookout;
use crate::controller::{Limit, Note, Reporter};
use crate::process::ProcessKey;

/// How long a reading may take: it takes microseconds, but machines are busy.
const LATE: Duration = Duration::from_secs(1);

/// How long the loop waits for all readings of a round together.
const WAIT: Duration = Duration::from_millis(1);

/// Which rings to read.
type Wanted = Vec<(QueueId, Vec<QueueEntry>)>;
/// What they show. Those that could not be read are not in it.
type Views = BTreeMap<QueueId, RingView>;

/// Reads the rings of one process.
#[derive(Debug)]
pub(super) struct RingReader {
    lookout: Lookout<Arc<Wanted>, Arc<Views>>,
    wanted: Arc<Wanted>,
    /// How many readings there were before the one that is worth waiting for.
    before: Option<u64>,
    /// Whether it was said that nothing has been read for too long.
    is_late: bool,
}

impl RingReader {
    /// Starts one. What has changed is told there.
    fn start(process: ProcessKey, reports: Reporter<Report>) -> io::Result<Self> {
        let mut memory = None;
        let look = move |wanted: Arc<Wanted>| {
            if memory.is_none() {
                // Opened before it is made sure: from then on it leads to nobody else.
                memory = Memory::open(process.pid).ok().filter(|_| process.check().is_ok());
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
                // Whoever does not listen any more ends us.
                let _ = reports.send(Report::Rings(process));
            }
        };
        let lookout = Lookout::start(Some(process.pid), look, told)?;
        Ok(Self { lookout, wanted: Arc::default(), before: None, is_late: false })
    }

    /// Asks for a reading of all rings.
    fn ask(&mut self) {
        if !self.wanted.is_empty() {
            self.before = self.lookout.ask_anew(Arc::clone(&self.wanted));
        }
    }

    /// What a queue shows, as far as that can be known by then.
    fn observe(&mut self, queue: QueueId, until: Instant) -> Option<RingView> {
        if let Some(before) = self.before.take() {
            self.lookout.await_more(before, until);
        }
        self.latest(queue)
    }

    fn latest(&self, queue: QueueId) -> Option<RingView> {
        self.lookout.latest()?.get(&queue).copied()
    }

    /// Whether nothing has come for too long.
    fn is_late(&self) -> bool {
        self.lookout.silence().is_some_and(|silence| silence >= LATE)
    }
}

/// Whether anything else follows from these readings than from those before: that somebody is busy
/// still is no news.
fn is_news(before: &Views, now: &Views) -> bool {
    now.iter().any(|(queue, view)| {
        let was_busy = before.get(queue).is_some_and(|view| view.has_work());
        (was_busy && !view.has_work()) || (!was_busy && before.get(queue) != Some(view))
    })
}

/// What is said of a process whose rings cannot be read.
fn sentence(process: ProcessKey) -> String {
    format!(
        "process {process}: its rings cannot be read, because its memory does not answer; it is \
         taken to be busy until it does"
    )
}

/// A look at all rings, one queue after the other.
#[derive(Debug)]
pub(super) struct Round {
    last: QueueId,
    until: Instant,
}

impl Round {
    /// Before the first.
    pub(super) fn new() -> Self {
        Self { last: QueueId(u64::MAX), until: Instant::now() }
    }

    /// Takes the next queue. Says whether a new round begins with it: they go upwards.
    fn takes(&mut self, queue: QueueId) -> bool {
        let is_new = queue <= std::mem::replace(&mut self.last, queue);
        if is_new {
            self.until = Instant::now() + WAIT;
        }
        is_new
    }
}

impl AmdBackend {
    /// Begins to read the rings of a process. One that never answered is not asked by two.
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
                    "process {process}: its rings are not read ({error}); it is taken to be busy"
                );
                self.notes.push_back(Note::Problem(problem));
            }
        }
    }

    /// Ends the readers that nobody needs, but not one that does not answer: it cannot be ended,
    /// and its process may come back.
    pub(super) fn end_readings(&mut self) {
        let tasks = &self.tasks;
        self.readers.retain(|process, reader| {
            let is_ours = tasks.values().any(|adopted| adopted.process == *process);
            is_ours || (reader.lookout.silence().is_some() && process.check().is_ok())
        });
    }

    /// Tells the reader of a task's process what to read.
    pub(super) fn aim_reader(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get(&task) else { return };
        let Some(reader) = self.readers.get_mut(&adopted.process) else { return };
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let shown = own.filter(|(_, target)| target.are_rings_shown());
        let wanted = shown.map(|(queue, target)| (*queue, target.listed.rings.clone()));
        reader.wanted = Arc::new(wanted.collect());
    }

    /// What is known of a ring. Nothing is read here, but waited for a moment.
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
            let note = if is_late { Note::Problem(sentence) } else { Note::Solved(sentence) };
            self.notes.push_back(note);
        }
        if is_late {
            // Indices never go back.
            return Some(RingView { running: Some(true), ..view.unwrap_or(BUSY) });
        }
        view
    }

    /// Other readings than before have come.
    pub(super) fn take_readings(&mut self, process: ProcessKey) {
        let Some(task) = self.task_of(process) else { return };
        let Some(reader) = self.readers.get(&process) else { return };
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let views = own.filter_map(|(queue, _)| Some((*queue, reader.latest(*queue)?)));
        let events = views.map(|(queue, ring)| Event::RingObserved { queue, ring });
        self.events.extend(events);
    }

    /// What a process cannot have because its rings cannot be read.
    pub(super) fn reading_limit(&self, process: ProcessKey) -> Option<Limit> {
        let is_late = self.readers.get(&process).is_some_and(|reader| reader.is_late);
        is_late.then(|| Limit { sentence: sentence(process), is_beyond: false })
    }
}

impl Target {
    /// Whether it is known where its rings are.
    fn are_rings_shown(&self) -> bool {
        let rings = &self.listed.rings;
        !rings.is_empty() && rings.iter().all(|ring| ring.write_pointer != 0)
    }
}
