//! What must hold during the loop: a queue is stopped only by a process that lives, and no device
//! is idle beside a stopped queue.
//!
//! The daemon records every stop and every slice in the journal before it makes the change, and
//! deletes the record after it has reverted it. So whatever an emulated GPU reports as stopped must
//! be in the journal of a living process; anything else was left by a process that died.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_device::emulated::change::EmulatedChange;
use gpreempt_device::journal::{GpuChange, Journal, OwnerJournal};
use gpreempt_device::process::{ProcessInfo, all_pids};
use gpreempt_stage::all_children;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

use super::gpus::Gpu;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Stop,
    Slice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObservedChange {
    instance: u64,
    queue: u64,
    change: Change,
}

/// How often the emulated GPUs are asked for their queues.
const LOOK: Duration = Duration::from_millis(10);
/// How often they are asked how much work they have done.
const LOOK_AT_WORK: Duration = Duration::from_millis(200);
/// How long a device may be idle while a queue on it is stopped. Suspensions are shorter.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Observes the emulated GPUs and compares them with the journal.
#[derive(Debug)]
pub(super) struct OrphanCheck {
    journal: Journal,
    limit: Duration,
    abandoned: OverdueTracker<ObservedChange>,
    idle: OverdueTracker<usize>,
    work: Vec<Option<u64>>,
    looked_at: Instant,
    work_looked_at: Instant,
    pub(super) stopped: usize,
    /// How often the GPUs were asked, and how often a queue was stopped then.
    pub(super) looks: u64,
    pub(super) looks_with_stops: u64,
}

impl OrphanCheck {
    /// `limit` is how long a queue may stay stopped without a living owner.
    pub(super) fn new(journal: Journal, limit: Duration) -> Self {
        Self {
            journal,
            limit,
            abandoned: OverdueTracker::new(),
            idle: OverdueTracker::new(),
            work: Vec::new(),
            looked_at: Instant::now(),
            work_looked_at: Instant::now(),
            stopped: 0,
            looks: 0,
            looks_with_stops: 0,
        }
    }

    /// The longest time that a queue was stopped without a living owner.
    pub(super) const fn worst(&self) -> Duration {
        self.abandoned.worst
    }

    /// Checks, if it is time. `owners` are the living processes that may stop queues. Returns
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
        let abandoned: BTreeSet<ObservedChange> = marks.difference(&owned).copied().collect();
        let late = self.abandoned.take(Instant::now(), &abandoned, self.limit);
        let say = |(mark, time): (ObservedChange, Duration)| {
            let ObservedChange { queue, change, .. } = mark;
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

    /// Devices that are idle beside a stopped queue.
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
                format!("{name} was idle for {time:?} while a queue on it was stopped")
            })
            .collect()
    }

    /// What the sessions of those processes say is done.
    fn owned_by(&self, owners: &BTreeSet<u32>) -> BTreeSet<ObservedChange> {
        if owners.is_empty() {
            return BTreeSet::new();
        }
        let sessions = self.journal.sessions().unwrap_or_default();
        let own =
            sessions.iter().filter(|session| owners.iter().any(|owner| is_of(session, *owner)));
        let entries = own.flat_map(|session| session.entries().unwrap_or_default());
        entries.flat_map(|entry| entry.changes).filter_map(|act| mark_of(&act)).collect()
    }
}

/// Whether a process began a session: its pid is part of the name.
fn is_of(session: &OwnerJournal, pid: u32) -> bool {
    let name = session.folder().file_name().map(|name| name.to_string_lossy().into_owned());
    name.is_some_and(|name| name.starts_with(&format!("session-{pid}-")))
}

/// What an act does to an emulated queue; acts on other devices do not matter here.
fn mark_of(act: &GpuChange) -> Option<ObservedChange> {
    let GpuChange::Emulated(act) = act else { return None };
    match *act {
        EmulatedChange::Stop { instance, queue, .. } => {
            Some(ObservedChange { instance, queue, change: Change::Stop })
        }
        EmulatedChange::Slice { instance, queue, .. } => {
            Some(ObservedChange { instance, queue, change: Change::Slice })
        }
        EmulatedChange::Park { .. } => None,
    }
}

fn marks_of(gpu: &mut Gpu) -> BTreeSet<ObservedChange> {
    let Some((instance, listing)) = gpu.list() else { return BTreeSet::new() };
    let slice = gpu.slice();
    let of_queue = listing.queues.iter().flat_map(|info| {
        let mark = |change| ObservedChange { instance, queue: info.queue.0, change };
        let stop = info.is_stopped.then(|| mark(Change::Stop));
        let slice = (info.slice != slice).then(|| mark(Change::Slice));
        stop.into_iter().chain(slice)
    });
    of_queue.collect()
}

