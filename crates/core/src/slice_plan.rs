//! Chooses time slices and holds that keep a process within its latency budget.
//!
//! A plan says how a device with time slices is shared while a high-priority process and others
//! have work. The plans of a budget are ordered by what they leave to the others:
//!
//! ```text
//!  0      strict        the process keeps the device, also in its gaps
//!  1..=4  held slices   after each slice of the process the others get a short one;
//!                       its length is that at which a quarter, half, ... of the budget is used
//!  5..=8  open slices   no hold: the others run in its gaps too, for a slice each
//! ```
//!
//! What a plan costs is measured: the slowdown of the process, and how long it occupies the engine
//! for each packet, switches included. That is what the others do not get. A process that submits
//! ahead of the device needs the engine for less time when interrupted, because its work waits
//! in the ring meanwhile; one that waits for each kernel needs more, for the switches. So the plan
//! within the budget with the least occupation is used, and the strict one if none is better.
//!
//! Time that the process loses off the engine is paid from a credit, which grows with the rest of
//! its busy time: by the budget's part of it, for up to 500 ms. While there is plenty of credit,
//! the next plan is tried for a window. Without credit the strict plan is used until half of it is
//! back.
//! So whatever plans cost, the slowdown exceeds the budget by no more than one window.

use crate::busy_periods::BusyTime;
use crate::latency_budget::LatencyBudget;
use crate::time::{Duration, Instant};

/// How a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// The slice of the high-priority process.
    pub high: Duration,
    /// The slice of the others.
    pub low: Duration,
    /// Whether the device may be held for the process.
    pub hold: bool,
}

impl SlicePlan {
    /// As fast as possible: a slice longer than any request, and the shortest one there is, so that
    /// the hardware switches as soon as the process has work.
    pub const STRICT: Self =
        Self { high: Duration::from_millis(1_000), low: Duration::from_micros(1), hold: true };
}

/// Plans of a budget.
const PLANS: usize = 9;
/// Of these, the last one with holds.
const LAST_HELD: usize = 4;
/// The slice of the others beside a process with a budget. Shorter ones are mostly switches, longer
/// ones delay each request of the process.
const LOW: Duration = Duration::from_millis(1);
/// Two switches (measured on an H200).
const SWITCHES: Duration = Duration::from_micros(370);
const HIGH_MIN: Duration = Duration::from_millis(1);
/// What open slices are tried (on an H200 they left training beside an eager program the more, the
/// later they are in this list).
const OPEN: [(u64, u64); PLANS - 1 - LAST_HELD] =
    [(8_000, 300), (8_000, 1_000), (4_000, 1_000), (2_048, 2_048)];

/// Credit is kept for this long on the engine.
const CREDIT_TIME: Duration = Duration::from_millis(500);
/// Debt is forgotten beyond this: where the strict plan exceeds the budget, no plan can repay it.
const DEBT_MAX: i64 = 100_000_000;
/// A measurement of a plan: the time of its busy periods.
const WINDOW: Duration = Duration::from_millis(20);
/// The strict plan is measured again this often, since the others are compared with it.
const COMPARE_EVERY: Duration = Duration::from_millis(5_000);
/// A plan is better than the strict one from this part of its occupation on, in per cent.
const BETTER: u64 = 95;
/// A plan that is not used is tried again after this time, which doubles each time.
const RETRY_AFTER: Duration = Duration::from_millis(2_000);
const RETRY_DOUBLINGS: u32 = 5;

/// Chooses the plan for one process.
#[derive(Clone, Debug)]
pub struct PlanChooser {
    budget: LatencyBudget,
    plan: usize,
    costs: [PlanCost; PLANS],
    /// Time that the process may still lose off the engine, in nanoseconds; below zero if it lost
    /// too much.
    credit: i64,
    /// The credit was used up, and half of it is not back yet.
    is_in_debt: bool,
    window: BusyTime,
}

/// What is known of one plan.
#[derive(Clone, Copy, Debug, Default)]
struct PlanCost {
    /// The average slowdown, in thousandths.
    per_mille: Option<u64>,
    /// The average time that a packet occupies the engine, in nanoseconds.
    occupation: u64,
    measured_at: Instant,
    /// When it may be tried again.
    retry_at: Instant,
    failures: u32,
}

impl PlanChooser {
    /// Begins with the strict plan.
    pub fn new(budget: LatencyBudget) -> Self {
        Self {
            budget,
            plan: 0,
            costs: [PlanCost::default(); PLANS],
            credit: 0,
            is_in_debt: true,
            window: BusyTime::default(),
        }
    }

    /// The budget.
    pub const fn budget(&self) -> LatencyBudget {
        self.budget
    }

    /// The plan in force.
    pub fn plan(&self) -> SlicePlan {
        plan_of(self.plan, self.budget)
    }

