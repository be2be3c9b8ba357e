//! Decides when to place and release the hold of one context, from samples of its rings and from
//! hints.
//!
//! New work: place the hold, so that it bridges the first gap; the device has to switch to the
//! context anyway, and that takes longer than a sample. Idle for longer than the release threshold:
//! release it ([`ReleaseThreshold`]). The context is idle when its work has finished, where the
//! watcher can tell; else from the last movement of a ring, but not before the context is on the
//! engine, because what was fetched before has not run. No hold lasts longer than a maximum
//! without new work, so a program that hangs or is stopped cannot keep the device. A program whose
//! requests have no gaps gains nothing from a hold, so after a while it gets none. Two of its
//! requests may follow each other closely by chance, so the policy counts how many holds bridged a
//! gap. Where all requests submit the same (`RequestLength`), the hold ends with the last of it.
//! If requests without gaps come periodically, the hold is placed just before the next one
//! ([`ArrivalPredictor`]): their switch would take longer than they do. Idle time that bridged
//! nothing is charged to the device's [`IdleAllowance`], and there is no hold while that is used
//! up.

use crate::arrival_predictor::ArrivalPredictor;
use crate::hold::{ContextSample, Execution, HoldAction, HoldLimits, ReleaseReason};
use crate::idle_allowance::IdleAllowance;
use crate::release_threshold::ReleaseThreshold;
use crate::request_length::RequestLength;
use crate::time::{Duration, Instant};

/// The shortest and the longest time that a switch is taken to last, whatever was measured.
const SWITCH_MIN: Duration = Duration::from_micros(100);
const SWITCH_MAX: Duration = Duration::from_micros(1_000);
/// If fewer than half of the last 16 holds (at least 8) bridged a gap, only every 64th request is
/// held, to detect a change, and the fourth of four submissions that follow each other closely.
const CLOSELY: Duration = Duration::from_micros(1_000);
const CLOSE_ENOUGH: u32 = 3;
const OUTCOMES_MAX: u32 = u16::BITS;
const OUTCOMES_ENOUGH: u32 = 8;
const TRY_EVERY: u32 = 64;
/// Packets that a program does not submit between two samples: a launch takes the processor 10 us
/// or more.
const MUCH_MORE: u64 = 8;

/// The state of one context.
#[derive(Debug)]
pub struct HoldPolicy {
    limits: HoldLimits,
    permitted: bool,
    hinted: bool,
    /// The last hold was for hints alone and reached its maximum: hints place no hold until the
    /// program submits work.
    hint_hold_expired: bool,
    /// A hint ended after the last sample: what the next one finds submitted belongs to the request
    /// that is over.
    hint_has_ended: bool,
    held: Option<PlacedHold>,
    submitted_at: Option<Instant>,
    /// Since when a context that is, or was last, held and on the engine has been idle.
    idle_since: Option<Instant>,
    threshold: ReleaseThreshold,
    /// From placing a hold until the context is on the engine, averaged.
    switch: Duration,
    outcomes: HoldOutcomes,
    arrivals: ArrivalPredictor,
    length: RequestLength,
    /// Submissions in a row that followed the last one closely.
    close: u32,
    /// Requests since the last hold.
    skipped: u32,
}

/// The last holds: a bit each, set if it bridged a gap, the last one lowest.
#[derive(Clone, Copy, Debug, Default)]
struct HoldOutcomes {
    bridged: u16,
    count: u32,
}

impl HoldOutcomes {
    fn add(&mut self, bridged: bool) {
        self.bridged = self.bridged << 1 | u16::from(bridged);
        self.count = (self.count + 1).min(OUTCOMES_MAX);
    }

    /// Whether most holds bridged no gap.
    const fn are_futile(self) -> bool {
        self.count >= OUTCOMES_ENOUGH && self.bridged.count_ones() * 2 < self.count
    }
}

#[derive(Clone, Copy, Debug)]
struct PlacedHold {
    placed_at: Instant,
    moved_at: Instant,
    on_engine_at: Option<Instant>,
    bridged: bool,
    /// Whether the program worked since the maximum began to count.
    has_worked: bool,
    placed_for: PlacedFor,
}

