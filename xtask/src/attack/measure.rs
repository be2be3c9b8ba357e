//! What is measured with and without an attack, and the limits that it is held to.
//!
//! The limits are about the daemon, but the emulator that stands for the GPU is a process, and so
//! are the loads. Attackers that use all processors delay them by what the CPU scheduler gives to
//! each, whatever the daemon does: on two processors, eight processes that only use a socket of
//! their own (the attack `processors`) make the p99 of the latency-critical load 59 to 127 times as
//! long. A GPU does not compete for processors, and how a program competes for them is not the
//! daemon's to decide. So the emulator, the loads and the pings run at a real-time CPU priority
//! ([`as_hardware`]), with which the same processes leave the p99 within 1.1 times. The daemon runs
//! at the nice value of its systemd unit and competes with the attackers as on any machine:
//! whatever delays it, or makes it decide wrongly, is measured. `processors` is run each time, with
//! the same limits, so that a machine on which this does not hold is noticed.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpreempt_stage::Process;
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::{Request, Role};

use super::{BYSTANDER, Target, WINDOW};

/// How often a request is sent to see how long its answer takes.
const EVERY: Duration = Duration::from_millis(20);
/// Memory that the daemon may keep when an attack is over: the pages that its allocator does not
/// give back, because something that is still needed lies beside what was freed.
const KEPT_MIB_MAX: f64 = 4.0;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was measured during one window.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    /// From connect to the answer to `Ping`, for root.
    root_ms: Vec<f64>,
    /// The same for a user that does not attack.
    bystander_ms: Vec<f64>,
    /// p99 of the latency-critical load.
    latency_us: f64,
    /// Processor time of the daemon, as a part of one core.
    cores: f64,
    memory_kib_max: u64,
}

/// What was measured before an attack, during it and after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparison {
    calm: Readings,
    attacked: Readings,
    pub(super) memory_kib_after: u64,
}

impl Comparison {
    pub(super) fn new(calm: Readings, attacked: Readings) -> Self {
        Self { calm, attacked, memory_kib_after: 0 }
    }

    fn memory_kib_kept(&self) -> u64 {
        self.memory_kib_after.saturating_sub(self.calm.memory_kib_max)
    }

    fn latency_ratio(&self) -> f64 {
        self.attacked.latency_us / self.calm.latency_us
    }

    /// Which limits were exceeded.
    pub(super) fn problems(&self) -> Vec<String> {
        let Readings { cores, memory_kib_max, .. } = self.attacked;
        let mib = |kib| f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0;
        let memory = mib(memory_kib_max);
        let kept = mib(self.memory_kib_kept());
        let limits = [
            (self.attacked.root_p99_ms(), 100.0, "ms until root's ping was answered at p99"),
            (
                self.attacked.bystander_max_ms(),
                1000.0,
                "ms until another user's ping was answered, at most",
            ),
            (
                self.latency_ratio(),
                1.5,
                "times the latency (p99) of the latency-critical load without the attack",
            ),
            (cores, 0.25, "of a core used by the daemon"),
            (memory, 32.0, "MiB of memory used by the daemon"),
            (kept, KEPT_MIB_MAX, "MiB more than before are used by the daemon after the attack"),
        ];
        let exceeded = limits.iter().filter(|(value, limit, _)| value.is_nan() || value > limit);
        exceeded.map(|(value, limit, of)| format!("{value:.2} {of}; limit {limit}")).collect()
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "without": self.calm.to_json(),
            "during": self.attacked.to_json(),
            "latency_ratio": self.latency_ratio(),
            "daemon_memory_kib_after": self.memory_kib_after,
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let during = &self.attacked;
        write!(
            f,
            "root p99 {:.1} ms, other max {:.1} ms, LC {:.2}x of {:.0} us, {:.2} cores, {} KiB, \
             {} KiB after",
            during.root_p99_ms(),
            during.bystander_max_ms(),
            self.latency_ratio(),
            self.calm.latency_us,
            during.cores,
            during.memory_kib_max,
            self.memory_kib_after,
        )
    }
}

impl Readings {
    /// Measures for one window.
    pub(super) fn during(target: &Target) -> anyhow::Result<Self> {
        let daemon = target.daemon.pid();
        let window = format!("{}", WINDOW.as_millis());
        let ping = |uid| -> anyhow::Result<Process> {
            let process = target.user_process(uid, "ping", &[&window])?;
            as_hardware(process.pid())?;
            Ok(process)
        };
        // The kernel counts the most memory from here on.
        fs::write(format!("/proc/{daemon}/clear_refs"), "5").context("the daemon's clear_refs")?;
        let (begin, cpu_before) = (Instant::now(), cpu_ticks(daemon)?);
        let (root, bystander) = (ping(0)?, ping(BYSTANDER)?);
        let latency_us = target.latency_p99_us()?;
        let cpu = cpu_ticks(daemon)?.saturating_sub(cpu_before);
        let ticks = f64::from(u32::try_from(cpu).unwrap_or(u32::MAX)) / ticks_per_second();
        let cores = ticks / begin.elapsed().as_secs_f64();
        let memory_kib_max = status_kib(daemon, "VmHWM")?;
        let times = |mut process: Process| -> anyhow::Result<Vec<f64>> {
            let ended = process.wait(WINDOW + 2 * PATIENCE)?;
            serde_json::from_str(ended.out.trim()).with_context(|| format!("ping: {ended:?}"))
        };
        let (root_ms, bystander_ms) = (times(root)?, times(bystander)?);
        Ok(Self { root_ms, bystander_ms, latency_us, cores, memory_kib_max })
    }

