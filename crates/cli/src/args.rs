//! What can be typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

/// Priorities for GPU work that the hardware obeys: the important work runs now, the rest runs in
/// the gaps and loses nothing.
#[derive(Debug, Parser)]
#[command(name = "gpreempt", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Sim(SimArgs),
    Compare(CompareArgs),
    Doctor(DoctorArgs),
    Ps(PsArgs),
    Attach(AttachArgs),
    Suspend(SuspendArgs),
    Resume(ResumeArgs),
    Man(ManArgs),
    #[command(hide = true)]
    Keeper(KeeperArgs),
}

/// Online inference beside offline training on the emulated GPU: before and after, with a picture.
///
/// Runs the same two programs alone, together as the driver does it by itself (none), with the
/// published reset design (reset), and with this scheduler (ours). Writes report.html with a time
/// line and a latency distribution. Needs no GPU.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// The emulated device: h200, mi300x, or a device file
    #[arg(long, default_value = "h200")]
    pub(crate) device: String,
    /// Simulated seconds in each mode (1 to 60)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) seconds: u64,
    /// The seed of the simulation (this workload leaves nothing to chance, so nothing changes)
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where to write the report
    #[arg(long, default_value = "report.html")]
    pub(crate) out: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Simulate a scenario file, or random scenarios with faults.
///
/// With a FILE: simulates it and prints what every task got. With --seeds N: N random scenarios
/// with random faults, every promise checked after every step; stops at the first violation and
/// prints the command that replays it. With --seed alone: replays one of those.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SimArgs {
    /// The scenario (TOML; the format is described in docs/scenarios.md)
    #[arg(value_name = "FILE", conflicts_with = "seeds")]
    pub(crate) file: Option<PathBuf>,
    /// The seed: of the file's scenario, or of a random one
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// How many random scenarios to check
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "trace"],
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) seeds: Option<u64>,
    /// The first seed of --seeds
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "seeds")]
    pub(crate) start: u64,
    /// Write a time line in Chrome trace format (open it in Perfetto)
    #[arg(long, value_name = "OUT.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reproduce the tables of the papers: 100 kernels, preempted at the 25th.
///
/// For a device that cannot preempt (none), the published reset design (reset), time slices (tsg)
/// and wave save and restore (cwsr): how long the online request waits for detection and
/// preemption, what resuming costs with 10 to 10,000 kernels pending, what runs twice.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct CompareArgs {
    /// How often the scheduler reads the rings, in microseconds (1000 to 10000)
    #[arg(long, default_value_t = 5_000,
          value_parser = clap::value_parser!(u64).range(1_000..=10_000))]
    pub(crate) interval_us: u64,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What this machine can do, device by device, and what is missing and why.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who uses the GPUs.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PsArgs {
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Give running processes a priority, until this command ends.
///
/// Low priorities (0 to 7) make way for everybody else on their GPU as soon as there is something
/// else to run, in the middle of a kernel; several of them take turns. High priorities (8 to 15)
/// keep the GPU once they have it. When this command ends, however it ends, all is as it was.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct AttachArgs {
    /// Processes, each with a priority of its own (PID:PRIORITY) or that of -p
    #[arg(required = true, value_name = "PID[:PRIORITY]", value_parser = parse_target)]
    pub(crate) processes: Vec<(u32, Option<u8>)>,
    /// The priority, 0 (lowest) to 15 (highest)
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub(crate) priority: u8,
    /// Say what would be changed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// For how long, such as 10s or 2m; without it, until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<std::time::Duration>,
}

/// Take a process off its GPUs, in the middle of its kernels, until this command ends.
///
/// The process itself goes on; its GPU work waits and loses nothing. It runs again when the time is
/// up, when this command is stopped with Ctrl-C, and when it is killed in any other way. A stopped
/// process keeps its GPU memory. Do not stop one rank of a collective alone: its peers wait for it
/// and may give up.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SuspendArgs {
    /// The process
    pub(crate) pid: u32,
    /// For how long, such as 500ms, 10s or 2m; without it, until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<std::time::Duration>,
}

/// Let suspended processes run again.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ResumeArgs {
    /// The process
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) pid: Option<u32>,
    /// Undo everything gpreempt has done to any process, whoever asked for it
    #[arg(long)]
    pub(crate) all: bool,
}

/// The part of the program that undoes everything when the rest of it dies.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct KeeperArgs {
    /// The session's folder
    pub(crate) folder: PathBuf,
}

/// A process, and maybe its priority.
fn parse_target(text: &str) -> Result<(u32, Option<u8>), String> {
    let (pid, priority) = match text.split_once(':') {
        Some((pid, priority)) => (pid, Some(priority)),
        None => (text, None),
    };
    let pid = pid.parse().map_err(|_| format!("`{pid}` is no process number"))?;
    let priority = priority
        .map(|level| {
            let level: Option<u8> = level.parse().ok().filter(|level| *level <= 15);
            level.ok_or_else(|| "a priority is a number from 0 to 15".to_owned())
        })
        .transpose()?;
    Ok((pid, priority))
}

/// A whole number with a unit.
fn parse_time(text: &str) -> Result<std::time::Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000)];
    units
        .into_iter()
        .find_map(|(unit, ms)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(ms))
        .filter(|ms| (1..=86_400_000).contains(ms))
        .map(std::time::Duration::from_millis)
        .ok_or_else(|| "write a time from 1ms to 1440m, such as 500ms, 10s or 2m".to_owned())
}

/// Write the manual pages into a folder.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ManArgs {
    /// The folder; it must exist
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_make_sense() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        let ms = |text| parse_time(text).ok().map(|time| time.as_millis());
        assert_eq!([ms("500ms"), ms("10s"), ms("2m")], [Some(500), Some(10_000), Some(120_000)]);
        for text in ["10", "s", "-1s", "0s", "9999999m", "1.5s", "99999999999999999999s"] {
            assert_eq!(ms(text), None, "{text}");
        }
    }

    #[test]
    fn targets_may_have_a_priority_of_their_own() {
        assert_eq!(parse_target("42"), Ok((42, None)));
        assert_eq!(parse_target("42:12"), Ok((42, Some(12))));
        for text in ["", "x", "42:16", "42:", ":3", "-1", "42:3:4"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "gpreempt",
            "gpreempt dance",
            "gpreempt sim --seeds 0",
            "gpreempt sim a.toml --seeds 3",
            "gpreempt sim --start 3",
            "gpreempt compare --interval-us 999",
            "gpreempt demo --seconds 61",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
