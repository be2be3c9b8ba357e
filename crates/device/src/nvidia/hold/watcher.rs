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

mod watched;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration as Wait;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Instant;

use super::channel::HoldChannel;
use super::counts::HoldCounts;
use super::grip::GripSettings;
use crate::controller::HintSight;
use crate::keeper::monotonic_ns;
use crate::nvidia::ring::Rings;
use crate::urgency;
use watched::{IDLE_AFTER, Watched};

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
            Order::Permit(queue) => (queue, Watched::permit),
            Order::Forbid(queue) => (queue, Watched::forbid),
        };
        if let Some(watched) = self.watched.get_mut(&queue) {
            action(watched, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate() {
        for at in [0, 1, 99_999, 100_000, 150_000, 199_999, 200_000, 1_234_567_890] {
            let now = Instant::from_nanos(at);
            let first = next_turn(now, 0).since(now).as_nanos();
            let second = next_turn(now, LOOK_EVERY).since(now).as_nanos();
            assert!((1..=TURN).contains(&first) && (1..=TURN).contains(&second), "{at}");
            assert_eq!(first.abs_diff(second), LOOK_EVERY, "{at}");
            assert_eq!((at + first) % TURN, 0, "{at}");
        }
    }

    #[test]
    fn with_nothing_to_look_at_both_sleep_take_orders_and_end() {
        let watcher = Watcher::start(GripSettings::default(), |_, _| {}).unwrap();
        assert_eq!(watcher.threads.len(), 2);
        let nobody = QueueId(7);
        watcher.permit(nobody);
        watcher.forbid(nobody);
        assert!(watcher.remove(nobody).is_none());
        drop(watcher);
    }
}
