//! The threads that look at the rings of important contexts, place holds and let go.
//!
//! Nobody else touches a hold while it is in use, so that nobody waits for them: the loop gives
//! orders, and they act within what the loop permits. Every look is a few loads; they sleep in
//! between, and for good while there is nothing to look at.
//!
//! There are two of them, and they look in turn. A thread that sleeps is woken late now and then,
//! by a few hundred microseconds where processors are virtual, and whoever comes so late to the
//! beginning of a request has missed its first gap. That both are late at once is rare, and two
//! that look half as often cost what one does.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration as Wait;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use super::HoldCounts;
use super::channel::HoldChannel;
use super::grip::{Ending, Grip, GripSettings, Look, Move};
use crate::controller::{HintSight, HintView};
use crate::keeper::monotonic_ns;
use crate::nvidia::ring::{Pace, Rings};
use crate::urgency;

/// How often somebody looks, in nanoseconds.
const LOOK_EVERY: u64 = 100_000;
/// How often each of the two does. While nothing has moved for long the second one sleeps: a
/// request after that is noticed later, but still before its first kernel is on the device.
const TURN: u64 = 2 * LOOK_EVERY;

/// What whoever decides has to know sooner than by looking every few milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A context that may not be held has got work.
    Work,
    /// A context has nothing to do.
    Done,
}

/// What the threads are told.
enum Order {
    Add(QueueId, Box<(HoldChannel, Rings)>, Arc<HoldCounts>),
    Remove(QueueId, Sender<Option<(HoldChannel, Rings)>>),
    Permit(QueueId),
    Forbid(QueueId),
    Sight(QueueId, Weak<dyn HintSight>),
    Look,
}

/// What an order does to a context.
type Action = fn(&mut Watched, Instant);

/// The threads, as long as they run.
#[derive(Debug)]
pub struct Watcher {
    orders: Option<Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
}

impl Watcher {
    /// Starts threads that tell `notice` what they see, so that whoever decides can decide
    /// anew.
    ///
    /// # Errors
    /// If there are no more threads.
    pub fn start(
        settings: GripSettings,
        notice: impl FnMut(QueueId, Notice) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let (notice, watched) = (Box::new(notice), BTreeMap::new());
        let eyes = Eyes { settings, watched, notice, moved_at: now(), is_over: false };
        let pair = Arc::new(Pair { eyes: Mutex::new(eyes), changed: Condvar::new() });
        // If the second one cannot be started, the first one ends with its orders.
        let mut watcher = Self { orders: Some(orders), threads: Vec::new() };
        let first = Arc::clone(&pair);
        watcher.threads.push(spawn(move || first.obey_and_look(&incoming))?);
        watcher.threads.push(spawn(move || pair.look_in_between())?);
        Ok(watcher)
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

    /// Looks for hints of this context there, as often as at its rings: a hint is about
    /// microseconds, and the daemon's loop may be busy for longer.
    pub fn watch_hints(&self, queue: QueueId, sight: Weak<dyn HintSight>) {
        self.tell(Order::Sight(queue, sight));
    }

    /// Looks at once. A hint is a few hundred microseconds ahead of its request, and the next look
    /// may be 100 us away (measured on an H200 with hints 350 us ahead: 1.02 times alone with this,
    /// 1.04 times without).
    pub fn look_now(&self) {
        self.tell(Order::Look);
    }

    fn tell(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // Who reads them ends only when this side does.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.orders = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn spawn(action: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("gpreempt-hold".to_owned()).spawn(move || {
        // Half of a hundred microseconds is the kernel's usual idea of punctuality.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        urgency::come_first();
        action();
    })
}

/// When it is somebody's next turn: turns of the second one are between those of the first.
const fn next_turn(now: Instant, offset: u64) -> Instant {
    let into = (now.as_nanos() + TURN - offset) % TURN;
    Instant::from_nanos(now.as_nanos() + TURN - into)
}

fn until(moment: Instant) -> Wait {
    Wait::from_nanos(moment.since(now()).as_nanos())
}

/// What the two threads share.
struct Pair {
    eyes: Mutex<Eyes>,
    /// There is something to look at again, or nothing ever after.
    changed: Condvar,
}

