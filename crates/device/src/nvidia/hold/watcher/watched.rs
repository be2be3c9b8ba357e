//! A context that is looked at, and what is done about it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use super::super::channel::HoldChannel;
use super::super::counts::HoldCounts;
use super::super::grip::{Ending, Grip, GripSettings, Look, Move};
use super::Notice;
use crate::controller::{HintSight, HintView};
use crate::nvidia::ring::{Pace, Rings};

/// Whoever has not moved for so long is idle.
pub(super) const IDLE_AFTER: Duration = Duration::from_millis(2_000);
/// A ring that moved in the last two seconds is read every time, and one of the others every second
/// time: each reading goes to the device and back, which takes a microsecond of a processor.
const PACE: Pace = Pace { hot_readings: 20_000, cold_reads: 1, cold_every: 2 };

/// After so long without a movement a context is taken to have nothing to do. Kernels that are
/// longer than that are rare in programs that are held for.
const DONE_AFTER: Duration = Duration::from_millis(1);

/// A look that comes so long after the one before is late: a first gap may be over by then.
const LATE_AFTER: Duration = Duration::from_micros(300);

/// A context that is looked at.
pub(super) struct Watched {
    hold: HoldChannel,
    rings: Rings,
    grip: Grip,
    counts: Arc<HoldCounts>,
    placed_at: Instant,
    /// The last look showed something that was not fetched.
    pending: bool,
    moved_at: Instant,
    looked_at: Instant,
    /// What was told last.
    told: Option<Notice>,
    /// Where the program says that requests are coming, and what it said there last.
    sight: Option<Weak<dyn HintSight>>,
    hints: HintView,
}

impl Watched {
    pub(super) fn new(
        hold: HoldChannel,
        rings: Rings,
        settings: GripSettings,
        counts: Arc<HoldCounts>,
        now: Instant,
    ) -> Self {
        Self {
            hold,
            rings,
            grip: Grip::new(settings),
            counts,
            placed_at: now,
            pending: false,
            moved_at: now,
            looked_at: now,
            told: None,
            sight: None,
            hints: HintView::default(),
        }
    }

    pub(super) fn permit(&mut self, now: Instant) {
        let action = self.grip.permit(now);
        self.act(now, action);
    }

    pub(super) fn forbid(&mut self, now: Instant) {
        let action = self.grip.forbid();
        self.act(now, action);
    }

    fn conclude(&mut self, now: Instant) {
        let action = self.grip.conclude(self.pending);
        self.act(now, action);
    }

    /// Looks for hints there from now on.
    pub(super) fn watch_hints(&mut self, sight: Weak<dyn HintSight>) {
        self.sight = Some(sight);
        self.hints = HintView::default();
    }

    /// Ends a hold if there is one.
    pub(super) fn end(&self) {
        self.hold.end();
    }

    /// The same, for good.
    pub(super) fn let_go(self) -> (HoldChannel, Rings) {
        self.hold.end();
        (self.hold, self.rings)
    }

    /// One look. Says whether something moved.
    pub(super) fn look(
        &mut self,
        now: Instant,
        queue: QueueId,
        notice: &mut dyn FnMut(QueueId, Notice),
    ) -> bool {
        self.note_lateness(now);
        let Some(reading) = self.rings.read_at(PACE) else { return false };
        if self.grip.is_held() {
            if self.hold.is_held() {
                self.hold.beat(now.as_nanos());
            } else {
                // The keeper did not see us for a while, and ended it. It may have been late, and
                // have ended an earlier one.
                self.hold.end();
                self.grip.ended();
                self.counts.is_held.store(false, Ordering::Relaxed);
            }
        }
        self.pending = reading.ring.pending() > 0;
        self.look_at_hints(now);
        let look = Look {
            submitted: reading.submitted,
            fetched: reading.fetched,
            pending: self.pending,
            loaded: self.grip.is_held() && self.hold.is_loaded(),
        };
        let moved = reading.submitted || reading.fetched;
        if moved {
            self.moved_at = now;
            if self.told == Some(Notice::Done) {
                self.told = None;
            }
        }
        if let Some(fresh) = self.news(now, reading.submitted) {
            self.told = Some(fresh);
            notice(queue, fresh);
        }
        let action = self.grip.look(now, look);
        self.act(now, action);
        moved
    }

    /// How long nobody has looked, where it matters.
    fn note_lateness(&mut self, now: Instant) {
        let blind = now.since(std::mem::replace(&mut self.looked_at, now));
        if now.since(self.moved_at) <= IDLE_AFTER {
            self.counts.blind_us.fetch_max(blind.as_micros(), Ordering::Relaxed);
            self.counts.late_looks.fetch_add(u64::from(blind > LATE_AFTER), Ordering::Relaxed);
        }
    }

    /// What the program says of its requests: the only route from a hint to a hold.
    fn look_at_hints(&mut self, now: Instant) {
        let Some(sight) = &self.sight else { return };
        let Some(page) = sight.upgrade() else {
            // Whoever said so is gone.
            self.sight = None;
            self.hints = HintView::default();
            return self.conclude(now);
        };
        let before = std::mem::replace(&mut self.hints, page.look());
        let action = if self.hints.is_active && self.hints.begun != before.begun {
            self.grip.announce(now)
        } else if before.is_active && !self.hints.is_active {
            self.grip.conclude(self.pending)
        } else {
            None
        };
        self.act(now, action);
    }

    /// What whoever decides has to hear of, once.
    fn news(&self, now: Instant, submitted: bool) -> Option<Notice> {
        let is_done = !self.pending && now.since(self.moved_at) >= DONE_AFTER;
        if submitted && !self.grip.is_permitted() && self.told != Some(Notice::Work) {
            return Some(Notice::Work);
        }
        (is_done && self.told != Some(Notice::Done)).then_some(Notice::Done)
    }

    fn act(&mut self, now: Instant, action: Option<Move>) {
        match action {
            None => return,
            Some(Move::Place) => {
                if !self.hold.begin(now.as_nanos()) {
                    self.grip.ended();
                    return;
                }
                self.placed_at = now;
                self.counts.placed.fetch_add(1, Ordering::Relaxed);
            }
            Some(Move::Release(ending)) => {
                self.hold.end();
                let length_us = now.since(self.placed_at).as_micros();
                self.counts.longest_us.fetch_max(length_us, Ordering::Relaxed);
                if ending == Ending::Expired {
                    self.counts.expired.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.counts.is_held.store(self.grip.is_held(), Ordering::Relaxed);
        self.counts.quiet_us.store(self.grip.quiet().as_micros(), Ordering::Relaxed);
    }
}
