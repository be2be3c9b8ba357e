//! `gpreempt-load`: loads for real GPUs, and what they measure.
//!
//! Best-effort work without end (`be`), requests whose latency counts from when they were due
//! (`lc`), and published designs to compare with (`be --peer reset`, `peer slices`). It needs no
//! CUDA toolkit: the driver's library is found when the program runs, and the driver compiles the
//! kernels. Exit codes: 0 all is well, 1 something that was run failed or gave a wrong result, 2
//! the arguments were wrong, 3 there is no device to run on.

mod args;
mod be;
mod calibrate;
mod clock;
mod cuda;
mod device_clock;
mod devices;
mod failure;
mod flag;
mod hints;
mod keeper;
mod kernels;
mod latency;
mod lc;
mod leash;
mod output;
mod peer;
mod ready;
mod rounds;
mod schedule;
mod stop;
mod workload;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Args, Command};
use failure::Failure;

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
        Command::Be(args) => be::main(&args),
        Command::Lc(args) => lc::main(&args),
        Command::Devices(args) => devices::main(&args),
        Command::Peer(args) => peer::main(&args),
        Command::Leash(args) => leash::main(&args),
        Command::Keeper(args) => keeper::main(&args),
        Command::Man { folder } => clap_mangen::generate_to(Args::command(), &folder)
            .map_err(|error| Failure::input(format_args!("{}: {error}", folder.display()))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
