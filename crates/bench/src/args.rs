//! What can be typed.

mod leash;
mod peer;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::kernels::Registers;

pub(crate) use leash::{End, LeashArgs};
pub(crate) use peer::{KeeperArgs, Peer, PeerArgs, PeerCommand, SlicesArgs};

/// Loads for real GPUs: best-effort work without end, and requests whose latency is measured.
#[derive(Debug, Parser)]
#[command(name = "gpreempt-load", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Be(BeArgs),
    Lc(LcArgs),
    Devices(DevicesArgs),
    Peer(PeerArgs),
    #[command(hide = true)]
    Keeper(KeeperArgs),
    #[command(hide = true)]
    Leash(LeashArgs),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder; it must exist
        folder: PathBuf,
    },
}

/// What all loads have in common.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    /// How long to run (1 to 600)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// The number of the device
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) device: i32,
    /// Begin only when this file exists (waits at most 120 s, after the ready line)
    #[arg(long, value_name = "PATH")]
    pub(crate) wait_file: Option<PathBuf>,
    /// Stay for several measurements: after the ready line, orders come on stdin, a line of JSON
    /// each, and files are written anew in every round (see the module `round` of the library)
    #[arg(long, requires = "json", conflicts_with_all = ["seconds", "wait_file"])]
    pub(crate) rounds: bool,
    /// What a thread does, instead of measuring how much makes the wished length: a ready line
    /// says what an earlier run found (for spin: nanoseconds)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Best effort: kernels back to back, with the rate in every interval.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BeArgs {
    /// How long a kernel runs when nothing disturbs it
    #[arg(long, value_name = "US", default_value_t = 8_000,
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) kernel_us: u64,
    /// One kernel that ends when the load ends; counts rounds of --block-us (default 1000)
    #[arg(long, conflicts_with = "kernel_us")]
    pub(crate) endless: bool,
    /// How long one block runs; a kernel then has enough blocks to last --kernel-us.
    /// Default: as long as the kernel
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) block_us: Option<u64>,
    /// Kernels in flight
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) depth: u16,
    /// How many registers are in use
    #[arg(long, value_enum, default_value = "few")]
    pub(crate) registers: Registers,
    /// Shared memory of each block
    #[arg(long, value_name = "KIB", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) shared_kib: u32,
    /// What runs
    #[arg(long, value_enum, default_value = "fma")]
    pub(crate) kind: Kind,
    /// The size of one copy of --kind copy
    #[arg(long, value_name = "KIB", default_value_t = 16_384,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) copy_kib: u32,
    /// So many kernels as one CUDA graph, which then counts as one piece of work
    #[arg(long, value_name = "N", conflicts_with_all = ["endless", "peer", "cooperative"],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) graph: Option<u16>,
    /// Launch kernels as cooperative ones: all blocks run at the same time
    #[arg(long, conflicts_with_all = ["peer", "block_us"])]
    pub(crate) cooperative: bool,
    /// Write when the kernels stood still for more than 20 us, as one of their threads saw it by
    /// the clock of the device (CSV: off, back; CLOCK_MONOTONIC ns)
    #[arg(long, value_name = "FILE", conflicts_with = "peer")]
    pub(crate) beats: Option<PathBuf>,
    /// How often to print the rate
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) report_ms: u64,
    /// Be preempted as a published design does it: when somebody announces a request in --watch,
    /// kernels that have not begun leave at once and are submitted again later. See --depth
    #[arg(long, value_enum, requires = "watch",
          conflicts_with_all = ["kind", "endless", "copy_kib", "rounds"])]
    pub(crate) peer: Option<Peer>,
    /// The file in which `lc --announce` says that a request is running; made if missing
    #[arg(long, value_name = "PATH", requires = "peer")]
    pub(crate) watch: Option<PathBuf>,
    /// Take kernels that were not fetched yet out of the ring as well. Not beside anybody who
    /// suspends this process: it would run again
    #[arg(long, requires = "peer")]
    pub(crate) clear_ring: bool,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// What best-effort work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Arithmetic on registers: the same work however often it is interrupted
    Fma,
    /// Arithmetic, and increments that must happen exactly once; checked at the end
    Counter,
    /// Waiting by the device's clock: exact lengths, but the clock goes on while a kernel is
    /// preempted, so a preempted kernel does less than one that is left alone
    Spin,
    /// Copies from the host to the device instead of kernels
    Copy,
}

