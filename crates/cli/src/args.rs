//! The arguments of all commands. Doc comments of commands and fields are their `--help` texts.

mod bench;
mod daemon;
mod memory;
mod process;
#[cfg(test)]
mod reference;

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand};
use gpreempt_wire::statistics::TaskSnapshot;

use crate::output::column_help;

pub(crate) use bench::{
    BenchArgs, BenchBackend, BenchCommand, BenchCompareArgs, BenchListArgs, BenchPredictArgs,
    BenchReportArgs,
};
pub(crate) use daemon::{
    CompletionsArgs, EventsArgs, PingArgs, PolicyArgs, RunArgs, Shell, TopArgs, TraceArgs,
    TraitArgs,
};
pub(crate) use memory::{EvictArgs, MemorySize, RestoreArgs};
pub(crate) use process::{
    AttachArgs, ChangeArgs, DetachArgs, Interleave, ObserveArgs, PreemptArgs, PreemptAt, ReadArgs,
    ResumeArgs, SetArgs, SuspendArgs,
};

/// The conventions of all commands.
const CONVENTIONS: &str = "\
Exit codes: 0 success, 1 the command failed while it ran, 2 the input was wrong and nothing was
changed. Errors are one line on stderr; with --json they are {\"error\": \"...\"} there.";

/// Preemptive scheduling for GPUs: high-priority work runs immediately. Everything else is
/// suspended mid-kernel and resumes where it stopped.
#[derive(Debug, Parser)]
#[command(name = "gpreempt", version = env!("GPREEMPT_VERSION"))]
#[command(disable_help_subcommand = true, after_help = CONVENTIONS)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Sim(SimArgs),
    Compare(CompareArgs),
    Bench(BenchArgs),
    Doctor(DoctorArgs),
    Run(RunArgs),
    Ps(PsArgs),
    Top(TopArgs),
    Observe(ObserveArgs),
    Attach(AttachArgs),
    Set(SetArgs),
    Detach(DetachArgs),
    Suspend(SuspendArgs),
    Resume(ResumeArgs),
    Evict(EvictArgs),
    Restore(RestoreArgs),
    Preempt(PreemptArgs),
    Ping(PingArgs),
    Policy(PolicyArgs),
    Events(EventsArgs),
    Trace(TraceArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Keeper(KeeperArgs),
}

/// Compares inference beside training on the emulated GPU, with and without gpreempt.
///
/// Runs the same two programs alone, together with the scheduling of the driver (default), with
/// the published reset design (reset), and with this scheduler (ours). Writes report.html with a
/// time line and a latency distribution. Needs no GPU.
///
/// With --live: starts an emulated GPU in real time, an offline and an online program and gpreemptd
/// in a temporary folder, and prints the latency of the online program alone, beside the offline
/// one without gpreempt, and with it. Needs no rights; ends everything that it started.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// The emulated device: h200, mi300x, or a device file
    #[arg(long, default_value = "h200")]
    pub(crate) device: String,
    /// Run real processes on an emulated GPU in real time instead of the simulator
    #[arg(long, conflicts_with_all = ["seed", "out"])]
    pub(crate) live: bool,
    /// Simulated seconds in each mode; with --live real ones (1 to 60)
    #[arg(long, default_value_t = 10, value_parser = within::<u64>(1, 60))]
    pub(crate) seconds: u64,
    /// The seed of the simulation (this workload has no random parts)
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
/// With a FILE: simulates it and prints the results of every task. With --seeds N: N random
/// scenarios with random faults, every invariant checked after every step; stops at the first
/// violation and prints the command that replays it. With --seed alone: replays one of those.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SimArgs {
    /// The scenario (TOML; the format is described in docs/internals/scenarios.md)
    #[arg(value_name = "FILE", conflicts_with = "seeds")]
    pub(crate) file: Option<PathBuf>,
    /// The seed: of the file's scenario, or of a random one
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// How many random scenarios to check
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "trace"],
          value_parser = within::<u64>(1, 1_000_000_000))]
    pub(crate) seeds: Option<u64>,
    /// The first seed of --seeds
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "seeds")]
    pub(crate) start: u64,
    /// Random scenarios have memory that does not fit together
    #[arg(long, conflicts_with = "file")]
    pub(crate) with_memory: bool,
    /// Write a time line in Chrome trace format (open it in Perfetto)
    #[arg(long, value_name = "OUT.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reproduce the tables and time lines of the papers: 100 kernels, preempted at the 25th.
