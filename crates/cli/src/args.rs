//! What can be typed.

mod bench;
mod daemon;
mod number;
mod process;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

pub(crate) use bench::{
    BenchArgs, BenchBackend, BenchCommand, BenchCompareArgs, BenchListArgs, BenchPredictArgs,
    BenchReportArgs,
};
pub(crate) use daemon::{
    CompletionsArgs, EventsArgs, PolicyArgs, RunArgs, Shell, TopArgs, TraceArgs,
};
use number::within;
pub(crate) use process::{
    AttachArgs, ChangeArgs, DetachArgs, Interleave, ObserveArgs, PreemptArgs, PreemptAt, ReadArgs,
    ResumeArgs, SetArgs, SuspendArgs,
};

/// What all commands have in common.
const CONVENTIONS: &str = "\
Exit codes: 0 all is well, 1 something that was run failed, 2 the input was wrong and nothing was
done. Errors are one line on stderr; with --json they are {\"error\": \"...\"} there.";

/// Priorities for GPU work that the hardware obeys: the important work runs now, the rest runs in
/// the gaps and loses nothing.
#[derive(Debug, Parser)]
#[command(name = "gpreempt", version, disable_help_subcommand = true, after_help = CONVENTIONS)]
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
    Preempt(PreemptArgs),
    Policy(PolicyArgs),
    Events(EventsArgs),
    Trace(TraceArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
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
    #[arg(long, default_value_t = 10, value_parser = within::<u64>(1, 60))]
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
          value_parser = within::<u64>(1, 1_000_000_000))]
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

/// Reproduce the tables and time lines of the papers: 100 kernels, preempted at the 25th.
///
/// For a device that cannot preempt (none), the published reset design (reset), time slices (tsg)
/// and wave save and restore (cwsr): how long the online request waits for detection and
/// preemption, what resuming costs with 10 to 10,000 kernels pending, what runs twice, and what
/// happens when.
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

/// What this machine can do, device by device, and what is missing and why.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who uses the GPUs, and how they are scheduled where gpreemptd is running.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PsArgs {
    /// Show what the devices themselves tell, whichever service runs: groups, channels, time
    /// slices and context switches.
    #[arg(long)]
    pub(crate) hardware: bool,
    /// Also processes that have nothing on a GPU or are left alone
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) driver: ReadArgs,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The part of the program that undoes everything when the rest of it dies.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct KeeperArgs {
    /// The session's folder
    pub(crate) folder: PathBuf,
    /// The memory with which holds are ended
    pub(crate) holds: Option<PathBuf>,
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
    fn nonsense_is_refused() {
        for line in [
            "gpreempt",
            "gpreempt dance",
            "gpreempt sim --seeds 0",
            "gpreempt sim a.toml --seeds 3",
            "gpreempt sim --start 3",
            "gpreempt compare --interval-us 999",
            "gpreempt demo --seconds 61",
            "gpreempt run -p 3",
            "gpreempt run -- true",
            "gpreempt run -p 16 -- true",
            "gpreempt run -p 3 --weight 0 -- true",
            "gpreempt set 1",
            "gpreempt top --every 5ms",
            "gpreempt completions tcsh",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
