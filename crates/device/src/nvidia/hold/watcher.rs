//! The thread that looks at the rings of important contexts, places holds and lets go.
//!
//! It is the only one who touches a hold while it is in use, so that nobody waits for anybody: the
//! loop gives it orders, and it acts within what the loop permits. Every look is a few loads; it
//! sleeps in between, and for good while there is nothing to look at.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration as Wait, Instant as Clock};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use super::channel::HoldChannel;
use super::grip::{Ending, Grip, GripSettings, Look, Move};
use crate::controller::{HintSight, HintView};
use crate::keeper::monotonic_ns;
use crate::nvidia::ring::{Pace, Rings};
use crate::urgency;

/// How often it looks.
const LOOK_EVERY: Wait = Wait::from_micros(100);
/// How often while nothing has moved for long. A request after that is noticed later, but still
/// before its first kernel is on the device.
const LOOK_EVERY_IDLE: Wait = Wait::from_micros(200);
/// What counts as long.
const IDLE_AFTER: Duration = Duration::from_millis(2_000);
/// A ring that moved in the last two seconds is read every time, and one of the others.
const PACE: Pace = Pace { hot_readings: 20_000, cold_reads: 1 };

/// After so long without a movement a context is taken to have nothing to do. Kernels that are
/// longer than that are rare in programs that are held for.
const DONE_AFTER: Duration = Duration::from_millis(1);

/// What the thread is told.
enum Order {
    Add(QueueId, Box<(HoldChannel, Rings)>, Arc<HoldCounts>),
    Remove(QueueId, Sender<Option<(HoldChannel, Rings)>>),
    Permit(QueueId),
    Forbid(QueueId),
    Announce(QueueId),
    Conclude(QueueId),
    Sight(QueueId, Weak<dyn HintSight>),
}

/// What whoever decides has to know sooner than by looking every few milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A context that may not be held has got work.
    Work,
    /// A context has nothing to do.
    Done,
}

/// What an order does to a context.
type Action = fn(&mut Watched, Instant) -> Option<Move>;

/// What became of the holds of one context, for whoever wants to show it.
#[derive(Debug, Default)]
pub struct HoldCounts {
    placed: AtomicU64,
    expired: AtomicU64,
    longest_us: AtomicU64,
    is_held: AtomicBool,
    quiet_us: AtomicU64,
}

/// [`HoldCounts`] at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldFigures {
    /// How many holds were placed.
    pub placed: u64,
    /// How many of them were ended by the maximum.
    pub expired: u64,
    /// How long the longest was.
    pub longest_us: u64,
    /// Whether it is held now.
    pub is_held: bool,
    /// How long the program has to be quiet until it is let go of.
    pub quiet_us: u64,
}

impl HoldCounts {
    /// What there is now.
    pub fn figures(&self) -> HoldFigures {
        HoldFigures {
            placed: self.placed.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
            longest_us: self.longest_us.load(Ordering::Relaxed),
            is_held: self.is_held.load(Ordering::Relaxed),
            quiet_us: self.quiet_us.load(Ordering::Relaxed),
        }
    }
}

