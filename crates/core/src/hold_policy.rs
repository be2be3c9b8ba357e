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
//! gap. If such requests come periodically, the hold is placed just before the next
//! one ([`ArrivalPredictor`]): their switch would take longer than they do. Idle time that bridged nothing is charged to the device's [`IdleAllowance`], and there is
//! no hold while that is used up.

use crate::arrival_predictor::ArrivalPredictor;
use crate::hold::{ContextSample, Execution, HoldAction, HoldLimits, ReleaseReason};
use crate::idle_allowance::IdleAllowance;
use crate::release_threshold::ReleaseThreshold;
use crate::time::{Duration, Instant};

/// The shortest and the longest time that a switch is taken to last, whatever was measured.
const SWITCH_MIN: Duration = Duration::from_micros(100);
const SWITCH_MAX: Duration = Duration::from_micros(1_000);
/// If fewer than half of the last 16 holds (at least 8) bridged a gap, only every 16th request is
/// held, to detect a change, and any submission that follows the last one this closely.
const CLOSELY: Duration = Duration::from_micros(1_000);
const OUTCOMES_MAX: u32 = u16::BITS;
const OUTCOMES_ENOUGH: u32 = 8;
const TRY_EVERY: u32 = 16;

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
        if self.held.is_none() {
            let is_new = sample.submitted && !belongs_to_ended_hint;
            if is_new && self.permitted && self.is_worthwhile(since_last) {
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
        if since_last.is_none_or(|since| since > CLOSELY) {
            self.arrivals.request_began(now, &self.limits, self.switch);
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
        // A request without gaps is over when its work has finished.
        let is_single = held.placed_for == PlacedFor::ExpectedWork && self.outcomes.are_futile();
        let threshold = match (is_single, matches!(execution, Execution::FinishedAt(_))) {
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
    fn is_worthwhile(&mut self, since_last: Option<Duration>) -> bool {
        if !self.outcomes.are_futile() {
            return true;
        }
        // A second submission so soon may follow a gap within a request.
        if since_last.is_some_and(|since| since <= CLOSELY) {
            return true;
        }
        self.skipped += 1;
        self.skipped >= TRY_EVERY
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    const TICK: u64 = 100;
    /// The release threshold of a program that was not held yet, in samples: break-even.
    const THRESHOLD_AT_FIRST: u64 = 1_500;

    /// A program and a device, in steps of a sample.
    struct SimulatedContext {
        policy: HoldPolicy,
        allowance: IdleAllowance,
        now_us: u64,
        begun_us: u64,
        /// The state of the pauses between requests.
        pauses: u64,
        execution: Execution,
        placed_at: Option<u64>,
        moves: Vec<(u64, HoldAction)>,
    }

    impl SimulatedContext {
        fn new() -> Self {
            let mut policy = HoldPolicy::new(HoldLimits::default());
            let allowance = IdleAllowance::default();
            assert_eq!(policy.permit(Instant::from_nanos(0), &allowance), None);
            Self {
                policy,
                allowance,
                now_us: 1_000_000,
                begun_us: 0,
                pauses: 5,
                execution: Execution::Unknown,
                placed_at: None,
                moves: Vec::new(),
            }
        }

        fn now(&self) -> Instant {
            Instant::from_nanos(self.now_us * 1_000)
        }

        fn take(&mut self, action: Option<HoldAction>) {
            if let Some(action) = action {
                self.placed_at = (action == HoldAction::Place).then_some(self.now_us);
                self.moves.push((self.now_us, action));
            }
        }

        /// One sample. The device reaches the wait command 200 us after the hold is placed.
        fn sample(&mut self, submitted: bool, pending: bool) {
            let loaded = self.placed_at.is_some_and(|at| self.now_us >= at + 200);
            let sample = ContextSample {
                submitted,
                fetched: submitted,
                pending,
                loaded,
                execution: self.execution,
            };
            let action = self.policy.take_sample(self.now(), sample, &mut self.allowance);
            self.take(action);
            self.now_us += TICK;
        }

        fn idle(&mut self, samples: u32) {
            for _ in 0..samples {
                self.sample(false, false);
            }
        }

        /// A request of kernels that many samples apart, and then an idle time of 4 to 8 ms, so
        /// that requests are not periodic.
        fn request(&mut self, kernels: u32, apart: u32) {
            self.begun_us = self.now_us;
            for _ in 0..kernels {
                self.sample(true, false);
                self.idle(apart - 1);
            }
            self.pauses = self.pauses.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.idle(40 + (self.pauses >> 33) as u32 % 40);
        }

        fn places(&self) -> usize {
            self.moves.iter().filter(|(_, action)| *action == HoldAction::Place).count()
        }

        fn releases(&self) -> Vec<ReleaseReason> {
            let ending = |(_, action): &(u64, HoldAction)| match action {
                HoldAction::Release(ending) => Some(*ending),
                HoldAction::Place => None,
            };
            self.moves.iter().filter_map(ending).collect()
        }
    }

    #[test]
    fn one_hold_bridges_all_gaps_of_a_request() {
        let mut context = SimulatedContext::new();
        context.request(20, 2);
        assert_eq!((context.places(), context.releases()), (1, vec![ReleaseReason::Quiet]));
        let (placed, released) = (context.moves[0].0, context.moves[1].0);
        assert!(released > placed + 20 * 2 * TICK, "{placed} to {released}");
    }

    #[test]
    fn the_quiet_time_begins_when_the_context_is_on_the_engine() {
        let mut context = SimulatedContext::new();
        context.request(1, 1);
        let (placed, released) = (context.moves[0].0, context.moves[1].0);
        assert_eq!(released - placed, 200 + THRESHOLD_AT_FIRST);
    }

    #[test]
    fn the_quiet_time_begins_when_execution_has_finished() {
        let mut context = SimulatedContext::new();
        context.execution = Execution::Running;
        context.sample(true, false);
        context.idle(100);
        assert_eq!(context.releases(), [], "a kernel of 10 ms still runs");
        let finished = context.now_us;
        context.execution = Execution::FinishedAt(context.now());
        context.idle(20);
        assert_eq!(context.releases(), [ReleaseReason::Quiet]);
        assert_eq!(context.moves[1].0 - finished, THRESHOLD_AT_FIRST);
    }

    #[test]
    fn the_threshold_follows_the_programs_own_gaps() {
        for (apart, threshold_us) in [(1, 150..=200), (3, 300..=475)] {
            let mut context = SimulatedContext::new();
            for _ in 0..20 {
                context.request(20, apart);
            }
            let learnt = context.policy.release_threshold().as_micros();
            assert!(threshold_us.contains(&learnt), "{apart}: {learnt} us");
            let before = context.places();
            context.request(20, apart);
            assert_eq!(context.places(), before + 1, "no gap was longer than the threshold");
        }
    }

    #[test]
    fn a_gap_is_bridged_if_that_costs_less_than_two_switches() {
        let mut context = SimulatedContext::new();
        // Two kernels every 5 ms. The first is on the engine after 200 us, the second 400 us later.
        for _ in 0..200 {
            context.request(2, 6);
        }
        let learnt = context.policy.release_threshold().as_micros();
        assert!((400..=600).contains(&learnt), "{learnt} us");
    }

    #[test]
    fn single_kernels_soon_get_no_hold_and_requests_get_one_again_at_once() {
        let mut context = SimulatedContext::new();
        for _ in 0..100 {
            context.request(1, 1);
        }
        assert!(context.places() < 20, "{}", context.places());
        let before = context.places();
        context.request(20, 2);
        assert!(context.places() > before);
        let before = context.places();
        for _ in 0..10 {
            context.request(20, 2);
        }
        assert_eq!(context.places(), before + 10);
    }

    #[test]
    fn single_kernels_at_random_times_get_no_hold_either() {
        let mut context = SimulatedContext::new();
        // One sample in forty finds a kernel; sometimes two follow so closely that it resembles a
        // gap.
        let (mut state, mut requests) = (7_u64, 0);
        for _ in 0..80_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let is_kernel = (state >> 33).is_multiple_of(40);
            requests += usize::from(is_kernel);
            context.sample(is_kernel, false);
        }
        let held = context.places();
        assert!(held < requests * 4 / 10, "{held} holds for {requests} requests");
        // Requests with gaps get a hold at once, and soon from the first kernel on.
        context.request(20, 2);
        let before = context.places();
        for _ in 0..20 {
            context.request(20, 2);
        }
        assert_eq!(context.places(), before + 20);
        let last =
            context.moves.iter().rev().find(|(_, action)| *action == HoldAction::Place).unwrap().0;
        assert_eq!(last, context.begun_us, "from the first kernel on");
    }

    #[test]
    fn the_hold_of_a_program_that_hangs_expires() {
        let mut context = SimulatedContext::new();
        context.sample(true, true);
        for _ in 0..600 {
            context.sample(false, true);
        }
        assert_eq!((context.places(), context.releases()), (1, vec![ReleaseReason::Expired]));
        assert_eq!(context.moves[1].0 - context.moves[0].0, 50_000);
    }

    #[test]
    fn new_work_renews_the_maximum() {
        let mut context = SimulatedContext::new();
        for _ in 0..1_000 {
            context.sample(true, true);
        }
        assert_eq!(context.releases(), []);
    }

    #[test]
    fn a_hint_places_the_hold_and_its_end_releases_it_at_once() {
        let mut context = SimulatedContext::new();
        let now = context.now();
        let action = context.policy.hint_begin(now, &context.allowance);
        context.take(action);
        assert_eq!(context.places(), 1);
        context.idle(20);
        assert_eq!(context.releases(), [], "the hint is active");
        context.sample(true, false);
        context.idle(5);
        let now = context.now();
        let action = context.policy.hint_end(now, false, &mut context.allowance);
        context.take(action);
        assert_eq!(context.releases(), [ReleaseReason::Quiet]);
        let now = context.now();
        assert_eq!(context.policy.hint_begin(now, &context.allowance), Some(HoldAction::Place));
        context.placed_at = Some(context.now_us);
        context.idle(600);
        assert_eq!(
            context.releases(),
            [ReleaseReason::Quiet, ReleaseReason::Expired],
            "the hinted request never came"
        );
    }

    #[test]
    fn the_last_submission_of_a_hinted_request_places_no_hold_after_it() {
        let mut context = SimulatedContext::new();
        let now = context.now();
        let action = context.policy.hint_begin(now, &context.allowance);
        context.take(action);
        context.idle(5);
        let now = context.now();
        let action = context.policy.hint_end(now, false, &mut context.allowance);
        context.take(action);
        context.sample(true, false);
        assert_eq!((context.places(), context.releases().len()), (1, 1), "it was noticed late");
        context.sample(true, false);
        assert_eq!(context.places(), 2, "another request, without a hint");
    }

    /// One kernel every 5 ms; how many of them found the device held.
    fn single_kernels(context: &mut SimulatedContext, count: u32) -> u32 {
        let mut expected = 0;
        for _ in 0..count {
            expected += u32::from(context.policy.is_held());
            context.sample(true, false);
            context.execution = Execution::FinishedAt(context.now());
            context.idle(49);
            context.execution = Execution::Unknown;
        }
        expected
    }

    #[test]
    fn periodic_single_kernels_find_the_device_held() {
        let mut context = SimulatedContext::new();
        single_kernels(&mut context, 40);
        assert!(single_kernels(&mut context, 100) >= 98);
        assert!(context.policy.predicted_percent() >= Some(95));
        // The device is held for one tenth of the period before the kernel, and not after it.
        let pairs = context.moves.windows(2).filter(|pair| pair[0].1 == HoldAction::Place);
        let longest = pairs.skip(20).map(|pair| pair[1].0 - pair[0].0).max().unwrap();
        assert!(longest <= 600, "{longest} us");
        // They stop: three predictions fail, and no hold is placed after that.
        let before = context.places();
        context.idle(10_000);
        assert_eq!(context.places() - before, 3 - 1, "one window was in the last 5 ms");
        assert_eq!(context.policy.predicted_percent(), None);
    }

    #[test]
    fn without_permission_there_is_no_hold() {
        let mut context = SimulatedContext::new();
        context.sample(true, false);
        let now = context.now();
        let action = context.policy.forbid(now, &mut context.allowance);
        assert_eq!(action, Some(HoldAction::Release(ReleaseReason::Forbidden)));
        context.take(action);
        context.request(20, 2);
        assert_eq!(context.places(), 1);
        context.sample(true, false);
        let now = context.now();
        assert_eq!(
            context.policy.permit(now, &context.allowance),
            Some(HoldAction::Place),
            "it is in the middle of a request"
        );
        let action = context.policy.forbid(now, &mut context.allowance);
        assert_eq!(action, Some(HoldAction::Release(ReleaseReason::Forbidden)));
        context.idle(100);
        let now = context.now();
        assert_eq!(context.policy.permit(now, &context.allowance), None);
    }

    #[test]
    fn hints_alone_hold_no_longer_than_the_maximum() {
        let mut context = SimulatedContext::new();
        let mut held = 0;
        for _ in 0..10_000 {
            // A new hint in every sample.
            let now = context.now();
            let action = context.policy.hint_begin(now, &context.allowance);
            context.take(action);
            held += u32::from(context.policy.is_held());
            context.sample(false, false);
        }
        assert_eq!(context.places(), 1);
        assert!(held <= 501, "{held} samples of 100 us");
        // Work gets a hold again, and so do hints after it.
        context.now_us += 1_000_000;
        context.sample(true, false);
        assert_eq!(context.places(), 2);
        let now = context.now();
        let action = context.policy.hint_end(now, false, &mut context.allowance);
        assert_eq!(action, Some(HoldAction::Release(ReleaseReason::Quiet)));
        assert_eq!(context.policy.hint_begin(now, &context.allowance), Some(HoldAction::Place));
    }

    /// How long the device was held and idle in vain, at most, in any second.
    fn idle_in_vain(context: &SimulatedContext, idle: impl Fn(u64, u64) -> u64) -> u64 {
        let pairs = context.moves.chunks_exact(2);
        let spent: Vec<(u64, u64)> =
            pairs.map(|pair| (pair[1].0, idle(pair[0].0, pair[1].0))).collect();
        let in_second_before = |end: u64| {
            let charged = spent.iter().filter(|(at, _)| (end - 1_000_000..=end).contains(at));
            charged.map(|(_, us)| us).sum()
        };
        spent.iter().map(|(at, _)| in_second_before(*at)).max().unwrap_or(0)
    }

    #[test]
    fn hints_for_work_that_never_comes_cost_at_most_5_percent() {
        let mut context = SimulatedContext::new();
        for _ in 0..2_000 {
            // A hint of 2 ms every 2.5 ms.
            let now = context.now();
            let action = context.policy.hint_begin(now, &context.allowance);
            context.take(action);
            context.idle(20);
            let now = context.now();
            let action = context.policy.hint_end(now, false, &mut context.allowance);
            context.take(action);
            context.idle(5);
        }
        let idle = idle_in_vain(&context, |placed, released| released - placed - 200);
        assert!((40_000..=52_000).contains(&idle), "{idle} us in a second");
    }

    #[test]
    fn random_submissions_cost_at_most_5_percent() {
        let mut context = SimulatedContext::new();
        let (mut state, mut last) = (11_u64, Vec::new());
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let is_kernel = (state >> 33).is_multiple_of(13);
            if is_kernel {
                last.push(context.now_us);
            }
            context.sample(is_kernel, false);
        }
        let idle = idle_in_vain(&context, |placed, released| {
            let before = last.partition_point(|at| *at <= released);
            released - last[before - 1].max(placed + 200).min(released)
        });
        assert!(idle <= 52_000, "{idle} us in a second");
    }
}
