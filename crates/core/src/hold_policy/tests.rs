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
    packets: u64,
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
            packets: 0,
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
        self.packets += u64::from(submitted);
        let sample = ContextSample {
            submitted,
            packets: self.packets,
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

#[test]
fn a_program_that_changes_phase_every_100_ms_costs_at_most_5_percent() {
    let mut context = SimulatedContext::new();
    let mut last = Vec::new();
    // In turn: gaps of 300 us, single kernels every 5 ms, gaps of 1.2 ms, and nothing.
    let every = [4_u64, 50, 13, 1_000];
    for tick in 0..100_000_u64 {
        let phase = usize::try_from(tick / 1_000).unwrap() % every.len();
        let is_kernel = tick % every[phase] == 0;
        if is_kernel {
            last.push(context.now_us);
        }
        context.sample(is_kernel, false);
    }
    let idle = idle_in_vain(&context, |placed, released| {
        let before = last.partition_point(|at| *at <= released);
        released - last[before - 1].max(placed + 200).min(released)
    });
    assert!((5_000..=52_000).contains(&idle), "{idle} us in a second");
    let longest = context.moves.chunks_exact(2).map(|pair| pair[1].0 - pair[0].0).max();
    assert!(longest <= Some(1_000_000), "{longest:?}: a hold ends with its phase");
}

#[test]
fn the_hold_of_a_request_of_known_length_ends_with_its_last_work() {
    let mut context = SimulatedContext::new();
    let release_after = |context: &SimulatedContext| {
        let mut releases = context.moves.iter().filter(|(_, action)| *action != HoldAction::Place);
        // From the last of nine submissions.
        releases.next_back().unwrap().0 - (context.begun_us + 8 * 3 * TICK)
    };
    for _ in 0..8 {
        context.request(9, 3);
    }
    assert!(release_after(&context) > 300, "{}", release_after(&context));
    for _ in 0..4 {
        context.request(9, 3);
        assert_eq!(release_after(&context), 200);
    }
    // A longer request is held for a gap more, and then as before the length was known.
    context.request(11, 3);
    context.request(11, 3);
    assert!(context.releases().iter().all(|reason| *reason == ReleaseReason::Quiet));
}
