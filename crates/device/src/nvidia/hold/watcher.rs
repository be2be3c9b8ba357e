//! The threads that sample the rings of contexts that may be held, and place and release holds.
//!
//! No other thread touches a hold while it is in use, so none waits for another: the scheduler's
//! loop sends orders, and these threads act within what the scheduler permits. A sample is a few
//! loads; the threads sleep in between, and wait for orders while no context is observed.
//!
//! There are two threads, which sample alternately. A sleeping thread is sometimes woken late, by a
//! few hundred microseconds on virtual processors, and a sample that late misses the first gap of a
//! request. Both are rarely late at once, and two threads that sample half as often cost what one
//! does.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration as Wait;

use gpreempt_core::busy_periods::BusyTime;
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::id::QueueId;
use gpreempt_core::idle_allowance::IdleAllowance;
use gpreempt_core::time::Instant;

use super::HoldCounters;
use super::channel::HoldChannel;
use super::observed_context::{IDLE_AFTER, ObservedContext};
use crate::controller::HintSource;
use crate::keeper::monotonic_ns;
use crate::nvidia::ring::Rings;
use crate::process::raise_thread_priority;

/// The time between two samples, in nanoseconds.
const SAMPLE_EVERY: u64 = 100_000;
/// The time between two samples of one thread. While no ring has moved for long the second thread
/// waits: a request after that is noticed later, but still before its first kernel is on the
/// engine.
const TURN: u64 = 2 * SAMPLE_EVERY;
/// The next sample is taken so soon if the last kernel of a request is about to finish: what it is
/// late, the others lose.
const SAMPLE_AGAIN: u64 = 25_000;

/// What the scheduler has to know sooner than its own samples every few milliseconds show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatcherReport {
    /// A context without permission has new work.
    NewWork,
    /// A context has no work.
    Idle,
    /// How long a context was busy, and off the engine with work.
    Busy(BusyTime),
}

enum HoldCommand {
    Add(QueueId, usize, Box<(HoldChannel, Rings)>, Arc<HoldCounters>),
    Remove(QueueId, Sender<Option<(HoldChannel, Rings)>>),
    Permit(QueueId),
    Forbid(QueueId),
    Probe(QueueId, bool),
    HintSource(QueueId, Weak<dyn HintSource>),
    Sample,
}

type Action = fn(&mut ObservedContext, Instant, &mut IdleAllowance);

#[derive(Debug)]
pub struct HoldWatcher {
    orders: Option<Sender<HoldCommand>>,
    threads: Vec<JoinHandle<()>>,
}

impl HoldWatcher {
    /// Starts the threads. They call `report` when the scheduler has to decide anew.
    pub fn start(
        limits: HoldLimits,
        report: impl FnMut(QueueId, WatcherReport) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let (report, contexts) = (Box::new(report), BTreeMap::new());
        let observer = RingObserver {
            limits,
            contexts,
            allowances: BTreeMap::new(),
            report,
            moved_at: now(),
            is_over: false,
        };
        let shared =
            Arc::new(WatcherShared { observer: Mutex::new(observer), changed: Condvar::new() });
        // If the second one cannot be started, dropping the channel ends the first.
        let mut watcher = Self { orders: Some(orders), threads: Vec::new() };
        let first = Arc::clone(&shared);
        watcher.threads.push(spawn(move || first.run_first(&incoming))?);
        watcher.threads.push(spawn(move || shared.run_second())?);
        Ok(watcher)
    }

    /// Observes a context on a device from now on.
    pub fn add(
        &self,
        queue: QueueId,
        device: usize,
        hold: HoldChannel,
        rings: Rings,
        counters: Arc<HoldCounters>,
    ) {
        self.order(HoldCommand::Add(queue, device, Box::new((hold, rings)), counters));
    }

    /// Releases a context and returns its channel, which the caller removes, and its rings: closing
    /// them is a call that may take time.
    pub fn remove(&self, queue: QueueId) -> Option<(HoldChannel, Rings)> {
        let (answer, incoming) = channel();
        self.order(HoldCommand::Remove(queue, answer));
        incoming.recv().ok().flatten()
    }