/// Why a hold was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlacedFor {
    /// The program submitted work.
    Work,
    /// It gave a hint, and has submitted nothing since.
    Hint,
    /// A request is expected until then.
    Arrival { until: Instant },
    /// The request that was expected has come.
    ExpectedWork,
}

impl PlacedFor {
    const fn awaits_work(self) -> bool {
        matches!(self, Self::Hint | Self::Arrival { .. })
    }
}

impl HoldPolicy {
    /// The policy of a context that may not be held yet.
    pub fn new(limits: HoldLimits) -> Self {
        Self {
            limits,
            permitted: false,
            hinted: false,
            hint_hold_expired: false,
            hint_has_ended: false,
            held: None,
            submitted_at: None,
            idle_since: None,
            threshold: ReleaseThreshold::new(limits.release_cost(limits.switch), limits.hold_max),
            switch: limits.switch,
            outcomes: HoldOutcomes::default(),
            arrivals: ArrivalPredictor::default(),
            length: RequestLength::default(),
            close: 0,
            skipped: 0,
        }
    }

    /// Whether the scheduler permits a hold.
    pub const fn is_permitted(&self) -> bool {
        self.permitted
    }

    /// Whether the device is held, or about to be.
    pub const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the request that runs is complete with so many packets: no more work is expected
    /// when these have finished.
    pub fn is_complete_with(&self, packets: u64) -> bool {
        self.is_held() && self.length.is_complete_with(packets)
    }

    /// Whether the next sample may be omitted: the context is held, and its request will submit
    /// much more.
    pub fn may_omit_sample(&self) -> bool {
        let is_on_engine = self.held.is_some_and(|held| held.on_engine_at.is_some());
        is_on_engine && self.length.expected() >= MUCH_MORE
    }

    /// How long the context may be idle now before its hold is released.
    pub fn release_threshold(&self) -> Duration {
        self.threshold.current()
    }

    /// When to take the next sample of a context that is idle, so that a request that is expected
    /// finds the device held.
    pub fn next_arrival_at(&self) -> Option<Instant> {
        self.arrivals.next_at().filter(|_| self.outcomes.are_futile())
    }

    /// The part of the expected requests that came, in per cent, while requests are predicted.
    pub fn predicted_percent(&self) -> Option<u32> {
        self.arrivals.hit_percent().filter(|_| self.outcomes.are_futile())
    }

    /// The scheduler permits a hold. A hint that is active places it at once.
    pub fn permit(&mut self, now: Instant, allowance: &IdleAllowance) -> Option<HoldAction> {
        self.permitted = true;
        // In the middle of a request, other contexts must not run in its gaps.
        let threshold = self.threshold.current();
        let is_in_request = self.submitted_at.is_some_and(|at| now.since(at) < threshold);
        let is_hinted = self.hinted && !self.hint_hold_expired;
        if self.held.is_none() && (is_hinted || is_in_request && !self.outcomes.are_futile()) {
            let placed_for = if is_hinted { PlacedFor::Hint } else { PlacedFor::Work };
            return self.place(now, placed_for, allowance);
        }
        None
    }

    /// The scheduler permits no hold any more.
    pub fn forbid(&mut self, now: Instant, allowance: &mut IdleAllowance) -> Option<HoldAction> {
        self.permitted = false;
        self.charge(now, allowance);
        self.held.take().map(|_| HoldAction::Release(ReleaseReason::Forbidden))
    }

    /// A hint begins. Hints alone hold for no longer than the maximum, however many there are.
    pub fn hint_begin(&mut self, now: Instant, allowance: &IdleAllowance) -> Option<HoldAction> {
        self.hinted = true;
        if let Some(held) = &mut self.held {
            if core::mem::take(&mut held.has_worked) {
                held.moved_at = now;
            }
            return None;
        }
        if !self.permitted || self.hint_hold_expired {
            return None;
        }
        self.place(now, PlacedFor::Hint, allowance)
    }