    fn root_p99_ms(&self) -> f64 {
        percentile(&self.root_ms, 0.99)
    }

    fn bystander_max_ms(&self) -> f64 {
        percentile(&self.bystander_ms, 1.0)
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "root_ping_ms_p99": self.root_p99_ms(),
            "bystander_ping_ms_max": self.bystander_max_ms(),
            "latency_us_p99": self.latency_us,
            "daemon_cores": self.cores,
            "daemon_memory_kib_max": self.memory_kib_max,
        })
    }
}

/// Gives all threads of a process, and those that they start, a real-time priority: no attacker
/// delays it by using the processors.
pub(super) fn as_hardware(pid: u32) -> anyhow::Result<()> {
    chrt(&["--all-tasks", "--fifo", "--pid", "1", &pid.to_string()])
}

/// The same for the calling thread alone, which starts no process.
pub(super) fn this_thread_as_hardware() -> anyhow::Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    chrt(&["--fifo", "--pid", "1", &thread.to_string()])
}

/// Fails if this user may not give a process such a priority.
pub(super) fn check_priorities() -> anyhow::Result<()> {
    chrt(&["--fifo", "1", "true"])
}

fn chrt(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("chrt").args(arguments).output();
    let output = output.context("cannot run chrt(1) of util-linux")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Connects and pings again and again; how long each took, in milliseconds.
pub(super) fn pings(socket: &Path, is_over: impl Fn() -> bool) -> Vec<f64> {
    let mut times = Vec::new();
    while !is_over() {
        let begin = Instant::now();
        let is_answered = ping(socket, PATIENCE);
        let taken = if is_answered { begin.elapsed() } else { PATIENCE };
        times.push(taken.as_secs_f64() * 1e3);
        std::thread::sleep(EVERY);
    }
    times
}

/// Whether the daemon answers within that time.
pub(super) fn ping(socket: &Path, timeout: Duration) -> bool {
    let options = ClientOptions {
        paths: vec![socket.to_owned()],
        timeout,
        ..ClientOptions::new(Role::Command, "ping")
    };
    Client::connect(&options).and_then(|mut client| client.expect_ok(&Request::Ping)).is_ok()
}

/// The value that a part of all values reaches at most; infinity of none.
fn percentile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list"
    )]
    let index = (values.len() as f64 * part).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or(f64::INFINITY)
}

/// A line of `/proc/PID/status`, in KiB.
pub(super) fn status_kib(pid: u32, name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    Ok(number.context("no such line in the status of a process")?.parse()?)
}

/// User and system time of a process, in ticks of the kernel.
fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit(')').next().context("a process without a name")?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    Ok(field(11).context("user time")? + field(12).context("system time")?)
}

fn ticks_per_second() -> f64 {
    let ticks = rustix::param::clock_ticks_per_second();
    f64::from(u32::try_from(ticks).unwrap_or(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(latency_us: f64) -> Readings {
        Readings {
            root_ms: vec![1.0; 100],
            bystander_ms: vec![1.0; 100],
            latency_us,
            cores: 0.1,
            memory_kib_max: 8 << 10,
        }
    }

    fn problems(change: impl Fn(&mut Readings)) -> Vec<String> {
        let mut attacked = readings(1400.0);
        change(&mut attacked);
        Comparison::new(readings(1000.0), attacked).problems()
    }

    #[test]
    fn memory_returns_after_an_attack() {
        let mut comparison = Comparison::new(readings(1000.0), readings(1000.0));
        comparison.memory_kib_after = 12 << 10;
        assert_eq!(comparison.problems(), [""; 0]);
        comparison.memory_kib_after = (12 << 10) + 512;
        assert_eq!(
            comparison.problems(),
            ["4.50 MiB more than before are used by the daemon after the attack; limit 4"]
        );
    }

    #[test]
    fn each_limit_can_be_exceeded() {
        assert_eq!(problems(|_| ()), [""; 0]);
        assert_eq!(problems(|now| now.root_ms[0] = 900.0), [""; 0], "one in a hundred");
        for (change, expected) in [
            (
                (|now: &mut Readings| now.root_ms[..2].fill(101.0)) as fn(&mut Readings),
                "101.00 ms until root's ping was answered at p99; limit 100",
            ),
            (
                |now| now.bystander_ms[7] = 1001.0,
                "1001.00 ms until another user's ping was answered, at most; limit 1000",
            ),
            (
                |now| now.latency_us = 1600.0,
                "1.60 times the latency (p99) of the latency-critical load without the attack; \
                 limit 1.5",
            ),
            (|now| now.cores = 0.26, "0.26 of a core used by the daemon; limit 0.25"),
            (
                |now| now.memory_kib_max = 33 << 10,
                "33.00 MiB of memory used by the daemon; limit 32",
            ),
        ] {
            assert_eq!(problems(change), [expected]);
        }
    }

    #[test]
    fn what_was_not_measured_is_no_success() {
        assert_eq!(problems(|now| now.root_ms.clear()).len(), 1);
        assert_eq!(problems(|now| now.latency_us = f64::NAN).len(), 1);
    }
}
