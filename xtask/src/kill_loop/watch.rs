//! Which queues are stopped, and whether a process that lives has stopped them.
//!
//! Every stop and every slice is written into the journal before it is done and crossed out after
//! it is undone. So whatever an emulated GPU says is stopped has to be in the session of a process
//! that lives; anything else was left behind by a process that died.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_device::emulated::act::EmulatedAct;
use gpreempt_device::journal::{Act, Journal, Session};

use super::gpu::Gpu;
use super::suspicion::Suspicions;

/// What was done to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Stop,
    Slice,
}

/// One change of one queue of one emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    instance: u64,
    queue: u64,
    change: Change,
}

/// How often the emulated GPUs are asked.
const LOOK: Duration = Duration::from_millis(10);
/// How often they are asked whether they do anything.
const LOOK_AT_WORK: Duration = Duration::from_millis(200);
/// How long a device may do nothing while somebody on it is stopped. Suspensions are shorter.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The watch.
#[derive(Debug)]
pub(super) struct Watch {
    journal: Journal,
    limit: Duration,
    abandoned: Suspicions<Mark>,
    idle: Suspicions<usize>,
    work: Vec<Option<u64>>,
    looked_at: Instant,
    work_looked_at: Instant,
    /// How many queues are stopped now.
    pub(super) stopped: usize,
    /// How often somebody was found stopped, and how many looks there were.
    pub(super) looks: u64,
    pub(super) looks_with_stops: u64,
}

impl Watch {
    /// A watch over a journal. `limit` is how long anything may stay stopped for no reason.
    pub(super) fn new(journal: Journal, limit: Duration) -> Self {
        Self {
            journal,
            limit,
            abandoned: Suspicions::new(),
            idle: Suspicions::new(),
            work: Vec::new(),
            looked_at: Instant::now(),
            work_looked_at: Instant::now(),
            stopped: 0,
            looks: 0,
            looks_with_stops: 0,
        }
    }

    /// The longest that anybody was stopped for no reason.
    pub(super) const fn worst(&self) -> Duration {
        self.abandoned.worst()
    }

    /// Looks, if it is time. `owners` are the processes that live and may stop queues. Returns
    /// what is wrong.
    pub(super) fn look(&mut self, gpus: &mut [Gpu], owners: &BTreeSet<u32>) -> Vec<String> {
        let now = Instant::now();
        if now - self.looked_at < LOOK {
            return Vec::new();
        }
        self.looked_at = now;
        let mut marks = BTreeSet::new();
        let mut has_stops = vec![false; gpus.len()];
        for (gpu, has_stops) in gpus.iter_mut().zip(&mut has_stops) {
            let found = marks_of(gpu);
            *has_stops = found.iter().any(|mark| mark.change == Change::Stop);
            marks.extend(found);
        }
        self.stopped = marks.iter().filter(|mark| mark.change == Change::Stop).count();
        self.looks += 1;
        self.looks_with_stops += u64::from(self.stopped > 0);
        let owned = self.owned_by(owners);
        let abandoned: BTreeSet<Mark> = marks.difference(&owned).copied().collect();
        let late = self.abandoned.take(Instant::now(), &abandoned, self.limit);
        let say = |(mark, time): (Mark, Duration)| {
            let Mark { queue, change, .. } = mark;
            format!(
                "queue {queue} has kept its {change:?} for {time:?}, and the journal of no living \
                 process has it; these live: {owners:?}"
            )
        };
        let mut problems: Vec<String> = late.into_iter().map(say).collect();
        if now - self.work_looked_at >= LOOK_AT_WORK {
            self.work_looked_at = now;
            problems.extend(self.look_at_work(gpus, &has_stops));
        }
        problems
    }

    /// Devices that do nothing beside somebody who is stopped.
    fn look_at_work(&mut self, gpus: &mut [Gpu], has_stops: &[bool]) -> Vec<String> {
        let work: Vec<Option<u64>> = gpus.iter_mut().map(Gpu::work_done).collect();
        let is_idle =
            |index: &usize| has_stops[*index] && self.work.get(*index) == Some(&work[*index]);
        let idle: BTreeSet<usize> = (0..gpus.len()).filter(is_idle).collect();
        self.work = work;
        let late = self.idle.take(Instant::now(), &idle, IDLE_MAX);
        late.into_iter()
            .map(|(index, time)| {
                let name = gpus[index].name();
                format!("{name} has done nothing for {time:?} while somebody on it is stopped")
            })
            .collect()
    }

    /// What the sessions of those processes say is done.
    fn owned_by(&self, owners: &BTreeSet<u32>) -> BTreeSet<Mark> {
        if owners.is_empty() {
            return BTreeSet::new();
        }
        let sessions = self.journal.sessions().unwrap_or_default();
        let own =
            sessions.iter().filter(|session| owners.iter().any(|owner| is_of(session, *owner)));
        let entries = own.flat_map(|session| session.entries().unwrap_or_default());
        entries.flat_map(|entry| entry.acts).filter_map(|act| mark_of(&act)).collect()
    }
}

/// Whether a process began a session: its pid is part of the name.
fn is_of(session: &Session, pid: u32) -> bool {
    let name = session.folder().file_name().map(|name| name.to_string_lossy().into_owned());
    name.is_some_and(|name| name.starts_with(&format!("session-{pid}-")))
}

/// What an act does to an emulated queue; acts on other devices are none of ours.
fn mark_of(act: &Act) -> Option<Mark> {
    let Act::Emulated(act) = act else { return None };
    match *act {
        EmulatedAct::Stop { instance, queue, .. } => {
            Some(Mark { instance, queue, change: Change::Stop })
        }
        EmulatedAct::Slice { instance, queue, .. } => {
            Some(Mark { instance, queue, change: Change::Slice })
        }
        EmulatedAct::Park { .. } => None,
    }
}

fn marks_of(gpu: &mut Gpu) -> BTreeSet<Mark> {
    let Some((instance, listing)) = gpu.list() else { return BTreeSet::new() };
    let slice = gpu.slice();
    let of_queue = listing.queues.iter().flat_map(|info| {
        let mark = |change| Mark { instance, queue: info.queue.0, change };
        let stop = info.is_stopped.then(|| mark(Change::Stop));
        let slice = (info.slice != slice).then(|| mark(Change::Slice));
        stop.into_iter().chain(slice)
    });
    of_queue.collect()
}
