//! Decides when to place and release the hold of one context, from samples of its rings and from
//! hints.
//!
//! New work: place the hold, so that it bridges the first gap; the device has to switch to the
//! context anyway, and that takes longer than a sample. No work for longer than this program's own
//! gaps (the quiet time): release it. The quiet time begins when the work has finished, where the
//! watcher can tell; else with the last movement of a ring, but not before the context is on the
//! engine, because what was fetched before has not run. No hold lasts longer than a maximum
//! without new work, so a program that hangs or is stopped cannot keep the device. A program whose
//! requests have no gaps gains nothing from a hold, so after a while it gets none. Two of its
//! requests may follow each other closely by chance, so the policy counts how many holds bridged a
//! gap.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::hold::{ContextSample, Execution, HoldAction, HoldLimits, ReleaseReason};
use crate::time::{Duration, Instant};

/// The shortest quiet time: samples are 100 us apart.
const QUIET_MIN: Duration = Duration::from_micros(150);
/// The longest quiet time: work that comes later is another request.
const QUIET_MAX: Duration = Duration::from_micros(1_000);
/// How much longer than a gap the quiet time is, at least: samples may be late.
const MARGIN: Duration = Duration::from_micros(75);
/// How many gaps are kept, and how many are needed to derive a quiet time.
const GAPS_MAX: usize = 64;
const GAPS_ENOUGH: usize = 16;
/// If fewer than half of the last 16 holds (at least 8) bridged a gap, only every 16th request is
/// held, to detect a change, and any submission within [`QUIET_MAX`] of the last.
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
    held: Option<PlacedHold>,
    submitted_at: Option<Instant>,
    /// When the last work had finished, where the watcher can tell.
    finished_at: Option<Instant>,
    gaps: VecDeque<Duration>,
    quiet: Duration,
    outcomes: HoldOutcomes,
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
    moved_at: Instant,
    on_engine_at: Option<Instant>,
    bridged: bool,
    /// Whether the program worked since the maximum began to count.
    has_worked: bool,
}

