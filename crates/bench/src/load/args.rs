//! The command line of `gpreempt-load`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use gpreempt_wire::memory_size::parse_bytes;
use serde::Serialize;

use crate::kernels::Registers;

/// Loads for GPUs: best-effort kernels, and requests whose latency is measured.
///
/// Loads run on a CUDA device, or on an emulated GPU with --socket or --kfd.
#[derive(Debug, Parser)]
#[command(name = "gpreempt-load", version = env!("GPREEMPT_VERSION"))]
#[command(disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Be(BeArgs),
    Lc(LcArgs),
    Light(LightArgs),
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

/// Options of all loads.
#[derive(Clone, Debug, ClapArgs)]
#[command(group(ArgGroup::new("emulated").args(["socket", "kfd"])))]
pub(crate) struct LoadArgs {
    /// Run on the emulated GPU whose socket this is (gpreempt-emu --socket)
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Run on the emulated GPU through the emulated KFD in this folder (gpreempt-emu --kfd)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) kfd: Option<PathBuf>,
    /// Emulated GPU: work-groups of a kernel, each one wave; more cost the emulator more
    #[arg(long, value_name = "N", default_value_t = 4, requires = "emulated",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) groups: u32,
    /// Allocate so much memory of the device, besides what the kernels use; whether its contents
    /// stayed exact is in the last line
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "kfd")]
    pub(crate) memory: Option<u64>,
    /// How long to run (1 to 86400)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// The number of the device
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) device: i32,
    /// Begin only when this file exists (on a CUDA device: within 120 s of the ready line)
    #[arg(long, value_name = "PATH")]
    pub(crate) wait_file: Option<PathBuf>,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl LoadArgs {
    /// The socket or the KFD folder of the emulated GPU; none for a CUDA device.
    pub(crate) fn emulated(&self) -> Option<&Path> {
        self.kfd.as_deref().or(self.socket.as_deref())
    }
}

/// Options of loads on a CUDA device.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct CudaArgs {
    /// Run several measurements: after the ready line, read orders from stdin, a line of JSON
    /// each, and write files anew in every round (see the module `round` of the library)
    #[arg(long, requires = "json", conflicts_with_all = ["emulated", "seconds", "wait_file"])]
    pub(crate) rounds: bool,
    /// Iterations of a thread, instead of measuring how many make the kernel as long as asked:
    /// the ready line of an earlier run has the number (for spin: nanoseconds)
    #[arg(long, value_name = "N", conflicts_with = "emulated",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
}

/// Best effort: kernels back to back, with the rate in every interval.
#[derive(Clone, Debug, ClapArgs)]
#[command(group(ArgGroup::new("cuda").multiple(true).conflicts_with("emulated").args([
    "endless", "block_us", "registers", "shared_kib", "kind", "copy_kib", "graph", "cooperative",
    "beats", "peer",
])))]
pub(crate) struct BeArgs {
    /// How long a kernel runs alone (on an emulated GPU: at most 4000000)
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
    /// How many registers a thread uses
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
    /// Submit this many kernels as one CUDA graph, which then counts as one work item
    #[arg(long, value_name = "N", conflicts_with_all = ["endless", "peer", "cooperative"],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) graph: Option<u16>,
    /// Launch kernels as cooperative ones: all blocks run at the same time
    #[arg(long, conflicts_with_all = ["peer", "block_us"])]
    pub(crate) cooperative: bool,
    /// Write the intervals of more than 20 us in which the kernels were off the GPU, as one of
    /// their threads measured them with the device's clock (CSV: off, back; CLOCK_MONOTONIC ns)
    #[arg(long, value_name = "FILE", conflicts_with = "peer")]
    pub(crate) beats: Option<PathBuf>,
    /// How often to print the rate
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) report_ms: u64,
    /// How long to wait for the last kernels (default: 30000, on an emulated GPU 60000)
    #[arg(long, value_name = "MS")]
    pub(crate) drain_ms: Option<u64>,
    /// Be preempted as a published design does it: while a request is announced in --watch,
    /// kernels that have not begun exit at once and are submitted again later. See --depth
    #[arg(long, value_enum, requires = "watch",
          conflicts_with_all = ["kind", "endless", "copy_kib", "rounds"])]
    pub(crate) peer: Option<Peer>,
    /// The file in which `lc --announce` announces requests; created if missing
    #[arg(long, value_name = "PATH", requires = "peer")]
    pub(crate) watch: Option<PathBuf>,
    /// Remove kernels that were not fetched yet from the ring as well. Do not use it while another
    /// program suspends this process: clearing the ring resumes it
    #[arg(long, requires = "peer")]
    pub(crate) clear_ring: bool,
    #[command(flatten)]
    pub(crate) on_cuda: CudaArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Arithmetic on registers: the same work however often it is interrupted
    Fma,
    /// Arithmetic, and increments that must happen exactly once; checked at the end
    Counter,
    /// Waiting by the device's clock: exact lengths, but the clock runs while a kernel is
    /// preempted, so a preempted kernel does less work than one that is not
    Spin,
    /// Copies from the host to the device instead of kernels
    Copy,
}

