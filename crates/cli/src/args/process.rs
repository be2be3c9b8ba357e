//! The arguments of commands about single processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use gpreempt_core::config::PolicyKind;
use gpreempt_core::latency_budget::LatencyBudget;

use super::daemon::TraitArgs;
use super::{parse_pid, within};

/// Gives running processes a priority until this command ends.
///
/// Processes with a low priority (0 to 7) are preempted in the middle of a kernel as soon as a
/// higher process on their GPU has work; several of them take turns. Processes with a high priority
/// (8 to 15) keep the GPU while they have work. When this command ends, for whatever reason, all
/// GPU settings are restored.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct AttachArgs {
    /// Processes, each with its own priority or that of -p, and a weight for --policy fair
    #[arg(required = true, value_name = "PID[:PRIORITY[:WEIGHT]]", value_parser = parse_target)]
    pub(crate) processes: Vec<Target>,
    /// The priority, 0 (lowest) to 15 (highest)
    #[arg(short, long, default_value_t = 4, value_parser = within::<u8>(0, 15))]
    pub(crate) priority: u8,
    /// How much slower the process may become in exchange for throughput of others, such as 20% (0%
    /// to 400%), with a priority of 8 or more
    #[arg(long, value_name = "PERCENT")]
    pub(crate) latency_budget: Option<LatencyBudget>,
    /// Print what would be changed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How long, such as 10s or 2m; without it, until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<Duration>,
    /// Which process runs first among the low ones, and among the high ones [default: strict]
    #[arg(long, value_parser = attach_policy())]
    pub(crate) policy: Option<PolicyKind>,
    /// Reserve this part of the time for processes that would otherwise never run, in percent (1 to
    /// 50)
    #[arg(long, value_name = "PERCENT", value_parser = within::<u64>(1, 50))]
    pub(crate) min_share: Option<u64>,
    /// Where a kernel may be preempted: between instructions (the default of CUDA), or only between
    /// blocks
    #[arg(long, value_enum)]
    pub(crate) preempt_at: Option<PreemptAt>,
    /// How often it runs among processes with equal slices (needs root)
    #[arg(long, value_enum)]
    pub(crate) interleave: Option<Interleave>,
    /// Do not hold the GPU between the kernels of high processes; they only get long time slices
    #[arg(long)]
    pub(crate) no_hold: bool,
    /// The longest time that the GPU is held without new work, in milliseconds (1 to 1000)
    /// [default: 50]
    #[arg(long, value_name = "MS", value_parser = within::<u64>(1, 1_000))]
    pub(crate) hold_max_ms: Option<u64>,
    /// Write to this file, at the end, when each hold was placed, in force and released, and which
    /// samples were late
    #[arg(long, value_name = "FILE")]
    pub(crate) hold_records: Option<PathBuf>,
    /// Print lines of JSON: what was attached, every decision with its reason, every problem
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) driver: ChangeArgs,
}

/// A process with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    pub(crate) priority: Option<u8>,
    pub(crate) weight: Option<u32>,
}

/// The policies for `attach`: all that need no deadlines, which it cannot set.
fn attach_policy() -> impl TypedValueParser<Value = PolicyKind> {
    let kinds = PolicyKind::ALL.into_iter().filter(|kind| !kind.policy().uses_deadlines());
    let values = kinds.map(|kind| PossibleValue::new(kind.name()).help(kind.description()));
    PossibleValuesParser::new(values)
        .map(|name: String| PolicyKind::from_name(&name).unwrap_or_default())
}

/// Where a kernel may be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreemptAt {
    /// Anywhere
    Instruction,
    /// When a block ends
    Block,
}

/// How often a process runs among equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interleave {
    /// As often as others
    Low,
    /// More often
    Medium,
    /// Most often
    High,
}

/// Changes the priority of a process that gpreemptd or a running `gpreempt attach` schedules.
#[derive(Clone, Debug, ClapArgs)]
#[command(group(
    ArgGroup::new("change")
        .args(["priority", "weight", "deadline", "latency_budget", "evictable", "not_evictable"])
        .required(true)
        .multiple(true)
))]
pub(crate) struct SetArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub(crate) pid: u32,
    /// The priority, 0 (lowest) to 15 (highest)
    #[arg(short, long, value_parser = within::<u8>(0, 15))]
    pub(crate) priority: Option<u8>,
    #[command(flatten)]
    pub(crate) traits: TraitArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Stops scheduling a process and restores its GPU settings; others stay attached.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DetachArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub(crate) pid: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Samples the rings of a process and estimates what a priority would gain.
///
/// Reads the rings for a while and changes nothing: how often the process submits, how long its
/// gaps are, how much work is pending, and how often it would lose the GPU to others. Estimates
/// what a high priority gains a process with gaps, or what a low one of a process that keeps the
/// GPU busy gains others.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ObserveArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub(crate) pid: u32,
    /// How long, such as 500ms or 10s (1ms to 10m)
    #[arg(long = "for", value_name = "TIME", default_value = "2s",
          value_parser = parse_observation)]
    pub(crate) time: Duration,
    /// The time between two readings, in microseconds (20 to 10000)
    #[arg(long, value_name = "US", default_value_t = 100,
          value_parser = within::<u64>(20, 10_000))]
    pub(crate) every_us: u64,
    /// Read through /proc/PID/mem instead of mapping the rings
    #[arg(long)]
    pub(crate) by_memory: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) driver: ReadArgs,
}

/// Preempts a process once; the scheduler resumes it.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PreemptArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub(crate) pid: u32,
    /// The longest time until it is off its GPUs (1ms to 1s) [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub(crate) wait: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) driver: ChangeArgs,
}