    /// A hint ends.
    pub fn hint_end(
        &mut self,
        now: Instant,
        pending: bool,
        allowance: &mut IdleAllowance,
    ) -> Option<HoldAction> {
        self.hint_has_ended = core::mem::take(&mut self.hinted);
        if pending {
            return None;
        }
        // The program says that the request is over, so the threshold is not waited for.
        self.charge(now, allowance);
        self.held.take().map(|_| HoldAction::Release(ReleaseReason::Quiet))
    }

    /// The keeper ended the hold, or it could not be placed.
    pub fn ended(&mut self) {
        self.held = None;
    }

    /// Takes in a sample.
    pub fn take_sample(
        &mut self,
        now: Instant,
        sample: ContextSample,
        allowance: &mut IdleAllowance,
    ) -> Option<HoldAction> {
        let belongs_to_ended_hint = core::mem::take(&mut self.hint_has_ended) && !sample.pending;
        let is_awaited = self.held.is_some_and(|held| held.placed_for.awaits_work());
        // While the device is kept for a request, the context is idle for longer than that.
        let idle_since = self.idle_since.filter(|_| !is_awaited);
        let since_last = idle_since.or(self.submitted_at).map(|at| now.since(at));
        if sample.submitted {
            self.take_submission(now, since_last, is_awaited);
        }
        self.length.submitted(sample.packets);
        if self.held.is_none() {
            let is_new = sample.submitted && !belongs_to_ended_hint;
            if is_new && self.permitted && self.is_worthwhile() {
                return self.place(now, PlacedFor::Work, allowance);
            }
            let until = self.arrivals.expects_until(now)?;
            let is_idle = !sample.submitted && !sample.pending && !self.hinted;
            if self.permitted && is_idle && self.outcomes.are_futile() {
                return self.place(now, PlacedFor::Arrival { until }, allowance);
            }
            return None;
        }
        self.sample_held(now, sample);
        self.release_if_over(now, sample.execution, allowance)
    }

    /// Work was submitted, that long after the context was last active.
    fn take_submission(&mut self, now: Instant, since_last: Option<Duration>, is_awaited: bool) {
        self.submitted_at = Some(now);
        self.hint_hold_expired = false;
        let is_first = since_last.is_none_or(|since| since > CLOSELY);
        self.close = if is_first { 0 } else { self.close.saturating_add(1) };
        if is_first {
            self.arrivals.request_began(now, &self.limits, self.switch);
        }
        // A shorter pause is worth bridging, so it is no end of a request.
        if since_last.is_none_or(|since| since > self.limits.release_cost(self.switch)) {
            self.length.request_began();
        }
        let idle_since = self.idle_since.take();
        if is_awaited {
            // The device was kept for this request: its idle time is no gap of the program.
            return;
        }
        let is_on_engine = self.held.is_some_and(|held| held.on_engine_at.is_some());
        if idle_since.is_some() || is_on_engine {
            // Without an idle sample the gap was shorter than the time between two samples.
            self.threshold.learn(idle_since.map_or(Duration::ZERO, |since| now.since(since)));
        }
    }

    /// Releases the hold if it has lasted, or the context has been idle, for too long.
    fn release_if_over(
        &mut self,
        now: Instant,
        execution: Execution,
        allowance: &mut IdleAllowance,
    ) -> Option<HoldAction> {
        let held = self.held?;
        let left = allowance.left(now);
        if now.since(held.moved_at) >= self.limits.hold_max {
            if execution != Execution::Running {
                // A program that hangs with work that was not fetched is idle too.
                self.idle_since.get_or_insert(held.moved_at);
            }
            self.hint_hold_expired = !held.has_worked;
            return Some(self.release(now, ReleaseReason::Expired, allowance));
        }
        if let PlacedFor::Arrival { until } = held.placed_for {
            return (now >= until).then(|| self.release(now, ReleaseReason::Quiet, allowance));
        }
        let idle = now.since(self.idle_since?);
        if self.hinted {
            let is_used_up = idle >= left;
            self.hint_hold_expired |= is_used_up && !held.has_worked;
            return is_used_up.then(|| self.release(now, ReleaseReason::Expired, allowance));
        }
        // A request of known length, or without gaps, is over when its work has finished.
        let is_single = held.placed_for == PlacedFor::ExpectedWork && self.outcomes.are_futile();
        let is_last = is_single || self.length.is_complete();
        let threshold = match (is_last, matches!(execution, Execution::FinishedAt(_))) {
            (true, true) => Duration::ZERO,
            (true, false) => ReleaseThreshold::MIN,
            (false, _) => self.threshold.current(),
        };
        let is_over = idle >= threshold.min(left);
        is_over.then(|| self.release(now, ReleaseReason::Quiet, allowance))
    }

