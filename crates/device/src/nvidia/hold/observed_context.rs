//! One context that may be held: its rings, its channels and its policy.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use gpreempt_core::busy_periods::{BusyPeriods, BusyTime, EngineSample, GAP_MAX};
use gpreempt_core::hold::{ContextSample, Execution, HoldAction, HoldLimits, ReleaseReason};
use gpreempt_core::hold_policy::HoldPolicy;
use gpreempt_core::id::QueueId;
use gpreempt_core::idle_allowance::IdleAllowance;
use gpreempt_core::time::{Duration, Instant};

use super::HoldCounters;
use super::channel::HoldChannel;
use super::idle_fence::{ANSWER_AT_ONCE, IdleFence};
use super::watcher::WatcherReport;
use crate::controller::{HintSource, HintState, HoldRecord};
use crate::keeper::monotonic_ns;
use crate::nvidia::ring::{ReadingRate, Rings};

/// A context whose rings have not moved for this long is idle.
pub(super) const IDLE_AFTER: Duration = Duration::from_millis(2_000);
/// A ring that moved in the last two seconds is read in every sample, and one of the others in
/// every second: each reading goes to the device and back, which takes a processor about a
/// microsecond.
const RATE: ReadingRate = ReadingRate { hot_readings: 20_000, cold_reads: 1, cold_every: 2 };

/// After this long without a movement a context counts as idle. Longer kernels are rare in programs
/// that get holds.
const QUIET_AFTER: Duration = Duration::from_millis(1);

/// A sample this long after the one before is late: a first gap may be over by then.
const LATE_AFTER: Duration = Duration::from_micros(300);

/// The last kernel of a request is expected to finish within this time. A longer one is worth no
/// more samples than usual.
const ENDING_MAX: Duration = Duration::from_micros(100);

/// Where rings alone tell, a context has work for this long after the last movement of a ring. A
/// probe that comes later could switch to a context that is idle.
const RECENTLY: Duration = Duration::from_micros(300);

pub(super) struct ObservedContext {
    /// The GPU that it is on, by its index in the backend.
    pub(super) device: usize,
    hold: HoldChannel,
    rings: Rings,
    fence: IdleFence,
    policy: HoldPolicy,
    periods: BusyPeriods,
    /// When the probe in flight was placed.
    probed_at: Option<Instant>,
    /// Probes tell at every sample whether the context is on the engine: its slices are so short
    /// that it is interrupted. Otherwise it stays there from the beginning of a hold to its end.
    is_probed: bool,
    counters: Arc<HoldCounters>,
    placed_at: Instant,
    /// The first sample that showed the hold in force.
    on_engine_at: Option<Instant>,
    /// The longest time without a movement of a ring in this hold.
    longest_silence: Duration,
    /// The last packet of its request was submitted just now and has not finished.
    is_ending: bool,
    /// The last sample showed work that was not fetched.
    pending: bool,
    moved_at: Instant,
    sampled_at: Instant,
    /// The last report.
    reported: Option<WatcherReport>,
    /// Where the program gives hints, and what it said there last.
    source: Option<Weak<dyn HintSource>>,
    hints: HintState,
}

impl ObservedContext {
    pub(super) fn new(
        device: usize,
        hold: HoldChannel,
        rings: Rings,
        limits: HoldLimits,
        counters: Arc<HoldCounters>,
        now: Instant,
    ) -> Self {
        Self {
            device,
            hold,
            rings,
            // No hold lasts longer without new work.
            fence: IdleFence::new(limits.hold_max),
            policy: HoldPolicy::new(limits),
            periods: BusyPeriods::default(),
            probed_at: None,
            is_probed: false,
            counters,
            placed_at: now,
            on_engine_at: None,
            longest_silence: Duration::ZERO,
            is_ending: false,
            pending: false,
            moved_at: now,
            sampled_at: now,
            reported: None,
            source: None,
            hints: HintState::default(),
        }
    }

    pub(super) fn permit(&mut self, now: Instant, allowance: &mut IdleAllowance) {
        let action = self.policy.permit(now, allowance);
        self.act(now, action);
    }

    pub(super) fn forbid(&mut self, now: Instant, allowance: &mut IdleAllowance) {
        let action = self.policy.forbid(now, allowance);
        self.act(now, action);
    }

    fn hint_end(&mut self, now: Instant, allowance: &mut IdleAllowance) {
        let action = self.policy.hint_end(now, self.pending, allowance);
        self.act(now, action);
    }

    pub(super) fn watch_hints(&mut self, source: Weak<dyn HintSource>) {
        self.source = Some(source);
        self.hints = HintState::default();
    }