/// The thread, as long as it runs.
#[derive(Debug)]
pub struct Watcher {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts a thread that tells `notice` what it sees, so that whoever decides can decide
    /// anew.
    ///
    /// # Errors
    /// If there are no more threads.
    pub fn start(
        settings: GripSettings,
        notice: impl FnMut(QueueId, Notice) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let thread = std::thread::Builder::new().name("gpreempt-hold".to_owned());
        let thread = thread.spawn(move || {
            // Half of a hundred microseconds is the kernel's usual idea of punctuality.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
            urgency::come_first();
            let watched = BTreeMap::new();
            let (notice, moved_at) = (Box::new(notice), now());
            Eyes { settings, watched, notice, moved_at }.run(&incoming);
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Looks after a context from now on.
    pub fn add(&self, queue: QueueId, hold: HoldChannel, rings: Rings, counts: Arc<HoldCounts>) {
        self.tell(Order::Add(queue, Box::new((hold, rings)), counts));
    }

    /// Lets go of a context and gives its channel back, to be taken out, and its rings: closing
    /// them is a call that may take time.
    pub fn remove(&self, queue: QueueId) -> Option<(HoldChannel, Rings)> {
        let (answer, incoming) = channel();
        self.tell(Order::Remove(queue, answer));
        incoming.recv().ok().flatten()
    }

    /// This context may be held.
    pub fn permit(&self, queue: QueueId) {
        self.tell(Order::Permit(queue));
    }

    /// This context may not be held any more.
    pub fn forbid(&self, queue: QueueId) {
        self.tell(Order::Forbid(queue));
    }

    /// A request of this context is coming, or is done.
    pub fn hint(&self, queue: QueueId, begins: bool) {
        self.tell(if begins { Order::Announce(queue) } else { Order::Conclude(queue) });
    }

    /// Looks for hints of this context there as well, as often as at its rings. Whoever has much to
    /// do tells of a hint late, and a hint is about microseconds.
    pub fn watch_hints(&self, queue: QueueId, sight: Weak<dyn HintSight>) {
        self.tell(Order::Sight(queue, sight));
    }

    fn tell(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only when this side does.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Eyes {
    settings: GripSettings,
    watched: BTreeMap<QueueId, Watched>,
    notice: Box<dyn FnMut(QueueId, Notice) + Send>,
    moved_at: Instant,
}

struct Watched {
    hold: HoldChannel,
    rings: Rings,
    grip: Grip,
    counts: Arc<HoldCounts>,
    placed_at: Instant,
    /// The last look showed something that was not fetched.
    pending: bool,
    moved_at: Instant,
    /// What was told last.
    told: Option<Notice>,
    /// Where the program says that requests are coming, and what it said there last.
    sight: Option<Weak<dyn HintSight>>,
    hints: HintView,
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

impl Eyes {
    fn run(&mut self, incoming: &Receiver<Order>) {
        let mut look_at = Clock::now();
        loop {
            // An order is not to wait: it may be a hint, and that is about microseconds. Nor do
            // orders put off the next look.
            let order = if self.watched.is_empty() {
                incoming.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                incoming.recv_timeout(look_at.saturating_duration_since(Clock::now()))
            };
            match order {
                Ok(order) => {
                    self.take(order);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = now();
            for (queue, watched) in &mut self.watched {
                if watched.look(now, *queue, &mut self.notice) {
                    self.moved_at = now;
                }
            }
            let is_idle = now.since(self.moved_at) > IDLE_AFTER;
            look_at = Clock::now() + if is_idle { LOOK_EVERY_IDLE } else { LOOK_EVERY };
        }
        for watched in self.watched.values() {
            watched.hold.end();
        }
    }

    fn take(&mut self, order: Order) {
        let now = now();
        let (queue, action): (QueueId, Action) = match order {
            Order::Add(queue, parts, counts) => {
                let (hold, rings) = *parts;
                let grip = Grip::new(self.settings);
                let watched = Watched {
                    hold,
                    rings,
                    grip,
                    counts,
                    placed_at: now,
                    pending: false,
                    moved_at: now,
                    told: None,
                    sight: None,
                    hints: HintView::default(),
                };
                self.watched.insert(queue, watched);
                return;
            }
            Order::Remove(queue, answer) => {
                let parts =
                    self.watched.remove(&queue).map(|watched| (watched.hold, watched.rings));
                if let Some((hold, _)) = &parts {
                    hold.end();
                }
                // Whoever asked waits for it.
                let _ = answer.send(parts);
                return;
            }
            Order::Sight(queue, sight) => {
                if let Some(watched) = self.watched.get_mut(&queue) {
                    watched.sight = Some(sight);
                    watched.hints = HintView::default();
                }
                return;
            }
            Order::Permit(queue) => (queue, |watched, now| watched.grip.permit(now)),
            Order::Forbid(queue) => (queue, |watched, _| watched.grip.forbid()),
            Order::Announce(queue) => (queue, |watched, now| watched.grip.announce(now)),
            Order::Conclude(queue) => (queue, |watched, _| watched.grip.conclude(watched.pending)),
        };
        if let Some(watched) = self.watched.get_mut(&queue) {
            let action = action(watched, now);
            watched.act(now, action);
        }
    }
}

impl Watched {
    /// One look. Says whether something moved.
    fn look(
        &mut self,
        now: Instant,
        queue: QueueId,
        notice: &mut dyn FnMut(QueueId, Notice),
    ) -> bool {
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

    /// What the program says of its requests. The loop says so too, sooner or later.
    fn look_at_hints(&mut self, now: Instant) {
        let Some(sight) = &self.sight else { return };
        let Some(page) = sight.upgrade() else {
            // Whoever said so is gone.
            self.sight = None;
            self.hints = HintView::default();
            let action = self.grip.conclude(self.pending);
            return self.act(now, action);
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
