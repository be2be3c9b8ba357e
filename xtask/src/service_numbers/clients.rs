//! The clients of a measurement: background threads that keep the daemon busy or observe the
//! machine, and the latency-critical client whose reaction times are measured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration as Time;
use gpreempt_sim::prng::Prng;
use gpreempt_stage::{Daemon, LIMIT};
use gpreempt_wire::client::{Client, EventStream, HintWriter};
use gpreempt_wire::emulator::client::{Client as EmuClient, Launch, Queue};
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::monotonic;
use gpreempt_wire::process::{Process, SchedAttrChange};
use gpreempt_wire::request::Request;

use super::promises::Sample;
use super::setup::Setup;

/// Threads that ask the daemon for snapshots.
const CLIENTS: usize = 4;
/// The pause of each thread between two snapshots.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How long a thread sleeps to see how late it wakes up: like the daemon's loop.
const NAP: Duration = Duration::from_millis(5);
const STEPS: u32 = 300_000;

/// A thread with a flag that ends it.
#[derive(Debug)]
pub(super) struct StoppableThread<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> StoppableThread<T> {
    pub(super) fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Self { stop, thread: std::thread::spawn(move || work(&told)) }
    }

    pub(super) fn end(self) -> Option<T> {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

/// Clients that keep the daemon busy with requests for snapshots.
#[derive(Debug)]
pub(super) struct BackgroundClients {
    askers: Vec<StoppableThread<anyhow::Result<()>>>,
}

impl BackgroundClients {
    pub(super) fn start(daemon: &Daemon) -> Self {
        let asker = |_| {
            let options = daemon.options();
            StoppableThread::start(move |stop| {
                let mut client = Client::connect(&options)?;
                while !stop.load(Ordering::Relaxed) {
                    client.snapshot()?;
                    std::thread::sleep(ASK_EVERY);
                }
                Ok(())
            })
        };
        Self { askers: (0..CLIENTS).map(asker).collect() }
    }

    /// Ends the clients. An error if one of them was not answered.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let end = |asker: StoppableThread<anyhow::Result<()>>| asker.end();
        self.askers.into_iter().filter_map(end).collect()
    }
}

/// How late the machine wakes up a thread that sleeps.
#[derive(Debug)]
pub(super) struct WakeupProbe(StoppableThread<Sample>);

