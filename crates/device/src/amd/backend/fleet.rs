//! All adopted processes on a patched KFD, under one thread.
//!
//! The calls of the patches name queues of any processes, so what comes together for all of them is
//! one call, and for each device one switch. There is no session with anybody: queues are listed in
//! debugfs, and a queue that is preempted does not keep its process from destroying it.
//!
//! Nothing of this is in the journal. What we preempted is resumed by the kernel when we die, and,
//! because it is asked for a short time only and asked for again as long as our loop turns, also
//! when we stand still. Priorities that were handed to the kernel's scheduler do outlive us; they
//! are written down.

mod calls;
mod crew;
mod handover;
mod roll;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;

use super::report::Report;
use super::worker::Job;
use crate::amd::Site;
use crate::amd::session::QueueName;
use crate::controller::{Reporter, Waker};
use crate::keeper::monotonic_ns;
use crate::ledger::Ledger;
use crate::process::ProcessKey;
use crew::Crew;

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Control a process.
    Add(TaskId, ProcessKey),
    /// Put it back as it was, and say when that is done.
    Remove(TaskId),
    /// Do something to a queue.
    Do(TaskId, Job),
    /// A process has another priority.
    Priority(TaskId, Priority),
    /// A queue has another priority, or again that of its process.
    QueuePriority(TaskId, QueueName, Option<Priority>),
}

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Fleet {
    orders: Option<Sender<Order>>,
    waker: Waker,
    pulse: Pulse,
    thread: Option<JoinHandle<()>>,
}

/// When the loop last showed that it turns, by the machine's clock.
#[derive(Clone, Debug)]
pub(super) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(monotonic_ns())))
    }

    fn beat(&self) {
        self.0.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// How long ago that was, in nanoseconds.
    fn age_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.0.load(Ordering::Relaxed))
    }
}

impl Fleet {
    /// Starts it. Where we may not call, it only looks whether the kernel schedules.
    ///
    /// # Errors
    /// If there are no more threads or descriptors.
    pub(super) fn start(
        site: Site,
        ledger: Ledger,
        reports: Reporter<Report>,
        schedules: bool,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let (waker, pulse) = (Waker::new()?, Pulse::new());
        let mut crew = Crew::new(site, ledger, reports, incoming, waker.clone(), pulse.clone());
        crew.schedules = schedules;
        let thread = std::thread::Builder::new().name("amd fleet".into()).spawn(move || {
            // Whoever started us ends us when nobody listens any more.
            let _ = crew.run();
            crew.put_all_back();
        })?;
        Ok(Self { orders: Some(orders), waker, pulse, thread: Some(thread) })
    }

    /// Tells it something. Says whether it will be done.
    pub(super) fn tell(&self, order: Order) -> bool {
        let is_told = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        self.waker.wake();
        is_told
    }

    /// The loop turns.
    pub(super) fn beat(&self) {
        self.pulse.beat();
    }

    /// Puts everything back as it was, and ends. Whether that was done by then: a call that hangs
    /// is not waited for, and what we hold is let on by the kernel when its time is over.
    pub(super) fn stop_by(&mut self, end: Instant) -> bool {
        self.orders = None;
        self.waker.wake();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(STOP_LOOK);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        true
    }
}

/// How often it is looked whether the thread has ended.
const STOP_LOOK: Duration = Duration::from_millis(1);
/// How long whoever lets go of it waits.
const STOP_MAX: Duration = Duration::from_secs(3);

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop_by(Instant::now() + STOP_MAX);
    }
}
