//! `gpreempt-load`: loads for GPUs, and their measurements.
//!
//! Best-effort kernels (`be`), requests whose latency counts from when they were due (`lc`), many
//! light queues (`light`), and published designs to compare with (`be --peer reset`,
//! `peer slices`). Loads run on a CUDA device or on an emulated GPU. The program needs no CUDA
//! toolkit: it loads the driver's library when it runs, and the driver compiles the kernels. Exit
//! codes: 0 success, 1 the run failed or gave a wrong result, 2 the arguments were wrong, 3 there
//! is no device to run on.

mod args;
mod best_effort;
mod clock;
mod cuda;
mod device_times;
mod emulated;
mod failure;
mod held_memory;
mod kernels;
mod latency_critical;
mod lines;
mod open_loop;
mod parent_death;
mod pipeline;
mod reset;
mod rounds;
mod schedule;
mod slices_only;
mod stop;
mod workload;

use std::fmt;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use gpreempt_device::nvidia::driver::Driver;
use gpreempt_device::{change, keeper};
use serde::Serialize;

use args::{Args, Command, DevicesArgs, PeerArgs, PeerCommand};
use cuda::{Device, Library};
use failure::Failure;
use lines::Output;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version come this way too; they are no errors.
            let code = if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            let _ = error.print();
            return code;
        }
    };
    let result = match args.command {
        Command::Be(args) => best_effort::main(&args),
        Command::Lc(args) => latency_critical::main(&args),
        Command::Light(args) => emulated::light(&args),
        Command::Devices(args) => devices(&args),
        Command::Peer(PeerArgs { command: PeerCommand::Slices(args) }) => slices_only::main(&args),
        Command::Leash(args) => parent_death::main(&args),
        Command::Keeper(args) => {
            keeper::main(&args.folder, None, change::undo).map_err(Failure::run)
        }
        Command::Man { folder } => clap_mangen::generate_to(Args::command(), &folder)
            .map_err(|error| Failure::input(format_args!("{}: {error}", folder.display()))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The CUDA devices of this machine.
#[derive(Clone, Debug, Serialize)]
struct Devices {
    /// The newest CUDA version that the driver supports.
    cuda: String,
    /// The version of the kernel module.
    driver: Option<String>,
    devices: Vec<Device>,
}

fn devices(args: &DevicesArgs) -> Result<(), Failure> {
    let library = Library::open()?;
    let found = Devices {
        cuda: cuda_version(library.version()?),
        driver: Driver::find().ok().map(|driver| driver.version),
        devices: library.devices()?,
    };
    Output { json: args.json }.line(&found)
}

/// 13000 is 13.0.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_deref().unwrap_or("of unknown version");
        write!(f, "CUDA {}, driver {driver}, devices: {}", self.cuda, self.devices.len())?;
        for device in &self.devices {
            let Device { index, name, multiprocessors } = device;
            write!(f, "\n{index}: {name}, {multiprocessors} multiprocessors")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_version_numbers_are_printed_as_versions() {
        assert_eq!(cuda_version(13000), "13.0");
        assert_eq!(cuda_version(12080), "12.8");
    }
}
