//! Whole turns for jobs that do not fit into the memory of a device together.
//!
//! One [`SwapTurns`] for each device decides which of these jobs are in its memory. The caller
//! reports where each job is, and evicts and restores what [`SwapTurns::step`] names.
//!
//! ```text
//!   jobs A and B, room for one:
//!     A in memory |<---- turn ---->|evict A, restore B|<---- turn ---->|evict B, restore A| ...
//! ```
//!
//! Higher priorities come first and equal ones in the order of their last turn, so equals take
//! turns. A job of a lower priority that was out for [`TURNS_OUT_MAX`] turns gets one all the same.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::priority::Priority;
use crate::time::{Duration, Instant};

/// A turn lasts at least this many times as long as its swaps.
pub const SWAPS_PER_TURN: u64 = 5;
/// After so many turns without one, a job gets a turn whatever its priority: 5 % of the time.
pub const TURNS_OUT_MAX: u32 = 19;

/// Where the memory of a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPlace {
    /// On the device.
    Resident,
    /// On its way from or to the device.
    Moving,
    /// In the memory of the host.
    Evicted,
}

/// A job that takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnJob<Id> {
    /// The caller's name for it.
    pub id: Id,
    /// Its priority.
    pub priority: Priority,
    /// The device memory that it needs.
    pub bytes: u64,
    /// How long its eviction and its restore take, together.
    pub swap: Duration,
    /// Where its memory is.
    pub place: JobPlace,
}

/// What to begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnPlan<Id> {
    /// Jobs to evict.
    pub evict: Vec<Id>,
    /// Jobs to restore, in this order. There is room for them.
    pub restore: Vec<Id>,
}

/// The turns on one device.
#[derive(Clone, Debug)]
pub struct SwapTurns<Id> {
    turn: Duration,
    /// What is known of each job.
    history: BTreeMap<Id, JobHistory>,
    /// The jobs of the turn.
    members: Vec<Id>,
    /// When the turn ends; none while its jobs are still moving.
    ends_at: Option<Instant>,
    /// The number of the current turn. Jobs that never had one have number 0.
    turns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct JobHistory {
    /// The number of its last turn; 0 before the first.
    last_turn: u64,
    turns_out: u32,
}

impl<Id: Copy + Ord> SwapTurns<Id> {
    /// Turns of that length, or longer where swaps take long.
    pub const fn new(turn: Duration) -> Self {
        Self { turn, history: BTreeMap::new(), members: Vec::new(), ends_at: None, turns: 1 }
    }

    /// When the turn ends. None while there is none.
    pub const fn next_at(&self) -> Option<Instant> {
        self.ends_at
    }

    /// Decides what to begin now. `room` is the device memory that these jobs may use together.
    /// Call it when the turn ends, a move has ended, a job appeared or vanished, or the room
    /// changed.
    pub fn step(&mut self, now: Instant, room: u64, jobs: &[TurnJob<Id>]) -> TurnPlan<Id> {
        self.history.retain(|id, _| jobs.iter().any(|job| job.id == *id));
        for job in jobs {
            self.history.entry(job.id).or_default();
        }
        let is_over = self.ends_at.is_some_and(|end| now >= end);
        if is_over || self.bytes_of_members(jobs) > room {
            self.turns += 1;
            self.ends_at = None;
            self.members.clear();
            self.add_members(room, jobs);
            for job in jobs.iter().filter(|job| !self.members.contains(&job.id)) {
                if let Some(history) = self.history.get_mut(&job.id) {
                    history.turns_out = history.turns_out.saturating_add(1);
                }
            }
        } else {
            self.add_members(room, jobs);
        }
        let is_settled = |job: &TurnJob<Id>| {
            let place = if self.is_member(job.id) { JobPlace::Resident } else { JobPlace::Evicted };
            job.place == place
        };
        let is_shared = self.members.len() < jobs.len();
        if self.ends_at.is_none() && is_shared && jobs.iter().all(is_settled) {
            self.ends_at = Some(now + self.length(jobs));
        }
        self.moves(room, jobs)
    }

    fn is_member(&self, id: Id) -> bool {
        self.members.contains(&id)
    }

    fn bytes_of_members(&self, jobs: &[TurnJob<Id>]) -> u64 {
        let members = jobs.iter().filter(|job| self.is_member(job.id));
        members.fold(0, |sum, job| sum.saturating_add(job.bytes))
    }

