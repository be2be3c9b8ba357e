//! The command line of `gpreempt-emu`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Parser, Subcommand};
use gpreempt_emu::kfd::KfdProfile;
use gpreempt_emu::server::{KfdOptions, Options};
use gpreempt_sim::model::{DeviceModel, MachineKind, read_model};
use gpreempt_wire::emulated_kfd::GPU_SOCKET;
use gpreempt_wire::memory_size::parse_bytes;

/// An emulated GPU in real time, for real processes on any machine.
#[derive(Debug, Parser)]
#[command(name = "gpreempt-emu", version = env!("GPREEMPT_VERSION"))]
#[command(disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a load on an emulated GPU: the same as gpreempt-load with these arguments
    #[command(disable_help_flag = true)]
    Load {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder; it must exist
        folder: PathBuf,
    },
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
    /// Memory of each device instead of the model's, for example 24GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
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
        if let Some(bytes) = self.memory {
            model.memory.bytes = bytes;
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
            "gpreempt-emu --kfd f --kernel 2.4",
            "gpreempt-emu --kfd f --gfx 1",
            "gpreempt-emu --socket s --memory 24",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
        for line in [
            "gpreempt-emu --socket s --devices 2 --model mi300x --machine tsg --compute-units 4",
            "gpreempt-emu --socket s --memory 24GiB",
            "gpreempt-emu --kfd f --kernel 6.12.95 --gfx 110000 --xccs 1 --devices 2",
            "gpreempt-emu load be --socket s --seconds 5 --kernel-us 100 --depth 2 --json",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn everything_after_load_is_for_the_load_program() {
        let line = "gpreempt-emu load be --socket s --help";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Some(Command::Load { arguments }) = args.command else { panic!("{args:?}") };
        assert_eq!(arguments, ["be", "--socket", "s", "--help"]);
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