/// What is suspicious now, and since when.
#[derive(Debug)]
pub(super) struct OverdueTracker<K> {
    since: BTreeMap<K, Instant>,
    reported: BTreeSet<K>,
    worst: Duration,
}

impl<K: Copy + Ord> OverdueTracker<K> {
    pub(super) fn new() -> Self {
        Self { since: BTreeMap::new(), reported: BTreeSet::new(), worst: Duration::ZERO }
    }

    /// Takes in everything that is suspicious now. Returns what has been so for longer than
    /// `limit`, once.
    pub(super) fn take(
        &mut self,
        now: Instant,
        found: &BTreeSet<K>,
        limit: Duration,
    ) -> Vec<(K, Duration)> {
        // Until this very moment it may have lasted.
        for since in self.since.values() {
            self.worst = self.worst.max(now - *since);
        }
        self.since.retain(|key, _| found.contains(key));
        self.reported.retain(|key| found.contains(key));
        let mut late = Vec::new();
        for key in found {
            let lasted = now - *self.since.entry(*key).or_insert(now);
            if lasted > limit && self.reported.insert(*key) {
                late.push((*key, lasted));
            }
        }
        late
    }
}

/// Makes this process the parent of all descendants whose parent dies: keepers outlive daemons.
pub(super) fn adopt_orphans() -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot look after orphans")
}

/// Reaps orphans that have ended; `known` are the other children. Returns those that still run.
pub(super) fn reap_orphans(known: &BTreeSet<u32>) -> Vec<u32> {
    let mut left = Vec::new();
    for pid in all_children(std::process::id()) {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(number) = number.filter(|_| !known.contains(&pid)) else { continue };
        if matches!(waitpid(Some(number), WaitOptions::NOHANG), Ok(None)) {
            left.push(pid);
        }
    }
    left
}

/// Kills a child of `parent`, never a process that reuses its pid. False if it is gone.
pub(super) fn kill_child(pid: u32, parent: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(descriptor) = pidfd_open(number, PidfdFlags::empty()) else { return false };
    // From here on the pid cannot be reused.
    let is_child = ProcessInfo::read(pid).is_ok_and(|info| info.parent == parent && !info.zombie);
    is_child && pidfd_send_signal(&descriptor, Signal::KILL).is_ok()
}

/// Processes that have a folder in their environment, with their names.
pub(super) fn inhabitants(folder: &Path) -> Vec<String> {
    let folder = folder.as_os_str().as_bytes();
    let lives_here = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(folder.len()).any(|window| window == folder)
    };
    let here = all_pids().unwrap_or_default().into_iter().filter(lives_here);
    let infos = here.filter_map(|pid| ProcessInfo::read(pid).ok());
    infos.map(|info| format!("{} ({})", info.key, info.name)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_lasts_too_long_is_told_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let limit = Duration::from_millis(100);
        let mut tracker = OverdueTracker::new();
        let seven = BTreeSet::from([7]);
        assert!(tracker.take(at(0), &seven, limit).is_empty());
        assert!(tracker.take(at(90), &seven, limit).is_empty());
        assert!(tracker.take(at(95), &BTreeSet::new(), limit).is_empty());
        assert!(tracker.take(at(200), &seven, limit).is_empty(), "it began anew");
        let late = tracker.take(at(310), &seven, limit);
        assert_eq!(late, [(7, Duration::from_millis(110))]);
        assert!(tracker.take(at(400), &seven, limit).is_empty());
        assert_eq!(tracker.worst, Duration::from_millis(200));
    }

    #[test]
    fn children_are_found_and_only_their_parent_may_have_them_killed() {
        let folder = std::env::temp_dir().join(format!("gpreempt-proc-{}", std::process::id()));
        let mut sleep = Command::new("sleep").arg("60").env("HERE", &folder).spawn().unwrap();
        let own = std::process::id();
        assert!(all_children(own).contains(&sleep.id()));
        // Until exec, the child has the environment of this process.
        let found = (0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            inhabitants(&folder).len() == 1
        });
        assert!(found);
        assert!(!kill_child(sleep.id(), own + 1));
        assert!(kill_child(sleep.id(), own));
        sleep.wait().unwrap();
        assert!(!kill_child(sleep.id(), own), "it is gone");
        assert!(inhabitants(&folder).is_empty());
    }
}
