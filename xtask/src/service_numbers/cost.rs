//! What the daemon and `top` cost while 32 queues are scheduled, as the kernel counts it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_device::process::StatusFile;
use gpreempt_stage::EmulatorKind;
use serde_json::{Value, json};

use super::setup::{Setup, Terminal};

/// How long each process is measured.
const WATCH: Duration = Duration::from_secs(20);
/// The time in which processes start does not count.
const WARM_UP: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    queues: usize,
    interval_us: u64,
    preempts_per_s: f64,
    pub(super) daemon_percent: f64,
    pub(super) daemon_kib: u64,
    emulator_percent: f64,
    pub(super) top_percent: f64,
    top_kib: u64,
}

impl Cost {
    /// Measures a mixed load: two processes that always have work, two with a high priority and a
    /// request every half second, and four with seven queues each and little work.
    pub(super) fn measure(programs: &Path) -> anyhow::Result<Self> {
        let mut setup =
            Setup::start(EmulatorKind::Gpu, programs, "cost", "--model mi300x --compute-units 4")?;
        setup.loads(2, 2, "be --kernel-us 4000 --depth 2 --report-ms 60000")?;
        setup.loads(2, 7, "lc --kernels 4 --every-us 500000")?;
        setup.loads(4, 2, "light --queues 7 --every-ms 100 --kernel-us 200")?;
        let queues = 32;
        setup.until_queues(queues)?;
        std::thread::sleep(WARM_UP);
        let before = setup.daemon.try_snapshot()?;
        let meters = [Meter::start(setup.daemon.pid())?, Meter::start(setup.emulator.pid())?];
        std::thread::sleep(WATCH);
        let [daemon_percent, emulator_percent] = meters.map(|meter| meter.percent());
        let (daemon_percent, emulator_percent) = (daemon_percent?, emulator_percent?);
        let after = setup.daemon.try_snapshot()?;
        let daemon_kib = resident_kib(setup.daemon.pid())?;
        let preempts = |snapshot: &gpreempt_wire::statistics::Snapshot| {
            snapshot.devices.iter().map(|device| device.preempts).sum::<u64>()
        };
        let preempts = preempts(&after).saturating_sub(preempts(&before));
        let preempts = u32::try_from(preempts).map_or(f64::MAX, f64::from);
        let elapsed = Duration::from_nanos(after.now_ns.saturating_sub(before.now_ns));
        let mut top = setup.command("gpreempt")?;
        top.arg("top");
        let top = Terminal::open(top)?;
        std::thread::sleep(WARM_UP);
        let meter = Meter::start(top.pid())?;
        std::thread::sleep(WATCH);
        let (top_percent, top_kib) = (meter.percent()?, resident_kib(top.pid())?);
        drop(top);
        super::check_ends(&setup.end()?)?;
        Ok(Self {
            queues,
            interval_us: after.interval_us,
            preempts_per_s: preempts / elapsed.as_secs_f64(),
            daemon_percent,
            daemon_kib,
            emulator_percent,
            top_percent,
            top_kib,
        })
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "queues": self.queues,
            "interval_us": self.interval_us,
            "seconds": WATCH.as_secs(),
            "preempts_per_s": super::round(self.preempts_per_s),
            "daemon_percent_of_a_core": super::round(self.daemon_percent),
            "daemon_resident_kib": self.daemon_kib,
            "emulator_percent_of_a_core": super::round(self.emulator_percent),
            "top_percent_of_a_core": super::round(self.top_percent),
            "top_resident_kib": self.top_kib,
        })
    }
}

/// How much processor time a process had at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    pid: u32,
    begin: Instant,
    begin_ns: u64,
}

impl Meter {
    pub(super) fn start(pid: u32) -> anyhow::Result<Self> {
        Ok(Self { pid, begin: Instant::now(), begin_ns: processor_ns(pid)? })
    }

    /// The part of one core that it had since then, in percent.
    pub(super) fn percent(&self) -> anyhow::Result<f64> {
        let used = processor_ns(self.pid)?.saturating_sub(self.begin_ns);
        let used = Duration::from_nanos(used).as_secs_f64();
        Ok(100.0 * used / self.begin.elapsed().as_secs_f64())
    }
}

/// Processor time of all threads of a process. Those that ended meanwhile are not in it.
fn processor_ns(pid: u32) -> anyhow::Result<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.with_context(|| format!("process {pid} has ended"))?;
    let mut sum = 0;
    for thread in threads {
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        sum += text.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Memory of a process that is in memory.
pub(super) fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = StatusFile::read(pid).with_context(|| format!("process {pid} has ended"))?;
    status.number("VmRSS", 0).context("the kernel does not say VmRSS")
}

/// Processes that want to run, on average over the last minute.
pub(super) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_is_counted_and_memory_is_found() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let meter = Meter::start(busy.id()).unwrap();
        let begin = Instant::now();
        while meter.percent().unwrap() == 0.0 && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (percent, resident) = (meter.percent().unwrap(), resident_kib(busy.id()).unwrap());
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(percent > 0.0 && resident > 100, "{percent} {resident}");
        assert!(Meter::start(u32::MAX).is_err());
    }
}
