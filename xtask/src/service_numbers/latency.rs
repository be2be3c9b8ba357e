//! From work, or from a hint, to the preempt command: on the emulated GPU, and for a program on an
//! emulated AMD device.
//!
//! On the emulated GPU this process is the latency-critical client. It has a queue beside loads
//! that always have work, follows the daemon's events, and compares its own clock with theirs: all
//! of them are `CLOCK_MONOTONIC`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_stage::EmulatorKind;
use gpreempt_wire::client::EventStream;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::request::Request;
use serde_json::{Value, json};

use super::clients::{BackgroundClients, LatencyClient, StoppableThread, WakeProbe, WakeupProbe};
use super::promises::Sample;
use super::setup::Setup;

/// How often each way is measured.
const ROUNDS: usize = 1_000;
/// Processes that always have work.
const OTHERS: u64 = 3;

#[derive(Clone, Debug)]
pub(super) struct Latency {
    pub(super) interval_us: u64,
    /// From work in the ring to the command.
    pub(super) work: Sample,
    /// From when the daemon began to read the rings to the command.
    detected: Sample,
    /// From a hint to the command, while the daemon sleeps.
    pub(super) hint: Sample,
    /// The same while others keep it busy.
    pub(super) hint_busy: Sample,
    /// From the command until its completion was reported.
    done: Sample,
    /// From a call to a thread that waits for nothing else until it is awake, in turn with the
    /// hints: no hint can be faster here.
    pub(super) bare: Sample,
    /// How late a thread wakes up that only sleeps: the machine's part.
    machine: Sample,
    /// Commands whose events were left out, because this process read too slowly.
    lost: u64,
}

impl Latency {
    pub(super) fn measure(programs: &Path) -> anyhow::Result<Self> {
        let mut setup = Setup::start(
            EmulatorKind::Gpu,
            programs,
            "latency",
            "--model mi300x --compute-units 1",
        )?;
        setup.loads(OTHERS, 2, "be --kernel-us 4000 --depth 2 --report-ms 60000")?;
        setup.until_queues(usize::try_from(OTHERS)?)?;
        let interval_us = setup.daemon.try_snapshot()?.interval_us;
        let mut client = LatencyClient::open(&setup)?;
        let wakeups = WakeupProbe::start();
        eprintln!("{ROUNDS} times work without a hint");
        repeat(&mut client, LatencyClient::work)?;
        let work = client.take_commands();
        let detected = client.take_detected();
        eprintln!("{ROUNDS} hints while the daemon sleeps");
        let waking = WakeProbe::start();
        repeat(&mut client, |client| {
            waking.wake();
            client.hint()
        })?;
        let bare = waking.end();
        let hint = client.take_commands();
        eprintln!("{ROUNDS} hints while it is busy");
        let background = BackgroundClients::start(&setup.daemon);
        repeat(&mut client, LatencyClient::hint)?;
        let hint_busy = client.take_commands();
        background.end().context("a background client failed")?;
        let machine = wakeups.end();
        let (done, lost) = (client.take_done(), client.lost);
        drop(client);
        super::check_ends(&setup.end()?)?;
        Ok(Self { interval_us, work, detected, hint, hint_busy, done, bare, machine, lost })
    }

    /// All times are in microseconds.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "interval_us": self.interval_us,
            "work_to_command_us": self.work.to_json(),
            "detection_to_command_us": self.detected.to_json(),
            "hint_to_command_us": self.hint.to_json(),
            "hint_to_command_busy_us": self.hint_busy.to_json(),
            "bare_wake_us": self.bare.to_json(),
            "command_to_preempted_us": self.done.to_json(),
            "not_heard_of": self.lost,
            "machine_wakes_late_us": self.machine.to_json(),
        })
    }
}

fn repeat(
    client: &mut LatencyClient,
    round: impl Fn(&mut LatencyClient) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut told = Instant::now();
    for number in 0..ROUNDS {
        client.settle()?;
        round(client)?;
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            eprintln!("{number} of {ROUNDS}");
        }
    }
    Ok(())
}

/// Requests of 20 kernels. They come at all phases of the daemon's interval: 50 ms would be a
/// multiple of it, and every request would come at the same phase.
const REQUESTS: &str =
    "lc --kernels 20 --kernel-us 20 --gap-us 30 --every-us 50700 --warmup-ms 2000 --seconds 40";
/// The load that the requests compete with.
const KFD_LOAD: &str = "be --kernel-us 8000 --depth 2 --report-ms 60000";
/// How long one waits for the next event before one looks whether it is over.
const LOOK: Duration = Duration::from_millis(100);

/// How long requests took, from due to done, in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Times(Value);

impl Times {
    fn of(line: &Value) -> anyhow::Result<Self> {
        let times = line.get("latency_us").filter(|times| times.is_object());
        Ok(Self(times.context("the load had no requests")?.clone()))
    }