    /// The process was busy for that long, and off the engine with work for a part of it. Returns
    /// whether the plan changed.
    pub fn take(&mut self, now: Instant, time: BusyTime) -> bool {
        let BusyTime { busy, off, lost, packets } = time;
        let useful = busy.saturating_sub(lost);
        let earned = signed(useful) * i64::from(self.budget.percent()) / 100;
        let max = self.credit_max();
        self.credit = (self.credit + earned - signed(lost)).clamp(-DEBT_MAX, max);
        self.window.busy += busy;
        self.window.off += off;
        self.window.lost += lost;
        self.window.packets = self.window.packets.saturating_add(packets);
        self.is_in_debt |= self.credit < 0;
        if self.window.busy < WINDOW && (self.credit >= 0 || self.plan == 0) {
            return false;
        }
        self.end_window(now);
        self.is_in_debt &= self.credit < max / 2;
        let next = self.next(now);
        let changed = next != self.plan;
        self.plan = next;
        changed
    }

    fn credit_max(&self) -> i64 {
        signed(CREDIT_TIME) * i64::from(self.budget.percent()) / 100
    }

    /// Notes what the plan cost in a window, or until the credit was used up.
    fn end_window(&mut self, now: Instant) {
        let BusyTime { busy, off, lost, packets } = core::mem::take(&mut self.window);
        let on = busy.saturating_sub(off).as_nanos();
        let low = self.plan().low;
        let off_ns = off.as_nanos();
        let switches = off_ns.saturating_mul(SWITCHES.as_nanos()) / (low + SWITCHES).as_nanos();
        let useful = busy.saturating_sub(lost).as_nanos();
        let slowdown = lost.as_nanos().saturating_mul(1_000) / useful.max(1);
        let occupation = on.saturating_add(switches) / packets.max(1);
        let cost = &mut self.costs[self.plan];
        let averaged =
            |before: u64, measured: u64| before.saturating_mul(3).saturating_add(measured) / 4;
        let is_first = cost.per_mille.is_none();
        cost.per_mille = Some(cost.per_mille.map_or(slowdown, |before| averaged(before, slowdown)));
        cost.occupation = if is_first { occupation } else { averaged(cost.occupation, occupation) };
        cost.measured_at = now;
        let is_good = self.plan == 0 || self.is_good(self.plan);
        let cost = &mut self.costs[self.plan];
        if is_good {
            cost.failures = 0;
        } else {
            cost.retry_at = now + RETRY_AFTER.times(1 << cost.failures.min(RETRY_DOUBLINGS));
            cost.failures += 1;
        }
    }

    /// Whether a plan is within the budget and better for the others than the strict one.
    fn is_good(&self, plan: usize) -> bool {
        let (cost, strict) = (self.costs[plan], self.costs[0]);
        let is_within = cost.per_mille.is_some_and(|cost| cost <= per_mille(self.budget));
        is_within && cost.occupation / BETTER <= strict.occupation / 100
    }

    fn next(&self, now: Instant) -> usize {
        let strict = self.costs[0];
        let is_outdated =
            strict.per_mille.is_none() || now.since(strict.measured_at) > COMPARE_EVERY;
        if self.is_in_debt || is_outdated {
            return 0;
        }
        let good = (1..PLANS).filter(|&plan| self.is_good(plan));
        let best = good.min_by_key(|&plan| self.costs[plan].occupation).unwrap_or(0);
        let has_plenty = self.credit >= self.credit_max() / 4 * 3;
        let is_untried = |plan: &usize| {
            let cost = self.costs[*plan];
            cost.per_mille.is_none() || (!self.is_good(*plan) && cost.retry_at <= now)
        };
        // Where a plan is too slow or no better than the strict one, so is the next of its kind.
        let is_promising =
            |plan: &usize| [1, LAST_HELD + 1].contains(plan) || self.is_good(plan - 1);
        let trial = (1..PLANS).filter(is_promising).find(is_untried);
        trial.filter(|_| has_plenty).unwrap_or(best)
    }
}

const fn per_mille(budget: LatencyBudget) -> u64 {
    budget.percent() as u64 * 10
}

fn signed(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX / 1_000)
}