/// Suspends a process on its GPUs, in the middle of its kernels, until this command ends.
///
/// The CPU part of the process continues; its kernels are saved and resume where they stopped. The
/// process is resumed when the time is over, after Ctrl-C, and when this command is killed. A
/// suspended process keeps its GPU memory, unless --evict is given. Do not suspend one rank of a
/// collective alone: its peers wait for it and may time out.
///
/// With --everything all processes on one GPU are suspended, and those that appear later. The GPU
/// is then idle, high-priority processes included, and each process costs a call. To let one
/// process run undisturbed, give it a priority instead. The option takes a GPU out of use for a
/// moment, for a measurement or to examine a faulty machine.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SuspendArgs {
    /// The process
    #[arg(value_parser = parse_pid, required_unless_present = "everything",
          conflicts_with = "everything")]
    pub(crate) pid: Option<u32>,
    /// With --everything: the GPU, by its UUID, its PCI address, or its number in `ps`
    #[arg(long, value_name = "GPU", requires = "everything")]
    pub(crate) gpu: Option<String>,
    /// Suspend every process on a GPU
    #[arg(long, requires = "gpu")]
    pub(crate) everything: bool,
    /// Also move its GPU memory to the host meanwhile
    #[arg(long, conflicts_with = "everything")]
    pub(crate) evict: bool,
    /// How long, such as 500ms, 10s or 2m; without it, until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<Duration>,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) driver: ChangeArgs,
}

/// Resumes suspended processes.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ResumeArgs {
    /// The process
    #[arg(required_unless_present = "all", conflicts_with = "all", value_parser = parse_pid)]
    pub(crate) pid: Option<u32>,
    /// Undo every change of gpreempt to any process, of all commands and users
    #[arg(long)]
    pub(crate) all: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The devices and drivers that a private session may control.
#[derive(Clone, Debug, Default, PartialEq, Eq, ClapArgs)]
pub(crate) struct ChangeArgs {
    /// Without gpreemptd: also control the emulated GPUs of the emulator that listens there
    /// [default: $GPREEMPT_EMULATED, with colons between several]
    #[arg(long, value_name = "SOCKET")]
    pub(crate) emulated: Vec<PathBuf>,
    /// Change settings although this driver branch was never tested with gpreempt
    #[arg(long)]
    pub(crate) allow_untested_driver: bool,
}

/// The drivers that may be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ClapArgs)]
pub(crate) struct ReadArgs {
    /// Read although the driver is unknown; the output may be wrong
    #[arg(long)]
    pub(crate) force: bool,
}

/// Reads PID, PID:PRIORITY or PID:PRIORITY:WEIGHT.
fn parse_target(text: &str) -> Result<Target, String> {
    let mut parts = text.split(':');
    let pid = parts.next().unwrap_or_default();
    let pid = pid.parse().map_err(|_| format!("`{pid}` is not a pid"))?;
    let priority = parts.next().map(|level| {
        let level: Option<u8> = level.parse().ok().filter(|level| *level <= 15);
        level.ok_or_else(|| "a priority is a number from 0 to 15".to_owned())
    });
    let weight = parts.next().map(|weight| {
        let weight: Option<u32> = weight.parse().ok().filter(|weight| (1..=1000).contains(weight));
        weight.ok_or_else(|| "a weight is a number from 1 to 1000".to_owned())
    });
    if parts.next().is_some() {
        return Err("write PID, PID:PRIORITY or PID:PRIORITY:WEIGHT".to_owned());
    }
    Ok(Target { pid, priority: priority.transpose()?, weight: weight.transpose()? })
}

/// Reads a time of at most 1 s, the longest wait of the driver.
fn parse_wait(text: &str) -> Result<Duration, String> {
    let time = parse_time(text).ok().filter(|time| *time <= Duration::from_secs(1));
    time.ok_or_else(|| {
        "write a time from 1ms to 1s, such as 50ms; the driver waits no longer".into()
    })
}

/// Reads a time of at most 10 minutes.
fn parse_observation(text: &str) -> Result<Duration, String> {
    let time = parse_time(text).ok().filter(|time| *time <= Duration::from_secs(600));
    time.ok_or_else(|| "write a time from 1ms to 10m, such as 500ms or 10s".into())
}

/// Reads a whole number with a unit.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000)];
    units
        .into_iter()
        .find_map(|(unit, ms)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(ms))
        .filter(|ms| (1..=86_400_000).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(|| "write a time from 1ms to 1440m, such as 500ms, 10s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let ms = |text| parse_time(text).ok().map(|time| time.as_millis());
        assert_eq!([ms("500ms"), ms("10s"), ms("2m")], [Some(500), Some(10_000), Some(120_000)]);
        for text in ["10", "s", "-1s", "0s", "9999999m", "1.5s", "99999999999999999999s"] {
            assert_eq!(ms(text), None, "{text}");
        }
    }

    #[test]
    fn each_time_has_its_own_range() {
        assert_eq!(parse_wait("1s"), Ok(Duration::from_secs(1)));
        assert!(parse_wait("1001ms").unwrap_err().contains("from 1ms to 1s"));
        assert!(parse_wait("soon").unwrap_err().contains("from 1ms to 1s"));
        assert_eq!(parse_observation("10m"), Ok(Duration::from_secs(600)));
        assert!(parse_observation("11m").unwrap_err().contains("from 1ms to 10m"));
    }

    #[test]
    fn targets_may_have_their_own_priority() {
        let target = |priority, weight| Ok(Target { pid: 42, priority, weight });
        assert_eq!(parse_target("42"), target(None, None));
        assert_eq!(parse_target("42:12"), target(Some(12), None));
        assert_eq!(parse_target("42:12:7"), target(Some(12), Some(7)));
        for text in ["", "x", "42:16", "42:", ":3", "-1", "42:3:0", "42:3:4:5", "42::4"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }
}
