//! What a process uses of the machine, as the kernel counts it.

use std::fs;
use std::time::Instant;

use anyhow::Context;

/// How much processor time a process had at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    pid: u32,
    begin: Instant,
    begin_ns: u64,
}

impl Meter {
    /// Begins to look at a process.
    pub(super) fn start(pid: u32) -> anyhow::Result<Self> {
        Ok(Self { pid, begin: Instant::now(), begin_ns: processor_ns(pid)? })
    }

    /// The part of one core that it had since then, in percent.
    pub(super) fn percent(&self) -> anyhow::Result<f64> {
        let used = processor_ns(self.pid)?.saturating_sub(self.begin_ns);
        let used = std::time::Duration::from_nanos(used).as_secs_f64();
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
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.with_context(|| format!("process {pid} has ended"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number.and_then(|kib| kib.parse().ok()).context("the kernel does not say VmRSS")
}

/// Processes that want to run, on average over the last minute.
pub(super) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

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