impl Pair {
    fn eyes(&self) -> MutexGuard<'_, Eyes> {
        self.eyes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the first one does.
    fn obey_and_look(&self, incoming: &Receiver<Order>) {
        let mut look_at = now();
        loop {
            // Orders do not wait for the next look, and do not put it off.
            let is_empty = self.eyes().watched.is_empty();
            let order = if is_empty {
                incoming.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                incoming.recv_timeout(until(look_at))
            };
            match order {
                Ok(order) => {
                    self.eyes().take(order);
                    self.changed.notify_one();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let mut eyes = self.eyes();
            let was_idle = eyes.is_idle();
            eyes.look();
            if was_idle && !eyes.is_idle() {
                self.changed.notify_one();
            }
            drop(eyes);
            look_at = next_turn(now(), 0);
        }
        self.eyes().end();
        self.changed.notify_one();
    }

    /// What the second one does.
    fn look_in_between(&self) {
        loop {
            let rests = |eyes: &mut Eyes| !eyes.is_over && eyes.is_idle();
            let eyes = self.changed.wait_while(self.eyes(), rests);
            if eyes.unwrap_or_else(PoisonError::into_inner).is_over {
                return;
            }
            std::thread::sleep(until(next_turn(now(), LOOK_EVERY)));
            self.eyes().look();
        }
    }
}

struct Eyes {
    settings: GripSettings,
    watched: BTreeMap<QueueId, Watched>,
    notice: Box<dyn FnMut(QueueId, Notice) + Send>,
    moved_at: Instant,
    is_over: bool,
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

impl Eyes {
    /// Whether one who looks is enough.
    fn is_idle(&self) -> bool {
        self.watched.is_empty() || now().since(self.moved_at) > IDLE_AFTER
    }

    /// One look at everything.
    fn look(&mut self) {
        // Not before it is our turn: moments must not go backwards.
        let now = now();
        for (queue, watched) in &mut self.watched {
            if watched.look(now, *queue, &mut self.notice) {
                self.moved_at = now;
            }
        }
    }

    /// Lets go of everything, for good.
    fn end(&mut self) {
        self.is_over = true;
        for watched in self.watched.values() {
            watched.end();
        }
        // Afterwards, because closing rings may take time.
        self.watched.clear();
    }

    fn take(&mut self, order: Order) {
        let now = now();
        let (queue, action): (QueueId, Action) = match order {
            Order::Add(queue, parts, counts) => {
                let (hold, rings) = *parts;
                let watched = Watched::new(hold, rings, self.settings, counts, now);
                self.watched.insert(queue, watched);
                return;
            }
            Order::Remove(queue, answer) => {
                let parts = self.watched.remove(&queue).map(Watched::let_go);
                // Whoever asked waits for it.
                let _ = answer.send(parts);
                return;
            }
            Order::Sight(queue, sight) => {
                if let Some(watched) = self.watched.get_mut(&queue) {
                    watched.watch_hints(sight);
                }
                return;
            }
            Order::Look => return self.look(),
            Order::Permit(queue) => (queue, Watched::permit),
            Order::Forbid(queue) => (queue, Watched::forbid),
        };
        if let Some(watched) = self.watched.get_mut(&queue) {
            action(watched, now);
        }
    }
}

/// A context whose rings have not moved for so long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(2_000);
/// A ring that moved in the last two seconds is read every time, and one of the others every second
/// time: each reading goes to the device and back, which takes a microsecond of a processor.
const PACE: Pace = Pace { hot_readings: 20_000, cold_reads: 1, cold_every: 2 };

/// After so long without a movement a context is taken to have nothing to do. Kernels that are
/// longer than that are rare in programs that are held for.
const DONE_AFTER: Duration = Duration::from_millis(1);

/// A look that comes so long after the one before is late: a first gap may be over by then.
const LATE_AFTER: Duration = Duration::from_micros(300);

/// A context that is looked at.
struct Watched {
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
    fn new(
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

    fn permit(&mut self, now: Instant) {
        let action = self.grip.permit(now);
        self.act(now, action);
    }

    fn forbid(&mut self, now: Instant) {
        let action = self.grip.forbid();
        self.act(now, action);
    }

    fn conclude(&mut self, now: Instant) {
        let action = self.grip.conclude(self.pending);
        self.act(now, action);
    }

    /// Looks for hints there from now on.
    fn watch_hints(&mut self, sight: Weak<dyn HintSight>) {
        self.sight = Some(sight);
        self.hints = HintView::default();
    }

    /// Ends a hold if there is one.
    fn end(&self) {
        self.hold.end();
    }

    /// The same, for good.
    fn let_go(self) -> (HoldChannel, Rings) {
        self.hold.end();
        (self.hold, self.rings)
    }

    /// One look. Says whether something moved.
    fn look(
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

    /// How long ago the last look was, where it matters.
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
            // The session that the page belonged to has ended.
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

    /// What is reported to the scheduler, once.
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

#[cfg(test)]
mod tests;