fn plan_of(plan: usize, budget: LatencyBudget) -> SlicePlan {
    if plan == 0 || budget.is_zero() {
        return SlicePlan::STRICT;
    }
    if let Some(&(high, low)) = plan.checked_sub(LAST_HELD + 1).and_then(|open| OPEN.get(open)) {
        let (high, low) = (Duration::from_micros(high), Duration::from_micros(low));
        return SlicePlan { high, low, hold: false };
    }
    // Of each slice of the process and what follows it, the part off the engine is this budget's.
    let used = per_mille(budget) * plan as u64;
    let off = (LOW + SWITCHES).times(LAST_HELD as u64).as_nanos();
    let high = Duration::from_nanos(off * 1_000 / used).max(HIGH_MIN);
    SlicePlan { high: high.min(SlicePlan::STRICT.high), low: LOW, hold: true }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(percent: u16) -> LatencyBudget {
        LatencyBudget::from_percent(percent).unwrap()
    }

    fn time(busy: u64, off: u64, packets: u64) -> BusyTime {
        let off = Duration::from_nanos(off);
        BusyTime { busy: Duration::from_nanos(busy), off, lost: off, packets }
    }

    /// Runs a process for `seconds` on the engine whose plans cost that many thousandths each, and
    /// which submits `ahead` times as much while it is interrupted, in per cent. Returns its
    /// slowdown in thousandths and how long each plan was in force.
    fn run(percent: u16, costs: [u64; PLANS], ahead: u64, seconds: u64) -> (u64, [u64; PLANS]) {
        let mut chooser = PlanChooser::new(budget(percent));
        let (mut now, mut off_total, mut times) = (Instant::ZERO, 0, [0; PLANS]);
        let (step, steps) = (10_000_000, seconds * 100);
        for _ in 0..steps {
            let off = step * costs[chooser.plan] / 1_000;
            times[chooser.plan] += step + off;
            off_total += off;
            now += Duration::from_nanos(step + off);
            let more = ahead * chooser.plan as u64 / LAST_HELD as u64;
            let _ = chooser.take(now, time(step + off, off, 1_000 + 10 * more));
        }
        (off_total * 1_000 / (step * steps), times)
    }

    #[test]
    fn held_slices_use_a_part_of_the_budget() {
        let plan = plan_of(4, budget(20));
        assert_eq!((plan.high, plan.low), (Duration::from_micros(6_850), LOW));
        assert_eq!(plan_of(1, budget(20)).high, Duration::from_micros(27_400));
        assert_eq!(plan_of(4, budget(400)).high, HIGH_MIN);
        assert_eq!(plan_of(1, budget(1)).high, Duration::from_micros(548_000));
        assert!(!plan_of(8, budget(20)).hold && plan_of(8, LatencyBudget::ZERO).hold);
    }

    #[test]
    fn the_plan_that_leaves_most_to_others_within_the_budget_is_used() {
        let costs = [0, 50, 100, 150, 190, 900, 1_400, 1_400, 2_000];
        let (slowdown, times) = run(20, costs, 100, 20);
        assert!((140..=215).contains(&slowdown), "{slowdown}");
        let total: u64 = times.iter().sum();
        assert!(times[4] * 10 > total * 7, "{times:?}");
        let (slowdown, times) = run(300, costs, 100, 20);
        assert!(slowdown <= 2_100 && times[8] * 10 > 9 * times.iter().sum::<u64>(), "{times:?}");
    }

    #[test]
    fn without_a_plan_that_fits_the_strict_one_is_used_most_of_the_time() {
        let (slowdown, times) = run(15, [10, 900, 900, 900, 900, 900, 900, 900, 900], 200, 60);
        assert!(slowdown <= 150, "{slowdown}");
        assert!(times[0] * 10 > 8 * times.iter().sum::<u64>(), "{times:?}");
        // Where even that is slower than the budget permits, no other one is tried.
        let (_, times) = run(15, [400; PLANS], 100, 10);
        assert_eq!(times[1..], [0; PLANS - 1]);
    }

    #[test]
    fn a_process_that_waits_for_each_kernel_is_not_interrupted() {
        let (slowdown, times) = run(60, [5, 50, 100, 150, 190, 250, 300, 350, 400], 0, 60);
        assert!(slowdown <= 20, "{slowdown}");
        assert!(times[0] * 20 > 19 * times.iter().sum::<u64>(), "{times:?}");
    }

    /// A client of the emulated GPU can write any numbers into its page.
    #[test]
    fn no_number_is_too_large() {
        let mut chooser = PlanChooser::new(budget(400));
        for times in [(u64::MAX, u64::MAX, u64::MAX), (u64::MAX, 0, 0), (0, u64::MAX, 1)] {
            for step in 0..20 {
                chooser.take(Instant::from_nanos(step), time(times.0, times.1, times.2));
            }
        }
    }

    proptest! {
        /// Whatever the plans cost, and also if that changes all the time.
        #[test]
        fn the_slowdown_stays_within_the_budget(
            percent in 1..=400_u16,
            costs in prop::collection::vec(prop::array::uniform9(0..5_000_u64), 1..20),
        ) {
            let mut chooser = PlanChooser::new(budget(percent));
            let (mut now, mut on_total, mut off_total) = (Instant::ZERO, 0, 0);
            for step in 0..4_000_u64 {
                let phase = costs[usize::try_from(step).unwrap() * costs.len() / 4_000];
                let on = 2_000_000 + step % 7 * 100_000;
                let off = if chooser.plan == 0 { 0 } else { on * phase[chooser.plan] / 1_000 };
                on_total += on;
                off_total += off;
                now += Duration::from_nanos(on + off);
                chooser.take(now, time(on + off, off, 100 + step % 50 * chooser.plan as u64));
                let allowed = on_total * u64::from(percent) / 100;
                // A report is at most 2.6 ms on the engine and five times that off it.
                prop_assert!(off_total <= allowed + 13_000_000, "{off_total} > {allowed}");
            }
        }
    }
}