impl WakeupProbe {
    pub(super) fn start() -> Self {
        Self(StoppableThread::start(|stop| {
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
pub(super) struct CpuTimeProbe(StoppableThread<Sample>);

impl CpuTimeProbe {
    pub(super) fn start() -> Self {
        Self(StoppableThread::start(|stop| {
            // As urgent as the daemon is.
            gpreempt_device::process::raise_thread_priority();
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

/// A computation whose steps depend on each other: about as much work as a turn of the daemon's
/// loop with 1,000 queues.
fn compute() {
    let mut number = 1_u64;
    for _ in 0..STEPS {
        // The numbers of Knuth's generator; any would do. The compiler must not take two steps at
        // once.
        number =
            std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

fn processor_time_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let whole = u64::try_from(used.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(used.tv_nsec).unwrap_or(0))
}

/// A thread that waits to be woken up and does nothing else: what the least that a hint can be
/// costs on this machine.
#[derive(Debug)]
pub(super) struct WakeProbe {
    bell: Sender<Instant>,
    thread: JoinHandle<Sample>,
}

impl WakeProbe {
    pub(super) fn start() -> Self {
        let (bell, rings) = channel::<Instant>();
        let thread = std::thread::spawn(move || {
            // As urgent as the daemon is.
            gpreempt_device::process::raise_thread_priority();
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

/// Longer than any interval, so that the work is still there when it is looked for.
const KERNEL_NS: u32 = 12_000_000;
/// How long to wait for an event: far more than any reaction takes.
const SILENCE: Duration = Duration::from_secs(3);
/// How far apart requests are at the most, beyond what it takes to put everything back.
const PAUSE_US_MAX: u64 = 10_000;

#[derive(Debug)]
pub(super) struct LatencyClient {
    _emulator: EmuClient,
    queue: Queue,
    launch: Launch,
    follow: EventStream,
    /// Kept, because what was asked for ends with it.
    _registered: Client,
    page: HintWriter,
    slot: usize,
    /// Queues that are preempted for this client, and since when.
    off: BTreeMap<u64, u64>,
    /// Those of them that have left the device.
    left: BTreeSet<u64>,
    chance: Prng,
    pub(super) lost: u64,
    commands: Sample,
    detected: Sample,
    done: Sample,
}

impl LatencyClient {
    /// A client with a higher priority than all loads of the setup.
    pub(super) fn open(setup: &Setup) -> anyhow::Result<Self> {
        let mut registered = setup.daemon.try_connect()?;
        let change = SchedAttrChange { priority: Priority::new(12), ..SchedAttrChange::default() };
        let register = Request::Register { process: Process::SENDER, change };
        let why = "a priority above 7 needs root or the group gpreempt";
        registered.expect_ok(&register).context(why)?;
        let (groups, waves) = (4, 1);
        let region_bytes = 32 * groups;
        let mut emulator = EmuClient::connect(setup.emulator.place(), region_bytes)?;
        let queue = emulator.open_queue(DeviceId(0), 64)?;
        let known =
            setup.daemon.try_snapshot()?.tasks.iter().map(|task| task.queues.len()).sum::<usize>();
        setup.until_queues(known.max(4))?;
        let page = setup.daemon.try_connect()?.open_page()?;
        let slot = page.claim().context("the page has no free slot")?;
        let follow = setup.daemon.try_connect()?.follow(&Request::Follow)?;
        let (kernel, region, number, work_ns) = (0, 0, 0, KERNEL_NS);
        let launch = Launch { kernel, groups, waves, region, region_bytes, number, work_ns };
        Ok(Self {
            _emulator: emulator,
            queue,
            launch,
            follow,
            _registered: registered,
            page,
            slot,
            off: BTreeMap::new(),
            left: BTreeSet::new(),
            chance: Prng::new(1),
            lost: 0,
            commands: Sample::default(),
            detected: Sample::default(),
            done: Sample::default(),
        })
    }

    /// Submits a kernel, and waits for the preempt command that it causes.
    pub(super) fn work(&mut self) -> anyhow::Result<()> {
        let begin_ns = monotonic().as_nanos();
        self.queue.submit(&self.launch)?;
        self.await_command(begin_ns)?;
        let wanted = self.queue.submitted();
        let patience = Time::from_millis(u64::try_from(LIMIT.as_millis())?);
        if !self.queue.wait(wanted, patience)? {
            bail!("the device never did what was submitted");
        }
        Ok(())
    }

    /// Begins a hint, waits for the preempt command that it causes, and ends the hint.
    pub(super) fn hint(&mut self) -> anyhow::Result<()> {
        let begin_ns = monotonic().as_nanos();
        self.page.begin(self.slot, 0);
        self.await_command(begin_ns)?;
        self.page.end(self.slot);
        Ok(())
    }

    /// Waits until every preempted queue runs again, and then for a random time.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        // A queue whose return was left out of the events has returned after this time too.
        while !self.off.is_empty() && self.next_event(SILENCE)?.is_some() {}
        self.off.clear();
        self.left.clear();
        std::thread::sleep(Duration::from_micros(self.chance.below(PAUSE_US_MAX)));
        Ok(())
    }

    fn await_command(&mut self, begin_ns: u64) -> anyhow::Result<()> {
        let own = std::process::id();
        let mut detected_ns = None;
        loop {
            let Some(event) = self.next_event(SILENCE)? else {
                // The daemon leaves out events for a slow reader, and this was one.
                self.lost += 1;
                return Ok(());
            };
            if event.at_ns < begin_ns {
                continue;
            }
            let is_own = |process: Option<Process>| process.map(Process::pid) == Some(own);
            if event.kind == EventKind::Active && is_own(event.process) {
                detected_ns = Some(event.at_ns);
            }
            if event.kind == EventKind::Preempt && is_own(event.by_process) {
                self.commands.push(event.at_ns - begin_ns);
                if let Some(detected_ns) = detected_ns {
                    self.detected.push(event.at_ns.saturating_sub(detected_ns));
                }
                return Ok(());
            }
        }
    }

    /// The next event within that time; keeps track of the queues that are off.
    fn next_event(&mut self, wait: Duration) -> anyhow::Result<Option<Event>> {
        let Some(event) = self.follow.next_within(wait)? else {
            if self.follow.is_over() {
                bail!("the daemon has ended");
            }
            return Ok(None);
        };
        match event.kind {
            EventKind::Preempt => drop(self.off.insert(event.queue, event.at_ns)),
            EventKind::Preempted => {
                if self.off.contains_key(&event.queue) && self.left.insert(event.queue) {
                    self.done.push(event.duration_ns);
                }
            }
            EventKind::Resumed | EventKind::Vanished => {
                self.off.remove(&event.queue);
                self.left.remove(&event.queue);
            }
            EventKind::Resume
            | EventKind::Boost
            | EventKind::Linger
            | EventKind::Fault
            | EventKind::Appeared
            | EventKind::Changed
            | EventKind::HintBegin
            | EventKind::HintEnd
            | EventKind::Active
            | EventKind::Idle
            | EventKind::Suspended
            | EventKind::Released
            | EventKind::Policy
            | EventKind::Evicting
            | EventKind::Evicted
            | EventKind::Restoring
            | EventKind::Restored
            | EventKind::Room => {}
        }
        Ok(Some(event))
    }

    /// From work or hint to command, since the last call.
    pub(super) fn take_commands(&mut self) -> Sample {
        std::mem::take(&mut self.commands)
    }

    /// From detection to command, since the last call.
    pub(super) fn take_detected(&mut self) -> Sample {
        std::mem::take(&mut self.detected)
    }

    /// From command to completion, since the last call.
    pub(super) fn take_done(&mut self) -> Sample {
        std::mem::take(&mut self.done)
    }
}
