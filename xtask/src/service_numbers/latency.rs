//! From work, or from a hint, to the preempt command.
//!
//! This process is the important client. It has a queue on the emulated GPU on which others never
//! have enough, follows the daemon's events, and compares its own clock with theirs: all of it is
//! `CLOCK_MONOTONIC`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_stage::EmulatorKind;
use serde_json::{Value, json};

use super::company::{Company, Noise, Sleeper};
use super::sample::Sample;
use super::setup::Setup;
use super::station::Station;

/// How often each way is measured.
const ROUNDS: usize = 1_000;
/// Processes that never have enough.
const OTHERS: u64 = 3;

/// Everything that was measured.
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
    /// From the command until the daemon heard that it was carried out.
    done: Sample,
    /// From a call to a thread that waits for nothing else until it is awake, in turn with the
    /// hints: no hint can be faster here.
    pub(super) bare: Sample,
    /// How late a thread wakes up that wants to do nothing else than that: the machine's part.
    machine: Sample,
    /// Commands that were not heard of, because this process read too slowly.
    lost: u64,
}

impl Latency {
    /// Measures it.
    pub(super) fn measure(programs: &Path) -> anyhow::Result<Self> {
        let mut setup = Setup::start(
            EmulatorKind::Gpu,
            programs,
            "latency",
            "--model mi300x --compute-units 1",
        )?;
        setup.loads(OTHERS, 2, "be --kernel-us 4000 --depth 2 --report-ms 60000")?;
        setup.until_queues(usize::try_from(OTHERS)?)?;
        let interval_us = setup.snapshot()?.interval_us;
        let mut station = Station::open(&setup)?;
        let noise = Noise::start();
        eprintln!("{ROUNDS} times work without a hint");
        repeat(&mut station, Station::work)?;
        let work = station.take_commands();
        let detected = station.take_detected();
        eprintln!("{ROUNDS} hints while the daemon sleeps");
        let sleeper = Sleeper::start();
        repeat(&mut station, |station| {
            sleeper.wake();
            station.hint()
        })?;
        let bare = sleeper.end();
        let hint = station.take_commands();
        eprintln!("{ROUNDS} hints while it is busy");
        let company = Company::start(&setup.socket());
        repeat(&mut station, Station::hint)?;
        let hint_busy = station.take_commands();
        company.end().context("whoever keeps the daemon busy failed")?;
        let machine = noise.end();
        let (done, lost) = (station.take_done(), station.lost());
        drop(station);
        super::complain(&setup.end()?)?;
        Ok(Self { interval_us, work, detected, hint, hint_busy, done, bare, machine, lost })
    }

    /// For programs. All times are in microseconds.
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
    station: &mut Station,
    round: impl Fn(&mut Station) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut told = Instant::now();
    for number in 0..ROUNDS {
        station.settle()?;
        round(station)?;
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            eprintln!("{number} of {ROUNDS}");
        }
    }
    Ok(())
}
