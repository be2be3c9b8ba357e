//! The best-effort loop with resets, as a state machine around [`Launches`].
//!
//! ```text
//!              request: set flag, maybe empty the ring
//!   Running ------------------------------------------> Leaving
//!      ^                                                   | no work on the device
//!      |   request over: clear flag, submit from the       v
//!      +---------------------------------------------- Aside
//!          first launch that is not complete
//! ```
//!
//! No wait is unlimited, and none happens inside the driver.

use std::time::Duration;

use super::units::{Units, is_complete};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::lines::Latency;

/// How long work in flight may take to leave the device.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(2);
/// How long launches in flight may take after the end.
pub(super) const DRAIN: Duration = Duration::from_secs(30);

/// The device. Launches are numbered; a launch that is submitted again does the same work.
pub(super) trait Launches {
    /// Submits a launch, for the first time or again.
    fn submit(&mut self, launch: u64) -> Result<(), Failure>;
    /// Whether a launch, as it was submitted last, and everything before it is over.
    fn is_over(&mut self, launch: u64) -> Result<bool, Failure>;
    /// For each block of a launch, how often it ran and how often it exited because of the flag.
    fn record(&mut self, launch: u64) -> Vec<u32>;
    /// Frees the slot of a complete launch.
    fn forget(&mut self, launch: u64);
    /// How often a request began or ended: odd while one runs. The flag is set then.
    fn epoch(&mut self) -> Result<u64, Failure>;
    /// Clears the flag, unless a request began or ended since that epoch.
    fn lower_flag(&mut self, epoch: u64) -> bool;
    /// Removes launches from the ring that were not fetched yet.
    fn clear_ring(&mut self) -> Result<(), Failure>;
    /// Submits an event. Launches that the driver still counts as in the ring complete before it.
    fn submit_mark(&mut self) -> Result<(), Failure>;
    /// Whether that event, and so everything before it, is complete.
    fn is_mark_over(&mut self) -> Result<bool, Failure>;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ResetOptions {
    /// Launches in flight.
    pub(super) depth: usize,
    pub(super) clear_ring: bool,
}

#[derive(Clone, Debug)]
pub(super) struct ResetCounts {
    /// Launches that are complete: where the next submission after a reset begins.
    pub(super) completed: u64,
    pub(super) submitted: u64,
    /// Submissions of launches that had been submitted before.
    pub(super) resubmitted: u64,
    pub(super) resets: u64,
    /// Events submitted to find the end of an emptied ring.
    pub(super) marks: u64,
    /// How long emptying the ring took.
    pub(super) clear: Latency,
    /// How long work took to leave the device, in resets that needed no such event.
    pub(super) leave: Latency,
    /// How long the load had no work on the device because of a request.
    pub(super) aside_ns: u64,
    /// When the last launch was found complete.
    pub(super) last_ns: u64,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The state changed; call again at once.
    Busy,
    Idle,
    Done,
    /// The device did not complete its work in time.
    Stuck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Leaving { since_ns: u64, marked_ns: Option<u64> },
    Aside { since_ns: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct ResetLoop {
    options: ResetOptions,
    phase: Phase,
    /// The launch that is submitted next; those from `completed` to here are in flight.
    next: u64,
    /// For each slot, how often its launch was submitted.
    submissions: Vec<u32>,
    /// The epoch that the state reflects.
    epoch: u64,
    pub(super) counts: ResetCounts,
    units: Units,
}

impl ResetLoop {
    pub(super) fn new(options: ResetOptions, blocks: usize, now_ns: u64) -> Self {
        let counts = ResetCounts {
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
            options,
            phase: Phase::Running,
            next: 0,
            submissions: vec![0; options.depth],
            epoch: 0,
            counts,
            units: Units::new(blocks),
        }
    }

    /// Polls the device and acts. After `end_ns` nothing new is submitted.
    pub(super) fn step(
        &mut self,
        launches: &mut impl Launches,
        clock: &impl Clock,
        end_ns: u64,
    ) -> Result<Step, Failure> {
        let now = clock.now_ns();
        match self.phase {
            Phase::Running => self.run(launches, clock, now, end_ns),
            Phase::Leaving { since_ns, marked_ns } => {
                self.leave(launches, now, now >= end_ns, since_ns, marked_ns)
            }
            Phase::Aside { since_ns } => {
                let epoch = launches.epoch()?;
                if now >= end_ns {
                    self.counts.aside_ns += now - since_ns;
                    return Ok(Step::Done);
                }
                if epoch % 2 == 1 || !launches.lower_flag(epoch) {
                    return Ok(Step::Idle);
                }
                self.counts.aside_ns += now - since_ns;
                (self.epoch, self.phase) = (epoch, Phase::Running);
                self.next = self.counts.completed;
                Ok(Step::Busy)
            }
        }
    }

    /// The counts of all launches, also of those that are not complete.
    pub(super) fn finish(
        mut self,
        launches: &mut impl Launches,
        is_drained: bool,
    ) -> (ResetCounts, Units) {
        for launch in self.counts.completed..self.counts.completed + self.options.depth as u64 {
            let submissions = self.submissions[self.slot(launch)];
            match (submissions, is_drained) {
                (0, _) => {}
                (1.., true) => self.units.abandon(&launches.record(launch), submissions),
                (1.., false) => self.units.abandon_unread(),
            }
        }
        (self.counts, self.units)
    }

    fn run(
        &mut self,
        launches: &mut impl Launches,
        clock: &impl Clock,
        now: u64,
        end_ns: u64,
    ) -> Result<Step, Failure> {
        if launches.epoch()? != self.epoch {
            return self.reset(launches, clock, now);
        }
        let oldest = self.counts.completed;
        if oldest < self.next && launches.is_over(oldest)? {
            if self.complete(launches, now) {
                return Ok(Step::Busy);
            }
            // Its blocks found a flag that was set after the epoch was read.
            return self.reset(launches, clock, now);
        }
        if now < end_ns && self.next - oldest < self.options.depth as u64 {
            launches.submit(self.next)?;
            let slot = self.slot(self.next);
            self.counts.submitted += 1;
            self.counts.resubmitted += u64::from(self.submissions[slot] > 0);
            self.submissions[slot] += 1;
            self.next += 1;
            return Ok(Step::Busy);
        }
        if now >= end_ns && oldest == self.next {
            return Ok(Step::Done);
        }
        let late = Duration::from_nanos(now.saturating_sub(end_ns));
        Ok(if late > DRAIN { Step::Stuck } else { Step::Idle })
    }

    /// The flag is set: empties the ring and waits for running blocks.
    fn reset(
        &mut self,
        launches: &mut impl Launches,
        clock: &impl Clock,
        now: u64,
    ) -> Result<Step, Failure> {
        self.counts.resets += 1;
        if self.options.clear_ring && self.counts.completed < self.next {
            launches.clear_ring()?;
            self.counts.clear.record(clock.now_ns().saturating_sub(now));
        }
        self.phase = Phase::Leaving { since_ns: now, marked_ns: None };
        Ok(Step::Busy)
    }

    /// Waits until the device has none of the work. The events of launches that were removed from
    /// the ring never complete, so after the request another event marks the end. The flag is still
    /// set then, so that removed launches that run after all exit at once.
    fn leave(
        &mut self,
        launches: &mut impl Launches,
        now: u64,
        is_end: bool,
        since_ns: u64,
        marked_ns: Option<u64>,
    ) -> Result<Step, Failure> {
        let is_empty = self.counts.completed == self.next;
        if is_empty
            || launches.is_over(self.next - 1)?
            || (marked_ns.is_some() && launches.is_mark_over()?)
        {
            if marked_ns.is_none() {
                self.counts.leave.record(now - since_ns);
            }
            while self.counts.completed < self.next && self.complete(launches, now) {}
            self.phase = Phase::Aside { since_ns: now };
            return Ok(Step::Busy);
        }
        let waits_for_request = self.options.clear_ring && marked_ns.is_none();
        if waits_for_request && (is_end || launches.epoch()? % 2 == 0) {
            launches.submit_mark()?;
            self.counts.marks += 1;
            self.phase = Phase::Leaving { since_ns, marked_ns: Some(now) };
            return Ok(Step::Busy);
        }
        let waited = Duration::from_nanos(now - marked_ns.unwrap_or(since_ns));
        Ok(if waited > LEAVE_MAX && !waits_for_request { Step::Stuck } else { Step::Idle })
    }

    /// Counts the oldest launch if it is complete.
    fn complete(&mut self, launches: &mut impl Launches, now: u64) -> bool {
        let launch = self.counts.completed;
        let record = launches.record(launch);
        if !is_complete(&record) {
            return false;
        }
        let slot = self.slot(launch);
        self.units.complete(&record, self.submissions[slot]);
        self.submissions[slot] = 0;
        launches.forget(launch);
        self.counts.completed += 1;
        self.counts.last_ns = now;
        true
    }

    fn slot(&self, launch: u64) -> usize {
        // PANIC: a remainder of a usize fits one.
        usize::try_from(launch % self.options.depth as u64).expect("a slot")
    }
}