    /// Takes in a sample of a context that is held, or about to be.
    fn sample_held(&mut self, now: Instant, sample: ContextSample) {
        let Some(held) = &mut self.held else { return };
        let is_first = held.placed_for.awaits_work();
        if sample.submitted {
            held.placed_for = match held.placed_for {
                PlacedFor::Work | PlacedFor::Hint => PlacedFor::Work,
                PlacedFor::Arrival { .. } | PlacedFor::ExpectedWork => PlacedFor::ExpectedWork,
            };
        }
        if sample.submitted || sample.fetched {
            held.moved_at = now;
            held.has_worked = true;
        }
        if sample.loaded && held.on_engine_at.is_none() {
            held.on_engine_at = Some(now);
            let measured = now.since(held.placed_at).max(SWITCH_MIN).min(SWITCH_MAX);
            let average = (self.switch.times(7) + measured).as_nanos() / 8;
            self.switch = Duration::from_nanos(average);
            self.threshold.set_release_cost(self.limits.release_cost(self.switch));
        } else if sample.submitted && !is_first && held.on_engine_at.is_some() {
            held.bridged = true;
        }
        let finished_at = match sample.execution {
            Execution::Unknown => Some(held.moved_at),
            Execution::Running => None,
            Execution::FinishedAt(at) => Some(at),
        };
        let is_idle = !sample.pending && !sample.submitted;
        let idle_since = held.on_engine_at.zip(finished_at).map(|(on, at)| on.max(at));
        self.idle_since = idle_since.filter(|_| is_idle);
    }

    /// Places a hold, unless holds have kept the device idle in vain for too long.
    fn place(
        &mut self,
        now: Instant,
        placed_for: PlacedFor,
        allowance: &IdleAllowance,
    ) -> Option<HoldAction> {
        if allowance.left(now) < ReleaseThreshold::MIN {
            return None;
        }
        self.skipped = 0;
        self.held = Some(PlacedHold {
            placed_at: now,
            moved_at: now,
            on_engine_at: None,
            bridged: false,
            has_worked: false,
            placed_for,
        });
        Some(HoldAction::Place)
    }

    fn release(
        &mut self,
        now: Instant,
        reason: ReleaseReason,
        allowance: &mut IdleAllowance,
    ) -> HoldAction {
        self.charge(now, allowance);
        if let Some(held) = self.held.take() {
            // A prediction says nothing about the gaps of a program, unless it bridged one.
            if held.bridged || matches!(held.placed_for, PlacedFor::Work | PlacedFor::Hint) {
                self.outcomes.add(held.bridged);
            }
        }
        HoldAction::Release(reason)
    }

    /// Charges the idle time at the end of a hold, which bridges nothing.
    fn charge(&self, now: Instant, allowance: &mut IdleAllowance) {
        if let (Some(_), Some(since)) = (self.held, self.idle_since) {
            allowance.charge(now, now.since(since));
        }
    }

    /// Whether a hold for the work that was just submitted may bridge a gap.
    fn is_worthwhile(&mut self) -> bool {
        if !self.outcomes.are_futile() {
            return true;
        }
        // Submissions so soon after each other may follow gaps within a request. Two of a program
        // with requests at random times are so by chance.
        if self.close >= CLOSE_ENOUGH {
            return true;
        }
        self.skipped += 1;
        self.skipped >= TRY_EVERY
    }
}

#[cfg(test)]
mod tests;