///
/// For a device that cannot preempt (none), the published reset design (reset), time slices (tsg)
/// and wave save and restore (cwsr): how long the online request waits for detection and
/// preemption, what resuming costs with 10 to 10,000 kernels pending, what runs twice, and a time
/// line of each.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct CompareArgs {
    /// How often the scheduler reads the rings, in microseconds (1000 to 10000)
    #[arg(long, default_value_t = 5_000,
          value_parser = within::<u64>(1_000, 10_000))]
    pub(crate) interval_us: u64,
    /// Also write a page with the tables and a picture of every time line
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reports what gpreempt can do on this machine, what is missing and why, and what to do about it.
///
/// The GPUs and their drivers, memory, MPS and MIG; the service with its socket, configuration and
/// keeper; the rights of this user; and the processes on the GPUs that have no priority. Exit code
/// 1 if no GPU can be controlled.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the processes that use GPUs, with their scheduling where gpreemptd is running.
///
/// A process has the name of its program and of the script that an interpreter runs, and the column
/// `why` says where its priority comes from. Weights are shown under the policy `fair`, deadlines
/// under `edf`.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_long_help = column_help(TaskSnapshot::STATISTICS, |statistic| statistic.ps))]
pub(crate) struct PsArgs {
    /// Show whole command lines, of your own processes and for root of all. They may contain
    /// secrets, so other users do not see them
    #[arg(long, conflicts_with = "hardware")]
    pub(crate) arguments: bool,
    /// List what the drivers report, whether a service runs or not: groups, channels, time slices
    /// and context switches
    #[arg(long)]
    pub(crate) hardware: bool,
    /// Also list processes that have no queues or are not scheduled
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) driver: ReadArgs,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Undoes every recorded change when the process that made it dies.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct KeeperArgs {
    /// The folder of the session
    pub(crate) folder: PathBuf,
    /// The memory with which holds are released
    pub(crate) holds: Option<PathBuf>,
}

/// Write the manual pages into a folder.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ManArgs {
    /// The folder; it must exist
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Reads a number from `least` to `most`.
fn within<T>(
    least: T,
    most: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

/// Reads a pid.
fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "must be the number of a process, such as 4242".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for line in [
            "gpreempt",
            "gpreempt dance",
            "gpreempt sim --seeds 0",
            "gpreempt sim a.toml --seeds 3",
            "gpreempt sim --start 3",
            "gpreempt compare --interval-us 999",
            "gpreempt demo --seconds 61",
            "gpreempt demo --live --out page.html",
            "gpreempt run -p 3",
            "gpreempt run -- true",
            "gpreempt run true -p 3",
            "gpreempt run -p 16 -- true",
            "gpreempt run -p 3 --weight 0 -- true",
            "gpreempt set 1",
            "gpreempt set 1 --latency-budget 401%",
            "gpreempt run -p 12 --latency-budget x -- true",
            "gpreempt attach 1 --latency-budget -1%",
            "gpreempt top --every 5ms",
            "gpreempt run -p 3 --gpu 0 -- true",
            "gpreempt set 1 --evictable --not-evictable",
            "gpreempt suspend --gpu 0 --everything --evict",
            "gpreempt completions tcsh",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn errors_name_the_range() {
        let priority = within::<u8>(0, 15);
        assert_eq!((priority("0"), priority("15")), (Ok(0), Ok(15)));
        for text in ["16", "-1", "high", "", "1.5", "300"] {
            let error = priority(text).unwrap_err();
            assert_eq!(error, "must be a whole number from 0 to 15", "{text}");
        }
        assert_eq!(parse_pid("7"), Ok(7));
        assert!(parse_pid("seven").unwrap_err().contains("4242"));
    }
}
