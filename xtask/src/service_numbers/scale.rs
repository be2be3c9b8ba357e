//! Many processes with many queues, for a long time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use gpreempt_stage::EmulatorKind;
use serde_json::{Value, json};

use super::clients::{CpuTimeProbe, WakeupProbe};
use super::cost::{Meter, resident_kib};
use super::promises::Sample;
use super::setup::Setup;

/// The time in which processes start does not count.
const WARM_UP: Duration = Duration::from_secs(10);
/// How often memory is measured.
const LOOK: Duration = Duration::from_secs(1);
/// Memory that grew by less than this is flat.
const FLAT_KIB: u64 = 1_024;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Size {
    #[arg(long, default_value_t = 200)]
    clients: u64,
    #[arg(long, default_value_t = 1_000)]
    queues: u64,
    #[arg(long, default_value_t = 10)]
    minutes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Scale {
    size: Size,
    seconds: u64,
    turns: u64,
    late_turns: u64,
    pub(super) missed_turns: u64,
    late_us_max: u64,
    /// Turns whose own work took longer than an interval.
    pub(super) overrun_turns: u64,
    pub(super) turn_cpu_us_max: u64,
    /// The most that a turn took until every process had started.
    turn_cpu_us_max_before: u64,
    preempts: u64,
    /// How late the machine woke up a thread that did nothing else than sleep.
    machine: Sample,
    /// How much processor time a thread took that did the same every time.
    cpu_time: Sample,
    interval_us: u64,
    daemon_percent: f64,
    emulator_percent: f64,
    /// The daemon's memory, at every measurement.
    kib: Vec<u64>,
}

impl Scale {
    /// One in ten processes has a high priority.
    pub(super) fn measure(programs: &Path, size: Size) -> anyhow::Result<Self> {
        let Size { clients, queues, minutes } = size;
        if clients < 10
            || !queues.is_multiple_of(clients)
            || !(1..=64).contains(&(queues / clients))
        {
            bail!("take at least 10 clients, and 1 to 64 times as many queues");
        }
        let mut setup = Setup::start(EmulatorKind::Gpu, programs, "scale", "--model mi300x")?;
        let each = queues / clients;
        let load = format!("light --queues {each} --every-ms 1000 --kernel-us 200");
        setup.loads(clients - clients / 10, 2, &load)?;
        setup.loads(clients / 10, 7, &load)?;
        setup.until_queues(usize::try_from(queues)?)?;
        std::thread::sleep(WARM_UP);
        let before = setup.daemon.try_snapshot()?;
        let meters = [Meter::start(setup.daemon.pid())?, Meter::start(setup.emulator.pid())?];
        let (wakeups, cpu_time) = (WakeupProbe::start(), CpuTimeProbe::start());
        let begin = Instant::now();
        let mut kib = Vec::new();
        while begin.elapsed() < Duration::from_secs(60 * minutes) {
            std::thread::sleep(LOOK);
            kib.push(resident_kib(setup.daemon.pid())?);
            if kib.len().is_multiple_of(60) {
                let (minute, kib) = (kib.len() / 60, kib.last().copied().unwrap_or(0));
                eprintln!("minute {minute} of {minutes}: the daemon has {kib} KiB");
            }
        }
        let [daemon_percent, emulator_percent] = meters.map(|meter| meter.percent());
        let (daemon_percent, emulator_percent) = (daemon_percent?, emulator_percent?);
        let (after, seconds) = (setup.daemon.try_snapshot()?, begin.elapsed().as_secs());
        let (machine, cpu_time) = (wakeups.end(), cpu_time.end());
        super::check_ends(&setup.end()?)?;
        let since = |part: fn(&gpreempt_wire::statistics::Snapshot) -> u64| {
            part(&after).saturating_sub(part(&before))
        };
        Ok(Self {
            size,
            seconds,
            turns: since(|snapshot| snapshot.daemon.turns),
            late_turns: since(|snapshot| snapshot.daemon.late_turns),
            missed_turns: since(|snapshot| snapshot.daemon.missed_turns),
            late_us_max: after.daemon.late_us_max,
            overrun_turns: since(|snapshot| snapshot.daemon.overrun_turns),
            turn_cpu_us_max: after.daemon.turn_cpu_us_max,
            turn_cpu_us_max_before: before.daemon.turn_cpu_us_max,
            preempts: since(|snapshot| snapshot.devices.iter().map(|d| d.preempts).sum()),
            machine,
            cpu_time,
            interval_us: after.interval_us,
            daemon_percent,
            emulator_percent,
            kib,
        })
    }

    /// How often a thread that did nothing else than sleep woke up an interval too late.
    pub(super) fn machine_missed(&self) -> usize {
        self.machine.beyond_us(self.interval_us)
    }

    /// How often a thread that did the same every time took more than an interval for it, in the
    /// clock by which turns are measured.
    pub(super) fn machine_overrun(&self) -> usize {
        self.cpu_time.beyond_us(self.interval_us)
    }

    pub(super) fn machine_work_us_max(&self) -> u64 {
        self.cpu_time.us(1_000)
    }

    /// How much memory the last third of the time needed beyond the first.
    pub(super) fn growth_kib(&self) -> u64 {
        let third = self.kib.len().div_ceil(3);
        let max = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
        let (first, last) = (max(&self.kib[..third]), max(&self.kib[self.kib.len() - third..]));
        last.saturating_sub(first)
    }

    /// Whether it needed no more in the end than in the beginning.
    pub(super) fn is_flat(&self) -> bool {
        self.growth_kib() <= FLAT_KIB
    }

    pub(super) fn to_json(&self) -> Value {
        let Size { clients, queues, minutes } = self.size;
        // One value in a minute shows the shape.
        let kib: Vec<u64> = self.kib.iter().copied().step_by(60).collect();
        json!({
            "clients": clients,
            "queues": queues,
            "minutes": minutes,
            "seconds": self.seconds,
            "turns": self.turns,
            "late_turns": self.late_turns,
            "missed_turns": self.missed_turns,
            "late_us_max": self.late_us_max,
            "overrun_turns": self.overrun_turns,
            "turn_cpu_us_max": self.turn_cpu_us_max,
            "turn_cpu_us_max_before": self.turn_cpu_us_max_before,
            "machine_work_us": self.cpu_time.to_json(),
            "machine_work_us_max": self.machine_work_us_max(),
            "machine_work_overrun": self.machine_overrun(),
            "machine_wakes_late_us": self.machine.to_json(),
            "machine_wakes_missed": self.machine_missed(),
            "preempts": self.preempts,
            "daemon_percent_of_a_core": super::round(self.daemon_percent),
            "emulator_percent_of_a_core": super::round(self.emulator_percent),
            "resident_kib_max": self.kib.iter().max(),
            "resident_kib_growth": self.growth_kib(),
            "resident_kib_each_minute": kib,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(kib: Vec<u64>) -> Scale {
        Scale {
            size: Size { clients: 10, queues: 10, minutes: 1 },
            seconds: 60,
            turns: 1,
            late_turns: 0,
            missed_turns: 0,
            late_us_max: 0,
            overrun_turns: 0,
            turn_cpu_us_max: 0,
            turn_cpu_us_max_before: 0,
            preempts: 0,
            machine: Sample::default(),
            cpu_time: Sample::default(),
            interval_us: 5_000,
            daemon_percent: 0.0,
            emulator_percent: 0.0,
            kib,
        }
    }

    #[test]
    fn memory_is_flat_if_the_end_is_like_the_beginning() {
        assert!(scale(vec![5_000, 4_000, 9_000, 9_000, 6_024, 5_500]).is_flat());
        assert!(!scale(vec![5_000, 4_000, 9_000, 9_000, 6_025, 5_500]).is_flat());
        assert_eq!(scale((0..600).collect()).growth_kib(), 400);
        assert!(scale(vec![]).is_flat());
    }
}