/// Latency critical: requests on a fixed schedule (open loop).
///
/// A request's latency counts from the time it was due, even when the one before it was late;
/// its service time counts from when it began. Requests that were due but could not begin before
/// the end count with the time they had waited by then.
#[derive(Clone, Debug, ClapArgs)]
#[command(group(ArgGroup::new("cuda").multiple(true).conflicts_with("emulated").args([
    "graph", "streams", "copy_kib", "probe",
])))]
pub(crate) struct LcArgs {
    /// Kernels (or copies) in a request
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) kernels: u16,
    /// How long a kernel runs alone
    #[arg(long, value_name = "US", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) kernel_us: u64,
    /// Time on the processor after each kernel
    #[arg(long, value_name = "US", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) gap_us: u64,
    /// Time from one request to the next
    #[arg(long, value_name = "US", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(10..=60_000_000))]
    pub(crate) every_us: u64,
    /// Time from the beginning to the first request
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
    /// The random seed of --poisson-us
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// All kernels of a request as one CUDA graph, without gaps
    #[arg(long)]
    pub(crate) graph: bool,
    /// Submit kernels to this many streams in turn
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "graph",
          value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) streams: u8,
    /// Give gpreemptd a hint this long before each request is due
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(crate) hint_us: Option<u64>,
    /// Copies of this size from the host to the device instead of kernels
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) copy_kib: Option<u32>,
    /// Requests due in this time after the beginning run but do not count
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
    /// Announce running requests in this file, for `be --watch`; created if missing, best in
    /// /dev/shm, one load for each file
    #[arg(long, value_name = "PATH")]
    pub(crate) announce: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) on_cuda: CudaArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// Light, on an emulated GPU: several queues with a kernel every so often, asleep in between.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LightArgs {
    /// Queues
    #[arg(long, value_name = "N", default_value_t = 5, requires = "emulated",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) queues: u32,
    /// How long a kernel runs alone
    #[arg(long, value_name = "US", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) kernel_us: u64,
    /// Time from one kernel of a queue to the next
    #[arg(long, value_name = "MS", default_value_t = 1_000,
          value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) every_ms: u64,
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

/// Become another program, which ends when the process that started it does.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LeashArgs {
    /// The process that started this one
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) parent: i32,
    /// How the program ends then
    #[arg(long, value_enum, default_value = "kill")]
    pub(crate) end: End,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

/// How a program ends when its parent process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum End {
    /// SIGKILL
    Kill,
    /// SIGTERM: the program has something to undo
    Ask,
    /// As an MPS control program quits, with the server that it started; also on SIGTERM
    Mps,
}

/// A published way of taking best-effort work off a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Set a flag, maybe empty the ring, wait for running kernels; later submit again the rest
    Reset,
}

/// Published designs, applied to other processes, to compare with.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    pub(crate) command: PeerCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PeerCommand {
    Slices(SlicesArgs),
}