    pub(super) fn set_probed(&mut self, is_probed: bool) {
        self.is_probed = is_probed;
    }

    /// Whether nothing is lost without the next sample.
    pub(super) fn may_omit_sample(&self) -> bool {
        !self.is_probed && self.policy.may_omit_sample()
    }

    /// Whether the hold can probably be released sooner than the next sample is due.
    pub(super) const fn is_ending(&self) -> bool {
        self.is_ending
    }

    pub(super) fn end(&self) {
        self.hold.end();
        if self.policy.is_held() {
            self.record_end(Instant::from_nanos(monotonic_ns()));
        }
    }

    pub(super) fn release(self) -> (HoldChannel, Rings) {
        self.end();
        (self.hold, self.rings)
    }

    fn record_end(&self, now: Instant) {
        self.counters.record(HoldRecord::Held {
            placed_at: self.placed_at,
            on_engine_at: self.on_engine_at,
            ended_at: now,
            longest_silence: self.longest_silence,
        });
    }

    /// One sample. Returns whether a ring moved.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        queue: QueueId,
        allowance: &mut IdleAllowance,
        report: &mut dyn FnMut(QueueId, WatcherReport),
    ) -> bool {
        self.note_lateness(now);
        let Some(reading) = self.rings.read_at(RATE) else { return false };
        if self.policy.is_held() {
            if self.hold.is_held() {
                self.hold.beat(now.as_nanos());
            } else {
                // The keeper received no heartbeat for a while and ended it. It may have been late
                // and have ended an earlier hold.
                self.hold.end();
                self.record_end(now);
                self.policy.ended();
                self.counters.is_held.store(false, Ordering::Relaxed);
            }
        }
        self.pending = reading.ring.pending() > 0;
        self.read_hints(now, allowance);
        let loaded = self.policy.is_held() && self.hold.is_loaded();
        if loaded {
            self.on_engine_at.get_or_insert(now);
        }
        let moved = reading.submitted || reading.fetched;
        if moved {
            let since = self.moved_at.max(self.on_engine_at.unwrap_or(now));
            self.longest_silence = self.longest_silence.max(now.since(since));
            self.moved_at = now;
            if self.reported == Some(WatcherReport::Idle) {
                self.reported = None;
            }
        }
        if reading.submitted {
            self.fence.submitted();
        }
        let is_complete = self.policy.is_complete_with(reading.ring.put);
        let execution = self.execution(now, loaded, (moved, is_complete));
        let is_recent = now.since(self.moved_at) < ENDING_MAX;
        self.is_ending = is_complete && is_recent && self.fence.is_in_flight();
        if let Some(fresh) = self.news(now, reading.submitted, execution) {
            self.reported = Some(fresh);
            report(queue, fresh);
        }
        let sample = ContextSample {
            submitted: reading.submitted,
            packets: reading.ring.put,
            fetched: reading.fetched,
            pending: self.pending,
            loaded,
            execution,
        };
        self.measure(now, sample, |time| report(queue, WatcherReport::Busy(time)));
        let action = self.policy.take_sample(now, sample, allowance);
        self.act(now, action);
        let predicted = self.policy.predicted_percent().map_or(0, |percent| percent + 1);
        self.counters.predicted.store(predicted, Ordering::Relaxed);
        moved
    }

    /// Whether fetched work still runs, as far as idle fences tell. They are placed while rings do
    /// not move, or when no more work is expected.
    fn execution(
        &mut self,
        now: Instant,
        loaded: bool,
        (moved, is_complete): (bool, bool),
    ) -> Execution {
        if self.fence.is_in_flight() {
            self.fence.sampled(now, self.hold.has_fence_answered());
        }
        // Probes need the channel, and tell nothing while a fence waits in it.
        let is_silent = (!moved || is_complete) && !self.pending && !self.is_probed;
        if loaded && is_silent && !self.fence.is_in_flight() && self.hold.place_fence() {
            self.fence.placed(now);
            // A fence that only confirms an earlier answer can wait for the next sample.
            if !self.fence.is_finished() && self.answers_at_once() {
                self.fence.answered_at_once(self.moved_at);
            }
        }
        let execution = self.fence.execution(now, loaded);
        self.counters.is_fenced.store(self.fence.has_answered, Ordering::Relaxed);
        self.counters.is_running.store(execution == Execution::Running, Ordering::Relaxed);
        execution
    }

    /// Measures how long the context is off the engine with work.
    fn measure(&mut self, now: Instant, sample: ContextSample, report: impl FnOnce(BusyTime)) {
        let is_recent = now.since(self.moved_at) < RECENTLY;
        let has_work = sample.pending
            || match sample.execution {
                Execution::Unknown => is_recent,
                Execution::Running => true,
                Execution::FinishedAt(_) => false,
            };
        let is_held = self.policy.is_held();
        let is_off = if self.is_probed {
            self.probe(now, has_work || is_held)
        } else {
            self.probed_at = None;
            is_held && !sample.loaded
        };
        // Without probes nothing is known of requests that are not held.
        let has_work = has_work && (self.is_probed || is_held);
        let gap_max = if is_held { self.policy.release_threshold().max(GAP_MAX) } else { GAP_MAX };
        let may_yield = self.is_probed && !is_held;
        let is_pending = sample.pending;
        let engine = EngineSample { has_work, is_off, is_pending, may_yield };
        if let Some(time) = self.periods.take(now, engine, gap_max, sample.packets) {
            report(time);
        }
    }

    /// Whether the context is off the engine, as the probe in flight tells. Places the next one.
    fn probe(&mut self, now: Instant, may_place: bool) -> bool {
        if let Some(placed_at) = self.probed_at {
            if !self.hold.has_probe_answered() {
                return now.since(placed_at) > ANSWER_AT_ONCE;
            }
            self.probed_at = None;
        }
        if may_place && !self.fence.is_in_flight() && self.hold.place_probe() {
            self.probed_at = Some(now);
        }
        false
    }

    /// Waits for the answer to a fence for as long as an idle device needs.
    fn answers_at_once(&self) -> bool {
        let until = monotonic_ns() + ANSWER_AT_ONCE.as_nanos();
        while monotonic_ns() < until {
            if self.hold.has_fence_answered() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Counts late samples while the program is active.
    fn note_lateness(&mut self, now: Instant) {
        let blind = now.since(std::mem::replace(&mut self.sampled_at, now));
        if now.since(self.moved_at) <= IDLE_AFTER {
            self.counters.blind_us.fetch_max(blind.as_micros(), Ordering::Relaxed);
            if blind > LATE_AFTER {
                self.counters.late_looks.fetch_add(1, Ordering::Relaxed);
                let from = Instant::from_nanos(now.as_nanos().saturating_sub(blind.as_nanos()));
                self.counters.record(HoldRecord::LateSample { from, until: now });
            }
        }
    }

    /// Reads the program's hints: the only route from a hint to a hold.
    fn read_hints(&mut self, now: Instant, allowance: &mut IdleAllowance) {
        let Some(source) = &self.source else { return };
        let Some(page) = source.upgrade() else {
            // The client's session, which owned the page, has ended.
            self.source = None;
            self.hints = HintState::default();
            return self.hint_end(now, allowance);
        };
        let before = std::mem::replace(&mut self.hints, page.look());
        let action = if self.hints.is_active && self.hints.begun != before.begun {
            self.policy.hint_begin(now, allowance)
        } else if before.is_active && !self.hints.is_active {
            self.policy.hint_end(now, self.pending, allowance)
        } else {
            None
        };
        self.act(now, action);
    }

    /// What has to be reported to the scheduler, once.
    fn news(&self, now: Instant, submitted: bool, execution: Execution) -> Option<WatcherReport> {
        let is_idle = match execution {
            Execution::Unknown => now.since(self.moved_at) >= QUIET_AFTER,
            Execution::Running => false,
            // While it is held, the request may continue.
            Execution::FinishedAt(at) => !self.policy.is_held() || now.since(at) >= QUIET_AFTER,
        };
        let is_done = !self.pending && is_idle;
        if submitted && !self.policy.is_permitted() && self.reported != Some(WatcherReport::NewWork)
        {
            return Some(WatcherReport::NewWork);
        }
        (is_done && self.reported != Some(WatcherReport::Idle)).then_some(WatcherReport::Idle)
    }

    fn act(&mut self, now: Instant, action: Option<HoldAction>) {
        match action {
            None => return,
            Some(HoldAction::Place) => {
                if !self.hold.begin(now.as_nanos()) {
                    self.policy.ended();
                    return;
                }
                self.placed_at = now;
                self.on_engine_at = None;
                self.longest_silence = Duration::ZERO;
                self.counters.placed.fetch_add(1, Ordering::Relaxed);
            }
            Some(HoldAction::Release(reason)) => {
                self.hold.end();
                self.record_end(now);
                let length_us = now.since(self.placed_at).as_micros();
                self.counters.longest_us.fetch_max(length_us, Ordering::Relaxed);
                if reason == ReleaseReason::Expired {
                    self.counters.expired.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.counters.is_held.store(self.policy.is_held(), Ordering::Relaxed);
        let threshold_us = self.policy.release_threshold().as_micros();
        self.counters.quiet_us.store(threshold_us, Ordering::Relaxed);
    }
}