    /// Adds to the turn every job that fits beside its members, the first in order first.
    fn add_members(&mut self, room: u64, jobs: &[TurnJob<Id>]) {
        self.members.retain(|id| jobs.iter().any(|job| job.id == *id));
        let rank = |job: &&TurnJob<Id>| {
            let history = self.history.get(&job.id).copied().unwrap_or_default();
            let is_due = history.turns_out >= TURNS_OUT_MAX;
            // Of those that never had a turn, the ones in memory come first: no swap is needed.
            let is_out = job.place == JobPlace::Evicted;
            (Reverse(is_due), Reverse(job.priority), history.last_turn, is_out, job.id)
        };
        let others = jobs.iter().filter(|job| !self.is_member(job.id));
        let mut ranked: Vec<&TurnJob<Id>> = others.collect();
        ranked.sort_by_key(rank);
        let mut left = room.saturating_sub(self.bytes_of_members(jobs));
        for job in ranked {
            if job.bytes <= left {
                left -= job.bytes;
                self.members.push(job.id);
                self.history.insert(job.id, JobHistory { last_turn: self.turns, turns_out: 0 });
            }
        }
    }

    /// What has to move for the turn. A job is restored when there is room for it, so not before
    /// others are evicted.
    fn moves(&self, room: u64, jobs: &[TurnJob<Id>]) -> TurnPlan<Id> {
        let is_in = |job: &&TurnJob<Id>| job.place != JobPlace::Evicted;
        let used = jobs.iter().filter(is_in).fold(0_u64, |sum, job| sum.saturating_add(job.bytes));
        let mut left = room.saturating_sub(used);
        let mut plan = TurnPlan { evict: Vec::new(), restore: Vec::new() };
        for job in jobs {
            match job.place {
                JobPlace::Resident if !self.is_member(job.id) => plan.evict.push(job.id),
                JobPlace::Resident | JobPlace::Moving | JobPlace::Evicted => {}
            }
        }
        for id in &self.members {
            let job = jobs.iter().find(|job| job.id == *id);
            if let Some(job) = job.filter(|job| job.place == JobPlace::Evicted && job.bytes <= left)
            {
                left -= job.bytes;
                plan.restore.push(job.id);
            }
        }
        plan
    }