/// Latency critical: requests on a schedule that does not wait for anybody.
///
/// A request's latency counts from the time it was due, even when the one before it was late;
/// its service time counts from when it began. Requests that were due but could not begin before
/// the end count with the time they had waited by then.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LcArgs {
    /// Kernels (or copies) in a request
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) kernels: u16,
    /// How long a kernel runs when nothing disturbs it
    #[arg(long, value_name = "US", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) kernel_us: u64,
    /// Time on the processor after each kernel
    #[arg(long, value_name = "US", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) gap_us: u64,
    /// A request every so often
    #[arg(long, value_name = "US", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(10..=60_000_000))]
    pub(crate) every_us: u64,
    /// The first of them is due so long after the beginning
    #[arg(long, value_name = "US", default_value_t = 0,
          conflicts_with_all = ["poisson_us", "trace"],
          value_parser = clap::value_parser!(u64).range(0..=60_000_000))]
    pub(crate) phase_us: u64,
    /// Independent requests, this far apart on average
    #[arg(long, value_name = "US", conflicts_with = "every_us",
          value_parser = clap::value_parser!(u64).range(10..=60_000_000))]
    pub(crate) poisson_us: Option<u64>,
    /// Requests at the times in this file: a line for each, in nanoseconds from the beginning
    #[arg(long, value_name = "FILE", conflicts_with_all = ["every_us", "poisson_us"])]
    pub(crate) trace: Option<PathBuf>,
    /// Decides when --poisson-us requests arrive
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// All kernels of a request as one CUDA graph, without gaps
    #[arg(long)]
    pub(crate) graph: bool,
    /// Kernels go to so many streams in turn
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "graph",
          value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) streams: u8,
    /// Give gpreemptd a hint this long before each request is due
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(crate) hint_us: Option<u64>,
    /// Copies of this size from the host to the device instead of kernels
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) copy_kib: Option<u32>,
    /// Requests of the first moments run but do not count
    #[arg(long, value_name = "MS", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub(crate) warmup_ms: u64,
    /// Write due, begin and end of every request that counts (CSV, CLOCK_MONOTONIC ns); the last
    /// column is 0 for one that could not begin before the end
    #[arg(long, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
    /// Write when the first and the last instruction of every request ran, by the clock of the
    /// device (CSV: begin, first, last; CLOCK_MONOTONIC ns)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["graph", "copy_kib"])]
    pub(crate) probe: Option<PathBuf>,
    /// Say in this file that a request is running, for `be --watch`; made if missing, best in
    /// /dev/shm, one load for each file
    #[arg(long, value_name = "PATH")]
    pub(crate) announce: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// The devices that libcuda sees.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
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
            "gpreempt-load",
            "gpreempt-load be --seconds 0",
            "gpreempt-load be --seconds 601",
            "gpreempt-load be --endless --kernel-us 5",
            "gpreempt-load be --depth 0",
            "gpreempt-load be --kind dance",
            "gpreempt-load be --iterations 0",
            "gpreempt-load lc --every-us 1000 --poisson-us 1000",
            "gpreempt-load lc --kernels 0",
            "gpreempt-load lc --announce",
            "gpreempt-load be --peer reset",
            "gpreempt-load be --watch flag",
            "gpreempt-load be --clear-ring",
            "gpreempt-load be --peer dance --watch flag",
            "gpreempt-load be --peer reset --watch flag --kind counter",
            "gpreempt-load be --peer reset --watch flag --endless",
            "gpreempt-load be --graph 0",
            "gpreempt-load be --graph 3 --cooperative",
            "gpreempt-load lc --trace a --poisson-us 1000",
            "gpreempt-load lc --probe a --graph",
            "gpreempt-load lc --phase-us 5 --poisson-us 1000",
            "gpreempt-load lc --rounds",
            "gpreempt-load lc --rounds --json --seconds 5",
            "gpreempt-load be --rounds --json --peer reset --watch flag",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn every_option_is_understood() {
        for line in [
            "gpreempt-load devices --json",
            "gpreempt-load be --endless --block-us 100 --registers full --shared-kib 64",
            "gpreempt-load be --kernel-us 10 --kind counter --depth 16 --report-ms 100 --json",
            "gpreempt-load be --iterations 5000 --device 1 --wait-file go --seconds 600",
            "gpreempt-load lc --poisson-us 5000 --seed 3 --graph --warmup-ms 0 --raw a.csv",
            "gpreempt-load lc --copy-kib 64 --kernels 1 --gap-us 0 --every-us 5000",
            "gpreempt-load lc --announce /dev/shm/flag",
            "gpreempt-load lc --trace times --probe moments.csv",
            "gpreempt-load lc --rounds --json --every-us 50000 --phase-us 3000 --hint-us 350",
            "gpreempt-load be --rounds --json --endless",
            "gpreempt-load be --graph 8 --beats beats.csv",
            "gpreempt-load be --endless --beats beats.csv --cooperative",
            "gpreempt-load be --peer reset --watch /dev/shm/flag --depth 4 --kernel-us 100",
            "gpreempt-load be --peer reset --watch flag --clear-ring --registers full --json",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