/// Time slices and nothing else: 1 s for --lc, 1 us for --be, until the time is over or Ctrl-C.
///
/// No process is suspended and none takes turns. Two --be processes of 1 us each starve each
/// other: neither makes progress while both have work. This command shows that; `gpreempt attach`
/// lets only one of them run at a time. The time slices are restored at the end, also after
/// kill -9.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SlicesArgs {
    /// Latency-critical processes: 1 s
    #[arg(long, value_name = "PID", required = true, num_args = 1..,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lc: Vec<u32>,
    /// Best-effort processes: 1 us
    #[arg(long, value_name = "PID", required = true, num_args = 1..,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) be: Vec<u32>,
    /// How long (1 to 600)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The keeper of `peer slices`: restores the time slices when that process dies.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct KeeperArgs {
    /// The session's folder
    pub(crate) folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let line = format!("gpreempt-load {line}");
        Args::try_parse_from(line.split_ascii_whitespace())
    }

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn contradictions_and_values_out_of_range_are_refused() {
        for line in [
            "",
            "be --seconds 0",
            "be --seconds 86401",
            "be --endless --kernel-us 5",
            "be --depth 0",
            "be --kind dance",
            "be --iterations 0",
            "lc --every-us 1000 --poisson-us 1000",
            "lc --kernels 0",
            "lc --announce",
            "be --peer reset",
            "be --watch flag",
            "be --clear-ring",
            "be --peer dance --watch flag",
            "be --peer reset --watch flag --kind counter",
            "be --peer reset --watch flag --endless",
            "be --graph 0",
            "be --graph 3 --cooperative",
            "lc --trace a --poisson-us 1000",
            "lc --probe a --graph",
            "lc --phase-us 5 --poisson-us 1000",
            "lc --rounds",
            "lc --rounds --json --seconds 5",
            "be --rounds --json --peer reset --watch flag",
            // On an emulated GPU.
            "be --groups 4",
            "be --socket s --kfd f",
            "be --socket s --depth 0",
            "be --socket s --kind counter",
            "be --kfd f --endless",
            "be --socket s --rounds --json",
            "lc --socket s --kernels 0",
            "lc --socket s --graph",
            "light --queues 5",
            "light --socket s --queues 65",
            // Published designs.
            "peer",
            "peer slices --lc 7 --be 8",
            "peer slices --lc 7 --seconds 1",
            "peer slices --be 7 --seconds 1",
            "peer slices --lc --be 7 --seconds 1",
            "peer slices --lc 0 --be 7 --seconds 1",
            "peer slices --lc me --be 7 --seconds 1",
            "peer slices --lc 7 --be 8 --seconds 0",
            "peer slices --lc 7 --be 8 --seconds 601",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn every_option_is_accepted() {
        for line in [
            "devices --json",
            "be --endless --block-us 100 --registers full --shared-kib 64",
            "be --kernel-us 10 --kind counter --depth 16 --report-ms 100 --json",
            "be --iterations 5000 --device 1 --wait-file go --seconds 86400 --drain-ms 9",
            "lc --poisson-us 5000 --seed 3 --graph --warmup-ms 0 --raw a.csv",
            "lc --copy-kib 64 --kernels 1 --gap-us 0 --every-us 5000",
            "lc --announce /dev/shm/flag",
            "lc --trace times --probe moments.csv",
            "lc --rounds --json --every-us 50000 --phase-us 3000 --hint-us 350",
            "be --rounds --json --endless",
            "be --graph 8 --beats beats.csv",
            "be --endless --beats beats.csv --cooperative",
            "be --peer reset --watch /dev/shm/flag --depth 4 --kernel-us 100",
            "be --peer reset --watch flag --clear-ring --registers full --json",
            "be --kfd f",
            "be --socket s --seconds 5 --kernel-us 100 --depth 2 --groups 1 --json",
            "lc --socket s --every-us 5000 --gap-us 0 --warmup-ms 0 --device 1",
            "lc --kfd f --poisson-us 5000 --hint-us 100 --raw a.csv",
            "light --socket s --queues 5 --every-ms 20 --kernel-us 50",
            "be --kind counter --memory 16GiB",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn several_processes_of_each_kind_can_be_named() {
        for line in ["--lc 7 --be 8 9 --seconds 10 --json", "--be 8 --lc 7 --be 9 --seconds 10"] {
            let command = parse(&format!("peer slices {line}")).unwrap().command;
            let Command::Peer(PeerArgs { command: PeerCommand::Slices(args) }) = command else {
                panic!("{command:?}");
            };
            assert_eq!((args.lc, args.be, args.seconds), (vec![7], vec![8, 9], 10));
        }
    }

    #[test]
    fn the_keeper_is_started_with_a_folder_and_not_shown_in_the_help() {
        let args = parse("keeper a/b").unwrap();
        assert!(matches!(args.command, Command::Keeper(args) if args.folder == *"a/b"));
        let help = parse("--help").unwrap_err().to_string();
        assert!(help.contains("peer") && !help.contains("keeper"), "{help}");
    }
}