    /// How long the turn lasts: at least so many times its swaps, which are those of its members.
    fn length(&self, jobs: &[TurnJob<Id>]) -> Duration {
        let members = jobs.iter().filter(|job| self.is_member(job.id));
        let swaps = members.fold(Duration::ZERO, |sum, job| sum + job.swap);
        self.turn.max(swaps.times(SWAPS_PER_TURN))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use proptest::prelude::*;

    const TURN: Duration = Duration::from_millis(60_000);

    fn job(id: u32, gib: u64, place: JobPlace) -> TurnJob<u32> {
        let swap = Duration::from_millis(600 * gib);
        TurnJob { id, priority: Priority::DEFAULT, bytes: gib, swap, place }
    }

    /// Jobs whose moves take half of their swap each, one after the other.
    struct Machine {
        now: Instant,
        room: u64,
        turns: SwapTurns<u32>,
        jobs: Vec<TurnJob<u32>>,
        /// When the running moves end, and where the jobs are then.
        moving: Vec<(Instant, u32, JobPlace)>,
        /// How long each job was in memory, and how often it was evicted.
        resident: BTreeMap<u32, Duration>,
        evictions: u64,
    }

    impl Machine {
        fn new(room: u64, jobs: Vec<TurnJob<u32>>) -> Self {
            let (moving, resident) = (Vec::new(), BTreeMap::new());
            let (now, turns) = (Instant::from_nanos(0), SwapTurns::new(TURN));
            Self { now, room, turns, jobs, moving, resident, evictions: 0 }
        }

        fn place(&mut self, id: u32) -> &mut JobPlace {
            &mut self.jobs.iter_mut().find(|job| job.id == id).unwrap().place
        }

        fn in_memory(&self) -> u64 {
            let is_in = |job: &&TurnJob<u32>| job.place != JobPlace::Evicted;
            self.jobs.iter().filter(is_in).map(|job| job.bytes).sum()
        }

        /// Lets the next event happen: a move ends, or a turn.
        fn advance(&mut self) {
            let plan = self.turns.step(self.now, self.room, &self.jobs);
            let to = |ids: Vec<u32>, place| ids.into_iter().map(move |id| (id, place));
            let evict = to(plan.evict, JobPlace::Evicted);
            for (id, place) in evict.chain(to(plan.restore, JobPlace::Resident)) {
                let job = *self.jobs.iter().find(|job| job.id == id).unwrap();
                assert_ne!(job.place, JobPlace::Moving);
                assert_ne!(job.place, place);
                self.evictions += u64::from(place == JobPlace::Evicted);
                *self.place(id) = JobPlace::Moving;
                let took = Duration::from_nanos(job.swap.as_nanos() / 2);
                self.moving.push((self.now + took, id, place));
            }
            assert!(self.in_memory() <= self.room, "more in memory than there is");
            let ends = self.moving.iter().map(|(at, ..)| *at);
            let next = ends.chain(self.turns.next_at()).min();
            let next = next.unwrap_or(self.now + TURN).max(self.now);
            for job in self.jobs.iter().filter(|job| job.place == JobPlace::Resident) {
                *self.resident.entry(job.id).or_default() += next.since(self.now);
            }
            self.now = next;
            let (ended, moving) = self.moving.iter().partition(|(at, ..)| *at <= next);
            self.moving = moving;
            let ended: Vec<(Instant, u32, JobPlace)> = ended;
            for (_, id, place) in ended {
                *self.place(id) = place;
            }
        }

        fn run(&mut self, steps: usize) {
            for _ in 0..steps {
                self.advance();
            }
        }

        fn part(&self, id: u32) -> u64 {
            let resident = self.resident.get(&id).copied().unwrap_or_default();
            resident.as_nanos() * 100 / self.now.as_nanos()
        }
    }

    #[test]
    fn jobs_that_fit_together_are_left_alone() {
        let jobs = vec![job(1, 16, JobPlace::Resident), job(2, 16, JobPlace::Resident)];
        let mut machine = Machine::new(32, jobs);
        machine.run(20);
        assert_eq!((machine.evictions, machine.turns.next_at()), (0, None));
    }

    #[test]
    fn two_equals_take_whole_turns() {
        let jobs = vec![job(1, 16, JobPlace::Resident), job(2, 16, JobPlace::Evicted)];
        let mut machine = Machine::new(20, jobs);
        machine.run(400);
        for id in [1, 2] {
            assert!((40..=50).contains(&machine.part(id)), "{} %", machine.part(id));
        }
        let turn = machine.now.as_nanos() / machine.evictions;
        assert!(turn >= TURN.as_nanos(), "one eviction for each turn");
    }

    #[test]
    fn a_job_that_waits_has_the_second_turn() {
        let jobs = [job(1, 16, JobPlace::Resident), job(2, 16, JobPlace::Evicted)];
        let mut turns = SwapTurns::new(TURN);
        let start = Instant::from_nanos(0);
        assert_eq!(turns.step(start, 20, &jobs).evict, []);
        assert_eq!(turns.step(start + TURN, 20, &jobs).evict, [1]);
    }

    #[test]
    fn a_turn_is_at_least_five_times_its_swap() {
        let slow = |id, place| TurnJob { swap: TURN, ..job(id, 16, place) };
        let mut turns = SwapTurns::new(TURN);
        let jobs = [slow(1, JobPlace::Resident), slow(2, JobPlace::Evicted)];
        assert_eq!(
            turns.step(Instant::from_nanos(0), 20, &jobs),
            TurnPlan { evict: vec![], restore: vec![] }
        );
        assert_eq!(turns.next_at(), Some(Instant::from_nanos(0) + TURN.times(5)));
    }

    #[test]
    fn a_turn_ends_early_where_its_jobs_no_longer_fit_and_a_small_job_joins_it() {
        let mut turns = SwapTurns::new(TURN);
        let start = Instant::from_nanos(0);
        let mut jobs = vec![job(1, 16, JobPlace::Resident), job(2, 16, JobPlace::Evicted)];
        turns.step(start, 20, &jobs);
        let end = turns.next_at();
        jobs.push(job(3, 4, JobPlace::Evicted));
        assert_eq!(turns.step(start, 20, &jobs).restore, [3]);
        assert_eq!(turns.next_at(), end, "the turn goes on");
        let plan = turns.step(start, 8, &jobs);
        assert_eq!((plan.evict, plan.restore), (vec![1], vec![]));
    }

    #[test]
    fn a_higher_priority_stays_and_a_lower_one_still_gets_a_turn() {
        let high = TurnJob { priority: Priority::MAX, ..job(1, 16, JobPlace::Resident) };
        let mut machine = Machine::new(20, vec![high, job(2, 16, JobPlace::Evicted)]);
        machine.run(400);
        assert!(machine.part(1) >= 90, "{} %", machine.part(1));
        assert!((3..=6).contains(&machine.part(2)), "{} %", machine.part(2));
    }

    #[test]
    fn a_job_that_never_fits_is_out_and_others_run() {
        let mut machine =
            Machine::new(20, vec![job(1, 30, JobPlace::Evicted), job(2, 16, JobPlace::Resident)]);
        machine.run(50);
        assert_eq!((machine.part(1), machine.part(2)), (0, 100));
    }

    proptest! {
        #[test]
        fn every_job_gets_turns_and_swaps_take_a_sixth_at_most(
            sizes in proptest::collection::vec(1..20_u64, 2..6),
        ) {
            let jobs: Vec<_> =
                (0..).zip(&sizes).map(|(id, gib)| job(id, *gib, JobPlace::Evicted)).collect();
            let mut machine = Machine::new(20, jobs);
            machine.run(600);
            for id in (0..).take(sizes.len()) {
                prop_assert!(machine.part(id) >= 80 / sizes.len() as u64, "{:?}", machine.resident);
            }
        }
    }
}
