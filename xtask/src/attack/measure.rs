//! What is measured while an attack runs, and the limits that it is held to.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::{Request, Role};

use super::{BYSTANDER, Target, WINDOW};

/// How often a request is sent to see how long its answer takes.
const EVERY: Duration = Duration::from_millis(20);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was measured during one attack.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    /// From connect to the answer to `Ping`, for root.
    pub(super) root_ms: Vec<f64>,
    /// The same for a user that does not attack.
    pub(super) bystander_ms: Vec<f64>,
    /// p99 of the latency-critical load before and during the attack.
    pub(super) calm_us: f64,
    pub(super) attacked_us: f64,
    /// Processor time of the daemon, as a part of one core.
    pub(super) cores: f64,
    pub(super) memory_kib_max: u64,
    pub(super) memory_kib_after: u64,
}

impl Readings {
    /// Which limits were exceeded.
    pub(super) fn problems(&self) -> Vec<String> {
        let root = percentile(&self.root_ms, 0.99);
        let bystander = percentile(&self.bystander_ms, 1.0);
        let ratio = self.attacked_us / self.calm_us;
        let memory = f64::from(u32::try_from(self.memory_kib_max).unwrap_or(u32::MAX)) / 1024.0;
        let limits = [
            (root, 100.0, "ms until root's ping was answered at p99"),
            (bystander, 1000.0, "ms until another user's ping was answered, at most"),
            (ratio, 1.5, "times the latency (p99) of the latency-critical load without the attack"),
            (self.cores, 0.25, "of a core used by the daemon"),
            (memory, 32.0, "MiB of memory used by the daemon"),
        ];
        let exceeded = limits.iter().filter(|(value, limit, _)| value > limit);
        exceeded.map(|(value, limit, of)| format!("{value:.2} {of}; limit {limit}")).collect()
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "root_ping_ms_p99": percentile(&self.root_ms, 0.99),
            "bystander_ping_ms_max": percentile(&self.bystander_ms, 1.0),
            "latency_us_p99_before": self.calm_us,
            "latency_us_p99": self.attacked_us,
            "daemon_cores": self.cores,
            "daemon_memory_kib_max": self.memory_kib_max,
            "daemon_memory_kib_after": self.memory_kib_after,
        })
    }
}

impl fmt::Display for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (root, user) = (percentile(&self.root_ms, 0.99), percentile(&self.bystander_ms, 1.0));
        let ratio = self.attacked_us / self.calm_us;
        let (max, after) = (self.memory_kib_max, self.memory_kib_after);
        write!(
            f,
            "root p99 {root:.1} ms, other max {user:.1} ms, LC {ratio:.2}x, {:.2} cores, \
             {max} KiB, {after} KiB after",
            self.cores
        )
    }
}

/// Measures for one window.
pub(super) fn during(target: &Target, calm_us: f64) -> anyhow::Result<Readings> {
    let daemon = target.daemon.pid();
    let socket = target.daemon.socket();
    let window = format!("{}", WINDOW.as_millis());
    let mut bystander = target.user_process(BYSTANDER, "ping", &[&window])?;
    let (begin, cpu_before) = (Instant::now(), cpu_ticks(daemon)?);
    let is_over = AtomicBool::new(false);
    // ORDERING: the flag alone is read; threads are joined before anything else is.
    let (attacked, root_ms, memory_kib_max) = std::thread::scope(|scope| {
        let pings = scope.spawn(|| pings(&socket, || is_over.load(Ordering::Relaxed)));
        let memory = scope.spawn(|| {
            let mut max = 0;
            while !is_over.load(Ordering::Relaxed) {
                max = max.max(status_kib(daemon, "VmRSS").unwrap_or_default());
                std::thread::sleep(EVERY);
            }
            max
        });
        let attacked = target.latency_p99_us();
        is_over.store(true, Ordering::Relaxed);
        (attacked, pings.join().unwrap_or_default(), memory.join().unwrap_or_default())
    });
    let cpu = cpu_ticks(daemon)?.saturating_sub(cpu_before);
    let ticks = f64::from(u32::try_from(cpu).unwrap_or(u32::MAX)) / ticks_per_second();
    let ended = bystander.wait(WINDOW + PATIENCE)?;
    let bystander_ms: Vec<f64> =
        serde_json::from_str(ended.out.trim()).with_context(|| format!("ping: {ended:?}"))?;
    Ok(Readings {
        root_ms,
        bystander_ms,
        calm_us,
        attacked_us: attacked?,
        cores: ticks / begin.elapsed().as_secs_f64(),
        memory_kib_max,
        memory_kib_after: 0,
    })
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
