//! The life of work that is reset: running, leaving, aside, and from the first launch that is not
//! complete on once more.
//!
//! ```text
//!              announced: flag, maybe empty the ring
//!   Running ------------------------------------------> Leaving
//!      ^                                                   | everything is off the device
//!      |   quiet again: flag down, submit from the         v
//!      +---------------------------------------------- Aside
//!          first launch that is not complete
//! ```
//!
//! Nothing here waits without a bound, and nothing waits inside the driver.

use std::time::Duration;

use super::super::pipeline::GRACE;
use super::units::{Units, is_complete};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::latency::Latency;

/// How long it may take until everything is off the device.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Where launches run. Launches are numbered; one of the same number does the same work.
pub(super) trait Station {
    /// Submits a launch, for the first time or again.
    fn submit(&mut self, launch: u64) -> Result<(), Failure>;
    /// Whether a launch, as it was submitted last, and everything before it is over.
    fn is_over(&mut self, launch: u64) -> Result<bool, Failure>;
    /// For each block of a launch, how often it ran and how often it left.
    fn record(&mut self, launch: u64) -> Vec<u32>;
    /// Makes room for a later launch in place of one that is complete.
    fn forget(&mut self, launch: u64);
    /// How often it changed whether a request is running: odd while one is. The flag is set then.
    fn epoch(&mut self) -> Result<u64, Failure>;
    /// Clears the flag, unless something changed since that epoch.
    fn lower_flag(&mut self, epoch: u64) -> bool;
    /// Takes out of the ring what was not fetched yet.
    fn clear_ring(&mut self) -> Result<(), Failure>;
    /// Submits a mark and no work. Whatever still is in the ring in somebody's opinion comes first.
    fn submit_mark(&mut self) -> Result<(), Failure>;
    /// Whether the mark, and so everything before it, is over.
    fn is_mark_over(&mut self) -> Result<bool, Failure>;
}

/// How to go about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Launches in flight.
    pub(super) depth: usize,
    /// Whether the ring is emptied.
    pub(super) clear_ring: bool,
}

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Launches that are complete: where the next submission after a reset begins.
    pub(super) completed: u64,
    /// All submissions.
    pub(super) submitted: u64,
    /// Of these, of launches that had been submitted before.
    pub(super) resubmitted: u64,
    /// Times that work was taken off the device.
    pub(super) resets: u64,
    /// Times that a mark had to be submitted to get the stream to its end.
    pub(super) marks: u64,
    /// How long emptying the ring took.
    pub(super) clear: Latency,
    /// How long it took until everything was off the device, where no mark was needed for it.
    pub(super) leave: Latency,
    /// How long there was nothing of ours on the device because of a request.
    pub(super) aside_ns: u64,
    /// When the last launch was found complete.
    pub(super) last_ns: u64,
}

/// What came of one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something happened; look again.
    Busy,
    /// There was nothing to do.
    Idle,
    /// Everything is over.
    Done,
    /// The device did not get to its end in time.
    Stuck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Leaving { since_ns: u64, marked_ns: Option<u64> },
    Aside { since_ns: u64 },
}

/// Where work is in its life.
#[derive(Clone, Debug)]
pub(super) struct Cycle {
    plan: Plan,
    phase: Phase,
    /// The launch that is submitted next; those from `completed` to here are in flight.
    next: u64,
    /// For each slot, how often its launch was submitted.
    submissions: Vec<u32>,
    /// The announcements that were dealt with.
    epoch: u64,
    tally: Tally,
    units: Units,
}

impl Cycle {
    /// Work of so many blocks that nobody has begun yet.
    pub(super) fn new(plan: Plan, blocks: usize, now_ns: u64) -> Self {
        let tally = Tally {
            completed: 0,
            submitted: 0,
            resubmitted: 0,
            resets: 0,
            marks: 0,
            clear: Latency::new(),
            leave: Latency::new(),
            aside_ns: 0,
            last_ns: now_ns,
        };
        Self {
            plan,
            phase: Phase::Running,
            next: 0,
            submissions: vec![0; plan.depth],
            epoch: 0,
            tally,
            units: Units::new(blocks),
        }
    }

    /// What was counted so far.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// One look at everything. After `end_ns` nothing new is submitted.
    pub(super) fn step(
        &mut self,
        station: &mut impl Station,
        clock: &impl Clock,
        end_ns: u64,
    ) -> Result<Step, Failure> {
        let now = clock.now_ns();
        match self.phase {
            Phase::Running => self.run(station, clock, now, end_ns),
            Phase::Leaving { since_ns, marked_ns } => {
                self.leave(station, now, now >= end_ns, since_ns, marked_ns)
            }
            Phase::Aside { since_ns } => {
                let epoch = station.epoch()?;
                if now >= end_ns {
                    self.tally.aside_ns += now - since_ns;
                    return Ok(Step::Done);
                }
                if epoch % 2 == 1 || !station.lower_flag(epoch) {
                    return Ok(Step::Idle);
                }
                self.tally.aside_ns += now - since_ns;
                (self.epoch, self.phase) = (epoch, Phase::Running);
                self.next = self.tally.completed;
                Ok(Step::Busy)
            }
        }
    }