    fn us(&self, name: &str) -> u64 {
        let us = self.0.get(name).and_then(Value::as_f64).unwrap_or(f64::MAX);
        let time = Duration::try_from_secs_f64(us / 1e6).unwrap_or(Duration::MAX);
        u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    pub(super) fn p99_us(&self) -> u64 {
        self.us("p99")
    }

    pub(super) fn in_words(&self) -> String {
        let [p50, p90, p99] = ["p50", "p90", "p99"].map(|name| self.us(name));
        format!("p50 {p50} us, p90 {p90} us, p99 {p99} us")
    }
}

#[derive(Clone, Debug)]
pub(super) struct Kfd {
    pub(super) interval_us: u64,
    pub(super) alone: Times,
    pub(super) beside: Times,
    /// From the command until its completion was reported.
    pub(super) cost: Sample,
    /// From when the daemon knew of the work until the command.
    pub(super) reaction: Sample,
    /// How late a thread wakes up that only sleeps: the machine's part.
    pub(super) machine: Sample,
}

impl Kfd {
    pub(super) fn measure(programs: &Path) -> anyhow::Result<Self> {
        let emulator = "--model mi300x --compute-units 1";
        let mut setup = Setup::start(EmulatorKind::Kfd, programs, "kfd", emulator)?;
        let interval_us = setup.daemon.try_snapshot()?.interval_us;
        eprintln!("requests alone");
        let alone = Times::of(&setup.run_load(7, REQUESTS)?)?;
        setup.loads(1, 2, KFD_LOAD)?;
        setup.until_queues(1)?;
        eprintln!("requests beside kernels of 8 ms");
        let (wakeups, listener) = (WakeupProbe::start(), EventListener::start(&setup)?);
        let beside = Times::of(&setup.run_load(7, REQUESTS)?)?;
        let machine = wakeups.end();
        let (cost, reaction) = listener.end()?;
        super::check_ends(&setup.end()?)?;
        Ok(Self { interval_us, alone, beside, cost, reaction, machine })
    }

    pub(super) fn cost_us(&self) -> u64 {
        self.cost.us(990)
    }

    /// The longest that nearly every request may take.
    pub(super) fn bound_us(&self) -> u64 {
        self.interval_us + self.cost_us() + self.alone.p99_us()
    }

    /// All times are in microseconds.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "interval_us": self.interval_us,
            "alone_us": self.alone.0,
            "beside_us": self.beside.0,
            "bound_us": self.bound_us(),
            "detection_to_command_us": self.reaction.to_json(),
            "command_to_preempted_us": self.cost.to_json(),
            "machine_wakes_late_us": self.machine.to_json(),
        })
    }
}

/// A thread that follows the events of the daemon.
struct EventListener(StoppableThread<anyhow::Result<(Sample, Sample)>>);

impl EventListener {
    fn start(setup: &Setup) -> anyhow::Result<Self> {
        let mut follow = setup.daemon.try_connect()?.follow(&Request::Follow)?;
        Ok(Self(StoppableThread::start(move |stop| listen(&mut follow, stop))))
    }

    /// What preempts cost, and how long they came after the work.
    fn end(self) -> anyhow::Result<(Sample, Sample)> {
        let heard = self.0.end().context("the thread that follows the daemon failed")?;
        heard.context("the events of the daemon ended")
    }
}

fn listen(follow: &mut EventStream, stop: &AtomicBool) -> anyhow::Result<(Sample, Sample)> {
    let (mut cost, mut reaction) = (Sample::default(), Sample::default());
    let mut active = std::collections::BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let Some(event) = follow.next_within(LOOK)? else { continue };
        if event.kind == EventKind::Active {
            active.insert(event.process, event.at_ns);
        } else if event.kind == EventKind::Preempted {
            cost.push(event.duration_ns);
        } else if event.kind == EventKind::Preempt
            && let Some(since) = active.get(&event.by_process)
        {
            reaction.push(event.at_ns.saturating_sub(*since));
        }
    }
    Ok((cost, reaction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_an_interval_a_switch_and_the_time_alone() {
        let times = |p99: f64| Times(json!({ "p50": 1.0, "p90": 2.5, "p99": p99 }));
        let mut cost = Sample::default();
        cost.push(300_000);
        let kfd = Kfd {
            interval_us: 5_000,
            alone: times(1_400.2),
            beside: times(6_702.0),
            reaction: cost.clone(),
            machine: cost.clone(),
            cost,
        };
        assert_eq!((kfd.bound_us(), kfd.beside.p99_us()), (6_701, 6_702));
        assert!(!super::super::promises::of_kfd(&kfd)[0].is_kept);
        assert_eq!(kfd.alone.in_words(), "p50 1 us, p90 3 us, p99 1401 us");
        assert!(Times::of(&json!({ "n": 0 })).is_err());
    }
}
