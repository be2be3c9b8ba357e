//! What users see of evictions and claims: states, progress and reasons in a snapshot.

use std::time::Duration;

use gpreempt_wire::statistics::{ClaimSnapshot, Snapshot, TaskSnapshot, TaskState};

use super::claims::Claim;
use super::eviction::{Eviction, PENDING_NS, Phase};
use super::{Memory, nanos};

const NS: u64 = 1_000_000_000;

/// How fast memory moves, in bytes per second: as measured on an H200, until moves were seen here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    out: u64,
    back: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { out: 1_800 << 20, back: 4_600 << 20 }
    }
}

impl Rates {
    pub(super) fn time_out_ns(self, bytes: u64) -> u64 {
        time_ns(bytes, self.out)
    }

    pub(super) fn time_back_ns(self, bytes: u64) -> u64 {
        time_ns(bytes, self.back)
    }

    pub(super) fn note_out(&mut self, bytes: u64, took: Duration) {
        self.out = mean(self.out, bytes, took);
    }

    pub(super) fn note_back(&mut self, bytes: u64, took: Duration) {
        self.back = mean(self.back, bytes, took);
    }
}

fn time_ns(bytes: u64, rate: u64) -> u64 {
    let ns = u128::from(bytes) * u128::from(NS) / u128::from(rate.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The mean of the rate so far and that of one move. Small moves say nothing.
fn mean(rate: u64, bytes: u64, took: Duration) -> u64 {
    if bytes < 64 << 20 {
        return rate;
    }
    let seen = u128::from(bytes) * u128::from(NS) / u128::from(nanos(took).max(1));
    let seen = u64::try_from(seen).unwrap_or(u64::MAX);
    (rate / 2).saturating_add(seen / 2).max(1 << 20)
}

/// How much of a move is done after a time, and how much longer it takes.
fn progress(bytes: u64, whole_ns: u64, elapsed_ns: u64) -> (u64, u64) {
    let left_ns = whole_ns.saturating_sub(elapsed_ns);
    let done = u128::from(bytes) * u128::from(elapsed_ns.min(whole_ns));
    let done = u64::try_from(done / u128::from(whole_ns.max(1))).unwrap_or(bytes);
    (done.min(bytes), left_ns)
}

impl Memory {
    /// Bytes that have moved, and the time left. None where nothing moves.
    fn progress_of(&self, eviction: &Eviction, now_ns: u64) -> Option<(u64, u64)> {
        let elapsed = |since_ns: u64| now_ns.saturating_sub(since_ns);
        match eviction.phase {
            Phase::Checking | Phase::Ready | Phase::Releasing { .. } => {
                Some((0, self.rates.time_out_ns(eviction.bytes)))
            }
            Phase::MovingOut { since_ns } => {
                let whole_ns = self.rates.time_out_ns(eviction.bytes);
                Some(progress(eviction.bytes, whole_ns, elapsed(since_ns)))
            }
            Phase::MovingBack { since_ns } => {
                let whole_ns = self.rates.time_back_ns(eviction.bytes);
                Some(progress(eviction.bytes, whole_ns, elapsed(since_ns)))
            }
            Phase::Out { .. } => None,
        }
    }

    /// Adds what is known here to a snapshot.
    pub(crate) fn add_to(&self, snapshot: &mut Snapshot, now_ns: u64) {
        for device in &mut snapshot.devices {
            let here = self.evictions.values().filter(|known| known.gpu == device.uuid);
            let out = here.filter(|known| known.is_out()).map(|known| known.bytes / 1_024);
            device.memory_evicted_kib = out.sum();
            let left_ns = self.turn_end_ns(&device.uuid).map(|at| at.saturating_sub(now_ns));
            device.swap_turn_left_ms = left_ns.map(|ns| ns / 1_000_000);
        }
        for (eviction, key) in self
            .evictions
            .values()
            .flat_map(|known| known.members.iter().map(move |key| (known, key)))
        {
            let is_it = |task: &&mut TaskSnapshot| {
                task.pid == key.pid && task.start_ticks == key.start_ticks
            };
            if let Some(task) = snapshot.tasks.iter_mut().find(is_it) {
                self.add_to_task(eviction, task, now_ns);
            }
        }
        snapshot.claims =
            self.claims.iter().map(|(id, claim)| self.claim_snapshot(*id, claim, now_ns)).collect();
    }

    fn add_to_task(&self, eviction: &Eviction, task: &mut TaskSnapshot, now_ns: u64) {
        let count = u64::try_from(eviction.members.len().max(1)).unwrap_or(1);
        let progress = self.progress_of(eviction, now_ns);
        task.evicted_why = Some(self.why(eviction));
        task.moved_kib = progress.map(|(moved, _)| moved / 1_024 / count);
        task.move_left_ms = progress.map(|(_, left_ns)| left_ns / 1_000_000);
        let until_ns = eviction.reasons.asked.until_ns().filter(|until_ns| *until_ns < PENDING_NS);
        task.evict_lease_ms =
            until_ns.map(|until_ns| until_ns.saturating_sub(now_ns).div_ceil(1_000_000));
        match &eviction.phase {
            Phase::Checking | Phase::Ready => {}
            Phase::Releasing { .. } | Phase::MovingOut { .. } => task.state = TaskState::Evicting,
            Phase::Out { waits, .. } => {
                task.state = TaskState::Evicted;
                task.host_memory_kib = Some(eviction.bytes / 1_024 / count);
                task.restore_waits = waits.clone().filter(|_| eviction.reasons.is_empty());
            }
            Phase::MovingBack { .. } => {
                task.state = TaskState::Restoring;
                task.host_memory_kib = Some(eviction.bytes / 1_024 / count);
            }
        }
    }

    fn claim_snapshot(&self, id: u64, claim: &Claim, now_ns: u64) -> ClaimSnapshot {
        let own = || self.evictions.values().filter(|known| known.reasons.room.contains(&id));
        let progress = own().filter_map(|known| self.progress_of(known, now_ns));
        let (moving, left_ns) = progress.fold((0_u64, 0_u64), |(sum, most), (moved, left_ns)| {
            (sum.saturating_add(moved), most.max(left_ns))
        });
        let out: u64 = own().filter(|known| known.is_out()).map(|known| known.bytes).sum();
        let all: u64 = own().map(|known| known.bytes).sum();
        ClaimSnapshot {
            pid: claim.key.pid,
            name: claim.name.clone(),
            gpu: claim.gpu.clone(),
            claimed_kib: claim.bytes / 1_024,
            is_granted: claim.is_granted(),
            moved_kib: out.saturating_add(moving) / 1_024,
            to_move_kib: all / 1_024,
            left_ms: left_ns / 1_000_000,
            evicts: own().flat_map(|known| known.members.iter().map(|key| key.pid)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn estimates_follow_what_was_measured() {
        let mut rates = Rates::default();
        let before = rates.time_out_ns(18 * GIB);
        assert!((9 * NS..12 * NS).contains(&before), "as on an H200: {before}");
        for _ in 0..20 {
            rates.note_out(10 * GIB, Duration::from_secs(1));
        }
        let after = rates.time_out_ns(10 * GIB);
        assert!((NS..=NS + NS / 100).contains(&after), "{after}");
        rates.note_out(4_096, Duration::from_secs(1));
        assert_eq!(rates.time_out_ns(10 * GIB), after, "a small move says nothing");
    }

    #[test]
    fn progress_never_exceeds_the_whole() {
        assert_eq!(progress(100, 10, 5), (50, 5));
        assert_eq!(progress(100, 10, 50), (100, 0));
        assert_eq!(progress(0, 0, 0), (0, 0));
    }
}