    pub fn permit(&self, queue: QueueId) {
        self.order(HoldCommand::Permit(queue));
    }

    pub fn forbid(&self, queue: QueueId) {
        self.order(HoldCommand::Forbid(queue));
    }

    /// Probes at every sample whether a context is on the engine, or no longer.
    pub fn set_probed(&self, queue: QueueId, is_probed: bool) {
        self.order(HoldCommand::Probe(queue, is_probed));
    }

    /// Reads the hints of this context there in every sample: a hint is a few hundred microseconds
    /// ahead of its request, and the daemon's loop may be busy for longer.
    pub fn watch_hints(&self, queue: QueueId, source: Weak<dyn HintSource>) {
        self.order(HoldCommand::HintSource(queue, source));
    }

    /// Samples at once: the next sample may be 100 us away (measured on an H200 with hints 350 us
    /// ahead: latency 1.02 times that without other load with this, 1.04 times without).
    pub fn sample_now(&self) {
        self.order(HoldCommand::Sample);
    }

    fn order(&self, order: HoldCommand) {
        if let Some(orders) = &self.orders {
            // The thread that receives them ends only when this side does.
            let _ = orders.send(order);
        }
    }
}

impl Drop for HoldWatcher {
    fn drop(&mut self) {
        self.orders = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn spawn(action: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("gpreempt-hold".to_owned()).spawn(move || {
        // The kernel's default slack is 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        raise_thread_priority();
        action();
    })
}

/// The time of a thread's next sample: those of the second thread are between those of the first.
const fn next_turn(now: Instant, offset: u64) -> Instant {
    let into = (now.as_nanos() + TURN - offset) % TURN;
    Instant::from_nanos(now.as_nanos() + TURN - into)
}

/// The same, or soon if a hold is about to be released.
fn next_sample(now: Instant, offset: u64, is_ending: bool) -> Instant {
    let next = next_turn(now, offset);
    if is_ending { next.min(Instant::from_nanos(now.as_nanos() + SAMPLE_AGAIN)) } else { next }
}

fn until(moment: Instant) -> Wait {
    Wait::from_nanos(moment.since(now()).as_nanos())
}

/// What the two threads share.
struct WatcherShared {
    observer: Mutex<RingObserver>,
    /// The second thread has to sample again, or to end.
    changed: Condvar,
}

impl WatcherShared {
    fn observer(&self) -> MutexGuard<'_, RingObserver> {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first thread: takes orders and samples.
    fn run_first(&self, incoming: &Receiver<HoldCommand>) {
        let mut sample_at = now();
        loop {
            // Orders do not wait for the next sample, and do not delay it.
            let is_empty = self.observer().contexts.is_empty();
            let order = if is_empty {
                incoming.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                incoming.recv_timeout(until(sample_at))
            };
            match order {
                Ok(order) => {
                    self.observer().take(order);
                    self.changed.notify_one();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let mut observer = self.observer();
            let was_idle = observer.is_idle();
            observer.sample();
            if was_idle && !observer.is_idle() {
                self.changed.notify_one();
            }
            sample_at = next_sample(now(), 0, observer.is_ending());
            drop(observer);
        }
        self.observer().end();
        self.changed.notify_one();
    }

    /// The second thread: samples between the samples of the first.
    fn run_second(&self) {
        let mut is_ending = false;
        loop {
            let waits = |observer: &mut RingObserver| !observer.is_over && observer.is_idle();
            let observer = self.changed.wait_while(self.observer(), waits);
            if observer.unwrap_or_else(PoisonError::into_inner).is_over {
                return;
            }
            std::thread::sleep(until(next_sample(now(), SAMPLE_EVERY, is_ending)));
            let mut observer = self.observer();
            observer.sample_where(|context| !context.may_omit_sample());
            is_ending = observer.is_ending();
        }
    }
}

/// The observed contexts, sampled by either thread.
struct RingObserver {
    limits: HoldLimits,
    contexts: BTreeMap<QueueId, ObservedContext>,
    /// How long each device may be idle in vain, whichever context is held.
    allowances: BTreeMap<usize, IdleAllowance>,
    report: Box<dyn FnMut(QueueId, WatcherReport) + Send>,
    moved_at: Instant,
    is_over: bool,
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

impl RingObserver {
    /// Whether one sampling thread suffices: no context is observed, or none was active for 2 s.
    fn is_idle(&self) -> bool {
        self.contexts.is_empty() || now().since(self.moved_at) > IDLE_AFTER
    }

    fn is_ending(&self) -> bool {
        self.contexts.values().any(ObservedContext::is_ending)
    }

    /// Samples every context.
    fn sample(&mut self) {
        self.sample_where(|_| true);
    }

    fn sample_where(&mut self, wanted: impl Fn(&ObservedContext) -> bool) {
        // Read while the lock is held: time must not go backwards from one sample to the next.
        let now = now();
        for (queue, context) in self.contexts.iter_mut().filter(|(_, context)| wanted(context)) {
            let allowance = self.allowances.entry(context.device).or_default();
            if context.sample(now, *queue, allowance, &mut self.report) {
                self.moved_at = now;
            }
        }
    }

    /// Ends all holds, for good.
    fn end(&mut self) {
        self.is_over = true;
        for context in self.contexts.values() {
            context.end();
        }
        // Afterwards, because closing rings may take time.
        self.contexts.clear();
    }

    fn take(&mut self, order: HoldCommand) {
        let now = now();
        let (queue, action): (QueueId, Action) = match order {
            HoldCommand::Add(queue, device, parts, counters) => {
                let (hold, rings) = *parts;
                let context = ObservedContext::new(device, hold, rings, self.limits, counters, now);
                self.contexts.insert(queue, context);
                return;
            }
            HoldCommand::Remove(queue, answer) => {
                let parts = self.contexts.remove(&queue).map(ObservedContext::release);
                let _ = answer.send(parts);
                return;
            }
            HoldCommand::HintSource(queue, source) => {
                if let Some(context) = self.contexts.get_mut(&queue) {
                    context.watch_hints(source);
                }
                return;
            }
            HoldCommand::Probe(queue, is_probed) => {
                if let Some(context) = self.contexts.get_mut(&queue) {
                    context.set_probed(is_probed);
                }
                return;
            }
            HoldCommand::Sample => return self.sample(),
            HoldCommand::Permit(queue) => (queue, ObservedContext::permit),
            HoldCommand::Forbid(queue) => (queue, ObservedContext::forbid),
        };
        if let Some(context) = self.contexts.get_mut(&queue) {
            action(context, now, self.allowances.entry(context.device).or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use gpreempt_stage::until as wait_until;

    use super::*;
    use gpreempt_core::time::Duration;

    use crate::controller::{HintState, HoldRecord};
    use crate::hold_pages::{HoldPages, LOADED};
    use crate::nvidia::hold::DoorbellMap;

    #[test]
    fn the_samples_of_the_two_threads_alternate() {
        for at in [0, 1, 99_999, 100_000, 150_000, 199_999, 200_000, 1_234_567_890] {
            let now = Instant::from_nanos(at);
            let first = next_turn(now, 0).since(now).as_nanos();
            let second = next_turn(now, SAMPLE_EVERY).since(now).as_nanos();
            assert!((1..=TURN).contains(&first) && (1..=TURN).contains(&second), "{at}");
            assert_eq!(first.abs_diff(second), SAMPLE_EVERY, "{at}");
            assert_eq!((at + first) % TURN, 0, "{at}");
            let soon = next_sample(now, 0, true).since(now).as_nanos();
            assert_eq!(soon, first.min(SAMPLE_AGAIN), "{at}");
            assert_eq!(next_sample(now, 0, false), next_turn(now, 0), "{at}");
        }
    }

    #[test]
    fn without_a_context_both_threads_take_orders_and_end() {
        let watcher = HoldWatcher::start(HoldLimits::default(), |_, _| {}).unwrap();
        assert_eq!(watcher.threads.len(), 2);
        let unknown = QueueId(7);
        watcher.permit(unknown);
        watcher.forbid(unknown);
        assert!(watcher.remove(unknown).is_none());
        drop(watcher);
    }

    /// A hint page that the test writes.
    #[derive(Debug, Default)]
    struct FakePage(Mutex<HintState>);

    impl HintSource for FakePage {
        fn look(&self) -> HintState {
            *self.0.lock().unwrap()
        }
    }

    /// A file of zeros in place of device memory.
    fn memory(length: u64) -> std::fs::File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::memfd_create("gpreempt-test", flags).unwrap());
        file.set_len(length).unwrap();
        file
    }

    #[test]
    fn the_watcher_places_and_releases_a_hold_from_the_hint_page_alone() {
        let (queue, token) = (QueueId(7), 0x5a);
        let pages = HoldPages::new().unwrap();
        let slot = pages.take().unwrap();
        let device_memory = std::fs::File::options().write(true).open(pages.path()).unwrap();
        let bell = memory(DoorbellMap::LENGTH as u64);
        let doorbell = DoorbellMap::new(bell.as_fd()).unwrap();
        let channel = HoldChannel::new(slot, doorbell, (token, None), 0xe0_0000_0000, 0xcbc0);
        let rings = Rings::in_file(memory(0x1_0000));
        // Longer than the test takes, so that only the page ends the hold.
        let hold_max = Duration::from_millis(60_000);
        let limits = HoldLimits { hold_max, ..HoldLimits::default() };
        let watcher = HoldWatcher::start(limits, |_, _| {}).unwrap();
        let counters = Arc::new(HoldCounters::default());
        watcher.add(queue, 0, channel, rings, Arc::clone(&counters));
        let page = Arc::new(FakePage::default());
        let source: Arc<dyn HintSource> = Arc::<FakePage>::clone(&page);
        watcher.watch_hints(queue, Arc::downgrade(&source));
        drop(source);
        let say = |begun, is_active| *page.0.lock().unwrap() = HintState { begun, is_active };
        say(1, true);
        std::thread::sleep(Wait::from_millis(5));
        assert_eq!(counters.figures().placed, 0, "the scheduler has not permitted it");
        watcher.permit(queue);
        wait_until("it is held", || counters.figures().is_held);
        let mut rung = [0; 4];
        bell.read_exact_at(&mut rung, 0x90).unwrap();
        assert_eq!(u32::from_ne_bytes(rung), token);
        // The device reports the number of the hold, in the first slot.
        device_memory.write_all_at(&1_u32.to_ne_bytes(), LOADED as u64).unwrap();
        // Some samples later.
        std::thread::sleep(Wait::from_millis(2));
        say(1, false);
        wait_until("it is released", || !counters.figures().is_held);
        let held = |records: Vec<HoldRecord>| {
            let kept = |record: HoldRecord| match record {
                HoldRecord::Held { placed_at, on_engine_at, ended_at, .. } => {
                    Some((placed_at, on_engine_at, ended_at))
                }
                HoldRecord::LateSample { .. } => None,
            };
            records.into_iter().filter_map(kept).collect::<Vec<_>>()
        };
        let first = held(counters.take_records());
        let [(placed_at, Some(on_engine_at), ended_at)] = first[..] else { panic!("{first:?}") };
        assert!(placed_at < on_engine_at && on_engine_at < ended_at, "{first:?}");
        say(2, true);
        wait_until("it is held again", || counters.figures().is_held);
        assert_eq!(counters.figures().placed, 2);
        assert_eq!(held(counters.take_records()), [], "each hold counts once, at its end");
        drop(page);
        wait_until("it ends with its page", || !counters.figures().is_held);
        let second = held(counters.take_records());
        assert!(matches!(second[..], [(_, None, _)]), "the device has not reached it: {second:?}");
        assert!(watcher.remove(queue).is_some());
    }
}
