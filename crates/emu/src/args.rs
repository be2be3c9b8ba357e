//! The command line of `gpreempt-emu`.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Parser, Subcommand};
use gpreempt_core::id::DeviceId;
use gpreempt_emu::kfd::KfdProfile;
use gpreempt_emu::load::{BestEffort, LatencyCritical, Light, Load, Output};
use gpreempt_emu::server::{KfdOptions, Options};
use gpreempt_sim::model::{DeviceModel, MachineKind, read_model};
use gpreempt_wire::emulated_kfd::GPU_SOCKET;

/// An emulated GPU in real time, for real processes on any machine.
#[derive(Debug, Parser)]
#[command(name = "gpreempt-emu", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a load on an emulated GPU
    Load {
        #[command(subcommand)]
        command: LoadCommand,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder; it must exist
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    Be(BeArgs),
    Lc(LcArgs),
    Light(LightArgs),
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Where to listen
    #[arg(long, value_name = "PATH", required_unless_present = "kfd")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    kfd: KfdArgs,
    /// How many devices there are (1 to 16)
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    devices: u32,
    /// What each device is: h200 (default), mi300x (default of a KFD), or a file
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// How it preempts: tsg (slices, as NVIDIA) or cwsr (on request, as AMD); default: as the
    /// model says
    #[arg(long, value_name = "KIND", value_parser = machine)]
    machine: Option<MachineKind>,
    /// So many compute units instead of the model's: loads of few work-groups fill a small device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    compute_units: Option<u32>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct KfdArgs {
    /// Be an AMD KFD: FOLDER/kfd is its device, FOLDER/sys and FOLDER/debug are its files, and
    /// FOLDER/gpu is where to listen
    #[arg(long, value_name = "FOLDER")]
    kfd: Option<PathBuf>,
    /// With --kfd: the kernel whose rules it follows: 6.1, 6.12.95 or 6.12.103
    #[arg(long, value_name = "VERSION", default_value = "6.12.103", value_parser = kernel)]
    kernel: String,
    /// With --kfd: the generation of its devices, as KFD counts: 90402 is gfx942, 110000 is gfx1100
    #[arg(long, value_name = "N", default_value_t = 90_402,
          value_parser = clap::value_parser!(u32).range(80_000..=130_000))]
    gfx: u32,
    /// With --kfd: dies with compute units of each device
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    xccs: u32,
    /// With --kfd: have the calls of gpreempt's kernel patches, and their files: FOLDER/parameters
    #[arg(long, requires = "kfd")]
    patched: bool,
    /// With --patched: the scheduler of the patches is on from the beginning
    #[arg(long, requires = "patched")]
    scheduler: bool,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    /// Where the emulator listens
    #[arg(long, value_name = "PATH", required_unless_present = "kfd", conflicts_with = "kfd")]
    socket: Option<PathBuf>,
    /// Run through the KFD in that folder
    #[arg(long, value_name = "FOLDER")]
    kfd: Option<PathBuf>,
    /// How long to run (1 to 86400)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// The number of the device
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Work-groups of a kernel, each one wave: more cost the emulator more
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    groups: u32,
    /// Begin only when this file exists (after the ready line)
    #[arg(long, value_name = "PATH")]
    wait_file: Option<PathBuf>,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
}

/// Best effort: kernels back to back, with the rate in every interval
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BeArgs {
    /// How long a kernel runs when nothing disturbs it
    #[arg(long, value_name = "US", default_value_t = 8_000,
          value_parser = clap::value_parser!(u64).range(1..=4_000_000))]
    kernel_us: u64,
    /// Kernels in flight
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// How often to print the rate
    #[arg(long, value_name = "MS", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(10..=60_000))]
    report_ms: u64,
    /// How long to wait for the last kernels
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    drain_ms: u64,
    #[command(flatten)]
    load: LoadArgs,
}

/// Latency critical: requests on a fixed schedule
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LcArgs {
    /// Kernels in a request
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    kernels: u32,
    /// How long a kernel runs when nothing disturbs it
    #[arg(long, value_name = "US", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    kernel_us: u64,
    /// Time on the CPU after each kernel
    #[arg(long, value_name = "US", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    gap_us: u64,
    /// A request every so often
    #[arg(long, value_name = "US", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(10..=60_000_000))]
    every_us: u64,
    /// Requests in the first milliseconds run but are not counted
    #[arg(long, value_name = "MS", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(0..=60_000))]
    warmup_ms: u64,
    #[command(flatten)]
    load: LoadArgs,
}

/// Light: several queues with a kernel every so often, asleep in between
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LightArgs {
    /// Queues
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// How long a kernel runs when nothing disturbs it
    #[arg(long, value_name = "US", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    kernel_us: u64,
    /// A kernel in each queue every so often
    #[arg(long, value_name = "MS", default_value_t = 1_000,
          value_parser = clap::value_parser!(u64).range(1..=600_000))]
    every_ms: u64,
    #[command(flatten)]
    load: LoadArgs,
}