impl HoldPolicy {
    /// The policy of a context that may not be held yet.
    pub fn new(limits: HoldLimits) -> Self {
        Self {
            limits,
            permitted: false,
            hinted: false,
            hint_hold_expired: false,
            held: None,
            submitted_at: None,
            finished_at: None,
            gaps: VecDeque::with_capacity(GAPS_MAX),
            quiet: limits.quiet_at_first,
            outcomes: HoldOutcomes::default(),
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

    /// The current quiet time.
    pub const fn quiet(&self) -> Duration {
        self.quiet
    }

    /// The scheduler permits a hold. A hint that is active places it at once.
    pub fn permit(&mut self, now: Instant) -> Option<HoldAction> {
        self.permitted = true;
        // In the middle of a request, other contexts must not run in its gaps.
        let is_in_request = self.submitted_at.is_some_and(|at| now.since(at) < self.quiet);
        let is_hinted = self.hinted && !self.hint_hold_expired;
        if self.held.is_none() && (is_hinted || is_in_request && !self.outcomes.are_futile()) {
            return Some(self.place(now));
        }
        None
    }

    /// The scheduler permits no hold any more.
    pub fn forbid(&mut self) -> Option<HoldAction> {
        self.permitted = false;
        self.held.take().map(|_| HoldAction::Release(ReleaseReason::Forbidden))
    }

    /// A hint begins. Hints alone hold for no longer than the maximum, however many there are.
    pub fn hint_begin(&mut self, now: Instant) -> Option<HoldAction> {
        self.hinted = true;
        if let Some(held) = &mut self.held {
            if core::mem::take(&mut held.has_worked) {
                held.moved_at = now;
            }
            return None;
        }
        (self.permitted && !self.hint_hold_expired).then(|| self.place(now))
    }

    /// A hint ends.
    pub fn hint_end(&mut self, pending: bool) -> Option<HoldAction> {
        self.hinted = false;
        if pending {
            return None;
        }
        // The program says that the request is over, so the quiet time is not waited for.
        self.held.take().map(|_| HoldAction::Release(ReleaseReason::Quiet))
    }

    /// The keeper ended the hold, or it could not be placed.
    pub fn ended(&mut self) {
        self.held = None;
    }

    /// Takes in a sample.
    pub fn take_sample(&mut self, now: Instant, sample: ContextSample) -> Option<HoldAction> {
        let gap = self.finished_at.or(self.submitted_at).map(|at| now.since(at));
        self.finished_at = match sample.execution {
            Execution::FinishedAt(at) if !sample.submitted => Some(at),
            Execution::Unknown | Execution::Running | Execution::FinishedAt(_) => None,
        };
        if sample.submitted {
            self.submitted_at = Some(now);
            self.hint_hold_expired = false;
        }
        let Some(held) = &mut self.held else {
            return (sample.submitted && self.permitted && self.is_worthwhile(gap))
                .then(|| self.place(now));
        };
        if sample.submitted || sample.fetched {
            held.moved_at = now;
            held.has_worked = true;
        }
        if sample.loaded && held.on_engine_at.is_none() {
            held.on_engine_at = Some(now);
        } else if sample.submitted && held.on_engine_at.is_some() {
            held.bridged = true;
            if let Some(gap) = gap.filter(|gap| *gap <= QUIET_MAX) {
                self.learn(gap);
            }
        }
        let held = self.held?;
        if now.since(held.moved_at) >= self.limits.hold_max {
            self.hint_hold_expired = !held.has_worked;
            return Some(self.release(ReleaseReason::Expired));
        }
        let finished_at = match sample.execution {
            Execution::Unknown => Some(held.moved_at),
            Execution::Running => None,
            Execution::FinishedAt(at) => Some(at),
        };
        let quiet_since = held.on_engine_at.zip(finished_at).map(|(on, at)| on.max(at));
        let is_quiet = !sample.pending && !sample.submitted && !self.hinted;
        let is_over = quiet_since.is_some_and(|since| now.since(since) >= self.quiet);
        (is_quiet && is_over).then(|| self.release(ReleaseReason::Quiet))
    }

    fn place(&mut self, now: Instant) -> HoldAction {
        self.skipped = 0;
        self.held = Some(PlacedHold {
            moved_at: now,
            on_engine_at: None,
            bridged: false,
            has_worked: false,
        });
        HoldAction::Place
    }

    fn release(&mut self, reason: ReleaseReason) -> HoldAction {
        if let Some(held) = self.held.take() {
            self.outcomes.add(held.bridged);
        }
        HoldAction::Release(reason)
    }

    /// Whether a hold for the work that was just submitted may bridge a gap.
    fn is_worthwhile(&mut self, gap: Option<Duration>) -> bool {
        if !self.outcomes.are_futile() {
            return true;
        }
        // A second submission so soon may follow a gap within a request.
        if gap.is_some_and(|gap| gap <= QUIET_MAX) {
            return true;
        }
        self.skipped += 1;
        self.skipped >= TRY_EVERY
    }

    /// Takes in a gap of the program: the quiet time is longer than nine of ten of them.
    fn learn(&mut self, gap: Duration) {
        if self.gaps.len() == GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
        if self.gaps.len() < GAPS_ENOUGH || !self.gaps.len().is_multiple_of(GAPS_ENOUGH / 4) {
            return;
        }
        let mut sorted: Vec<Duration> = self.gaps.iter().copied().collect();
        sorted.sort_unstable();
        let high = sorted[sorted.len() * 9 / 10];
        let wanted = (high + MARGIN).max(Duration::from_nanos(high.as_nanos() / 10 * 11));
        self.quiet = wanted.clamp(QUIET_MIN, QUIET_MAX);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const TICK: u64 = 100;

    /// A program and a device, in steps of a sample.
    struct SimulatedContext {
        policy: HoldPolicy,
        now_us: u64,
        execution: Execution,
        placed_at: Option<u64>,
        moves: Vec<(u64, HoldAction)>,
    }

    impl SimulatedContext {
        fn new() -> Self {
            let mut policy = HoldPolicy::new(HoldLimits::default());
            assert_eq!(policy.permit(Instant::from_nanos(0)), None);
            Self {
                policy,
                now_us: 1_000_000,
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
            let action = self.policy.take_sample(self.now(), sample);
            self.take(action);
            self.now_us += TICK;
        }

        fn idle(&mut self, samples: u32) {
            for _ in 0..samples {
                self.sample(false, false);
            }
        }

        /// A request of kernels that many samples apart, and then an idle time.
        fn request(&mut self, kernels: u32, apart: u32) {
            for _ in 0..kernels {
                self.sample(true, false);
                self.idle(apart - 1);
            }
            self.idle(50);
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
        assert_eq!(released - placed, 200 + 300);
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
        assert_eq!(context.moves[1].0 - finished, 300);
    }

    #[test]
    fn the_quiet_time_follows_the_programs_own_gaps() {
        let mut context = SimulatedContext::new();
        for _ in 0..5 {
            context.request(20, 1);
        }
        assert_eq!(context.policy.quiet(), Duration::from_micros(175));
        let mut context = SimulatedContext::new();
        for _ in 0..20 {
            context.request(20, 3);
        }
        assert_eq!(context.policy.quiet(), Duration::from_micros(375));
        let before = context.places();
        context.request(20, 3);
        assert_eq!(context.places(), before + 1, "no gap was longer than the quiet time");
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
        let begun = context.now_us - (20 * 2 + 50) * TICK;
        assert_eq!(last, begun, "from the first kernel on");
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
        let action = context.policy.hint_begin(now);
        context.take(action);
        assert_eq!(context.places(), 1);
        context.idle(20);
        assert_eq!(context.releases(), [], "the hint is active");
        context.sample(true, false);
        context.idle(5);
        let action = context.policy.hint_end(false);
        context.take(action);
        assert_eq!(context.releases(), [ReleaseReason::Quiet]);
        let now = context.now();
        assert_eq!(context.policy.hint_begin(now), Some(HoldAction::Place));
        context.placed_at = Some(context.now_us);
        context.idle(600);
        assert_eq!(
            context.releases(),
            [ReleaseReason::Quiet, ReleaseReason::Expired],
            "the hinted request never came"
        );
    }

    #[test]
    fn without_permission_there_is_no_hold() {
        let mut context = SimulatedContext::new();
        context.sample(true, false);
        let action = context.policy.forbid();
        assert_eq!(action, Some(HoldAction::Release(ReleaseReason::Forbidden)));
        context.take(action);
        context.request(20, 2);
        assert_eq!(context.places(), 1);
        context.sample(true, false);
        let now = context.now();
        assert_eq!(
            context.policy.permit(now),
            Some(HoldAction::Place),
            "it is in the middle of a request"
        );
        assert_eq!(context.policy.forbid(), Some(HoldAction::Release(ReleaseReason::Forbidden)));
        context.idle(100);
        let now = context.now();
        assert_eq!(context.policy.permit(now), None);
    }

    #[test]
    fn hints_alone_hold_no_longer_than_the_maximum() {
        let mut policy = HoldPolicy::new(HoldLimits::default());
        policy.permit(Instant::from_nanos(0));
        let at = |tick: u64| Instant::from_nanos(tick * 100_000);
        let quiet = ContextSample { loaded: true, ..ContextSample::default() };
        let (mut held, mut holds) = (0, 0);
        for tick in 0..10_000 {
            // A new hint in every sample.
            holds += u32::from(policy.hint_begin(at(tick)) == Some(HoldAction::Place));
            held += u32::from(policy.is_held());
            policy.take_sample(at(tick), quiet);
        }
        assert_eq!(holds, 1);
        assert!(held <= 501, "{held} samples of 100 us");
        // Work gets a hold again, and so do hints after it.
        let work = ContextSample { submitted: true, ..quiet };
        assert_eq!(policy.take_sample(at(10_000), work), Some(HoldAction::Place));
        assert_eq!(policy.hint_end(false), Some(HoldAction::Release(ReleaseReason::Quiet)));
        assert_eq!(policy.hint_begin(at(10_001)), Some(HoldAction::Place));
    }
}