    /// At the end: what became of all launches, also of those that are not complete.
    pub(super) fn finish(mut self, station: &mut impl Station, is_drained: bool) -> (Tally, Units) {
        for launch in self.tally.completed..self.tally.completed + self.plan.depth as u64 {
            let submissions = self.submissions[self.slot(launch)];
            match (submissions, is_drained) {
                (0, _) => {}
                (1.., true) => self.units.abandon(&station.record(launch), submissions),
                (1.., false) => self.units.lose_sight(),
            }
        }
        (self.tally, self.units)
    }

    fn run(
        &mut self,
        station: &mut impl Station,
        clock: &impl Clock,
        now: u64,
        end_ns: u64,
    ) -> Result<Step, Failure> {
        if station.epoch()? != self.epoch {
            return self.reset(station, clock, now);
        }
        let oldest = self.tally.completed;
        if oldest < self.next && station.is_over(oldest)? {
            if self.complete(station, now) {
                return Ok(Step::Busy);
            }
            // It found a flag that was set since we looked.
            return self.reset(station, clock, now);
        }
        if now < end_ns && self.next - oldest < self.plan.depth as u64 {
            station.submit(self.next)?;
            let slot = self.slot(self.next);
            self.tally.submitted += 1;
            self.tally.resubmitted += u64::from(self.submissions[slot] > 0);
            self.submissions[slot] += 1;
            self.next += 1;
            return Ok(Step::Busy);
        }
        if now >= end_ns && oldest == self.next {
            return Ok(Step::Done);
        }
        let late = Duration::from_nanos(now.saturating_sub(end_ns));
        Ok(if late > GRACE { Step::Stuck } else { Step::Idle })
    }

    /// The flag is set; the second step, and on to the third.
    fn reset(
        &mut self,
        station: &mut impl Station,
        clock: &impl Clock,
        now: u64,
    ) -> Result<Step, Failure> {
        self.tally.resets += 1;
        if self.plan.clear_ring && self.tally.completed < self.next {
            station.clear_ring()?;
            self.tally.clear.record(clock.now_ns().saturating_sub(now));
        }
        self.phase = Phase::Leaving { since_ns: now, marked_ns: None };
        Ok(Step::Busy)
    }

    /// The third step. The marks of launches that were taken out of the ring are never reached, so
    /// once the request is over a mark of our own says where the end is: with the flag still set,
    /// so that launches that come back with it find the flag and leave.
    fn leave(
        &mut self,
        station: &mut impl Station,
        now: u64,
        is_end: bool,
        since_ns: u64,
        marked_ns: Option<u64>,
    ) -> Result<Step, Failure> {
        let is_empty = self.tally.completed == self.next;
        if is_empty
            || station.is_over(self.next - 1)?
            || (marked_ns.is_some() && station.is_mark_over()?)
        {
            if marked_ns.is_none() {
                self.tally.leave.record(now - since_ns);
            }
            while self.tally.completed < self.next && self.complete(station, now) {}
            self.phase = Phase::Aside { since_ns: now };
            return Ok(Step::Busy);
        }
        let waits_for_quiet = self.plan.clear_ring && marked_ns.is_none();
        if waits_for_quiet && (is_end || station.epoch()? % 2 == 0) {
            station.submit_mark()?;
            self.tally.marks += 1;
            self.phase = Phase::Leaving { since_ns, marked_ns: Some(now) };
            return Ok(Step::Busy);
        }
        let waited = Duration::from_nanos(now - marked_ns.unwrap_or(since_ns));
        Ok(if waited > LEAVE_MAX && !waits_for_quiet { Step::Stuck } else { Step::Idle })
    }

    /// Takes the oldest launch for complete if it is.
    fn complete(&mut self, station: &mut impl Station, now: u64) -> bool {
        let launch = self.tally.completed;
        let record = station.record(launch);
        if !is_complete(&record) {
            return false;
        }
        let slot = self.slot(launch);
        self.units.complete(&record, self.submissions[slot]);
        self.submissions[slot] = 0;
        station.forget(launch);
        self.tally.completed += 1;
        self.tally.last_ns = now;
        true
    }

    fn slot(&self, launch: u64) -> usize {
        // PANIC: a remainder of a usize fits one.
        usize::try_from(launch % self.plan.depth as u64).expect("a slot")
    }
}

#[cfg(test)]
mod tests;