impl ServeArgs {
    /// The options of the emulator, or what is wrong with the arguments.
    pub(crate) fn options(&self) -> Result<Options, String> {
        let folder = self.kfd.kfd.as_deref();
        let socket = self.socket.clone().or_else(|| Some(folder?.join(GPU_SOCKET)));
        let socket = socket.ok_or("--socket is missing")?;
        let usual = if folder.is_some() { "mi300x" } else { "h200" };
        let name = self.model.as_deref().unwrap_or(usual);
        let mut model = match DeviceModel::built_in(name) {
            Some(model) => model,
            None => model_in(Path::new(name))?,
        };
        if let Some(units) = self.compute_units {
            model.compute_units = units;
        }
        let machine = self.machine.unwrap_or(model.machine);
        if folder.is_some() && machine != MachineKind::Cwsr {
            return Err("a KFD needs the machine cwsr".to_owned());
        }
        Ok(Options { socket, machine, model, devices: self.devices })
    }
}

impl ServeArgs {
    pub(crate) fn kfd(&self) -> Option<KfdOptions> {
        let KfdArgs { kfd, kernel, gfx, xccs, patched, scheduler } = self.kfd.clone();
        let profile = KfdProfile { patched, ..KfdProfile::of(&kernel, gfx)? };
        Some(KfdOptions { folder: kfd?, profile, gfx, xccs, scheduler })
    }
}

fn kernel(name: &str) -> Result<String, String> {
    let known: Vec<&str> = KfdProfile::kernels().collect();
    let is_known = known.contains(&name);
    is_known.then(|| name.to_owned()).ok_or_else(|| format!("take one of {}", known.join(", ")))
}

fn model_in(path: &Path) -> Result<DeviceModel, String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!("{} is neither h200 nor mi300x nor a file: {error}", path.display())
    })?;
    read_model(&path.display().to_string(), &text).map_err(|error| error.to_string())
}

fn machine(name: &str) -> Result<MachineKind, String> {
    MachineKind::from_name(name).ok_or_else(|| "take tsg or cwsr".to_owned())
}

impl LoadArgs {
    fn load(&self, kernel_us: u64) -> Load {
        Load {
            // clap requires one of the two.
            socket: self.kfd.as_ref().or(self.socket.as_ref()).cloned().unwrap_or_default(),
            device: DeviceId(self.device),
            seconds: self.seconds,
            kernel_us,
            groups: self.groups,
            wait_file: self.wait_file.clone(),
            output: Output { json: self.json },
        }
    }
}

impl BeArgs {
    pub(crate) fn load(&self) -> BestEffort {
        let load = self.load.load(self.kernel_us);
        let Self { depth, report_ms, drain_ms, .. } = *self;
        BestEffort { load, depth, report_ms, drain_ms }
    }
}

impl LcArgs {
    pub(crate) fn load(&self) -> LatencyCritical {
        let load = self.load.load(self.kernel_us);
        let Self { kernels, gap_us, every_us, warmup_ms, .. } = *self;
        LatencyCritical { load, kernels, gap_us, every_us, warmup_ms }
    }
}

impl LightArgs {
    pub(crate) fn load(&self) -> Light {
        let Self { queues, every_ms, .. } = *self;
        Light { load: self.load.load(self.kernel_us), queues, every_ms }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_make_sense() {
        Args::command().debug_assert();
    }

    #[test]
    fn nonsense_is_refused_and_every_option_is_understood() {
        for line in [
            "gpreempt-emu",
            "gpreempt-emu --devices 0 --socket s",
            "gpreempt-emu --machine dance --socket s",
            "gpreempt-emu load be",
            "gpreempt-emu load be --socket s --depth 0",
            "gpreempt-emu load lc --socket s --kernels 0",
            "gpreempt-emu load light --socket s --queues 65",
            "gpreempt-emu --kfd f --kernel 2.4",
            "gpreempt-emu --kfd f --gfx 1",
            "gpreempt-emu load be --socket s --kfd f",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
        for line in [
            "gpreempt-emu --socket s --devices 2 --model mi300x --machine tsg --compute-units 4",
            "gpreempt-emu --kfd f --kernel 6.12.95 --gfx 110000 --xccs 1 --devices 2",
            "gpreempt-emu load be --kfd f",
            "gpreempt-emu load be --socket s --seconds 5 --kernel-us 100 --depth 2 --json",
            "gpreempt-emu load lc --socket s --every-us 5000 --gap-us 0 --warmup-ms 0 --device 1",
            "gpreempt-emu load light --socket s --queues 5 --every-ms 20 --kernel-us 50",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn a_model_that_is_not_there_is_named() {
        let line = "gpreempt-emu --socket s --model /nowhere/gpu.toml";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        assert!(args.serve.options().unwrap_err().contains("/nowhere/gpu.toml"));
        let line = "gpreempt-emu --kfd f --model h200";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        assert!(args.serve.options().unwrap_err().contains("cwsr"));
    }
}
