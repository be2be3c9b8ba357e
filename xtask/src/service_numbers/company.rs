//! Threads beside a measurement: one kind keeps the daemon busy, the others watch the machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::sample::Sample;
use super::setup::connect;

/// How many ask the daemon for everything it knows.
const ASKERS: usize = 4;
/// How often each of them does.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How long a thread sleeps to see how late it wakes up: like the daemon's loop.
const NAP: Duration = Duration::from_millis(5);
/// How many steps the same work has.
const STEPS: u32 = 300_000;

/// A thread that ends when it is told to.
#[derive(Debug)]
struct Beside<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Beside<T> {
    fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Self { stop, thread: std::thread::spawn(move || work(&told)) }
    }

    fn end(self) -> Option<T> {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

/// Whoever keeps the daemon busy.
#[derive(Debug)]
pub(super) struct Company {
    askers: Vec<Beside<anyhow::Result<()>>>,
}

impl Company {
    pub(super) fn start(socket: &Path) -> Self {
        let asker = |_| {
            let socket = socket.to_owned();
            Beside::start(move |stop| {
                let mut client = connect(&socket)?;
                while !stop.load(Ordering::Relaxed) {
                    client.snapshot()?;
                    std::thread::sleep(ASK_EVERY);
                }
                Ok(())
            })
        };
        Self { askers: (0..ASKERS).map(asker).collect() }
    }

    /// Ends it.
    ///
    /// # Errors
    /// If somebody was not answered.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let end = |asker: Beside<anyhow::Result<()>>| asker.end();
        self.askers.into_iter().filter_map(end).collect()
    }
}

/// How late the machine wakes up whoever sleeps.
#[derive(Debug)]
pub(super) struct Noise(Beside<Sample>);

impl Noise {
    pub(super) fn start() -> Self {
        Self(Beside::start(|stop| {
            let mut sample = Sample::default();
            while !stop.load(Ordering::Relaxed) {
                let due = Instant::now() + NAP;
                std::thread::sleep(NAP);
                let late = Instant::now().saturating_duration_since(due).as_nanos();
                sample.push(u64::try_from(late).unwrap_or(u64::MAX));
            }
            sample
        }))
    }

    pub(super) fn end(self) -> Sample {
        self.0.end().unwrap_or_default()
    }
}

/// How much processor time the machine says that the same work takes, each time that it is done.
///
/// The daemon's loop cannot do more in one turn than in another because of that. Whatever is beyond
/// the usual was done by the machine meanwhile, in the same clock by which turns are measured:
/// interrupts, and time that a host took away and did not tell of, or told of later.
#[derive(Debug)]
pub(super) struct Toil(Beside<Sample>);

impl Toil {
    pub(super) fn start() -> Self {
        Self(Beside::start(|stop| {
            // As urgent as the daemon is.
            gpreempt_device::urgency::come_first();
            let mut sample = Sample::default();
            let mut used = processor_time_ns();
            while !stop.load(Ordering::Relaxed) {
                compute();
                std::thread::sleep(NAP);
                // As turns are measured: falling asleep and waking up are part of it.
                let now = processor_time_ns();
                sample.push(now.saturating_sub(used));
                used = now;
            }
            sample
        }))
    }

    pub(super) fn end(self) -> Sample {
        self.0.end().unwrap_or_default()
    }
}

/// Something that nobody can do faster than step by step: about as much as a turn of the loop with
/// 1,000 queues.
fn compute() {
    let mut number = 1_u64;
    for _ in 0..STEPS {
        // The numbers of Knuth's generator; any would do. The compiler must not take two steps at
        // once.
        number =
            std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// The processor time that this thread has used since it exists.
fn processor_time_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let whole = u64::try_from(used.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(used.tv_nsec).unwrap_or(0))
}

/// A thread that waits to be woken up and does nothing else: what the least that a hint can be
/// costs on this machine.
#[derive(Debug)]
pub(super) struct Sleeper {
    bell: Sender<Instant>,
    thread: JoinHandle<Sample>,
}

impl Sleeper {
    pub(super) fn start() -> Self {
        let (bell, rings) = channel::<Instant>();
        let thread = std::thread::spawn(move || {
            // As urgent as the daemon is.
            gpreempt_device::urgency::come_first();
            let mut sample = Sample::default();
            for rung in rings {
                sample.push(u64::try_from(rung.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            sample
        });
        Self { bell, thread }
    }

    /// Wakes it up, and lets it fall asleep again.
    pub(super) fn wake(&self) {
        // A thread that ended has no sample, which is noticed then.
        let _ = self.bell.send(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }

    /// How long it took each time until it was awake.
    pub(super) fn end(self) -> Sample {
        drop(self.bell);
        self.thread.join().unwrap_or_default()
    }
}
