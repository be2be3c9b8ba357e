//! `gpreempt-kfd-check`: does this kernel's KFD keep the rules that `device::amd` relies on?
//!
//! Our own code against the kernel's: processes that use KFD, debuggers that are killed at bad
//! moments, users who may not. Each of them is a child of this program that plays a role. It needs
//! no GPU. A line for each check, and one for all of them.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: results go to stdout, what is in the way goes to stderr"
)]

mod actor;
mod args;
mod checks;
mod kernel_log;
mod machine;
mod raw;
mod report;
mod role;
mod tracing;
mod verdict;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Role};
use machine::Machine;
use report::Report;

fn main() -> ExitCode {
    let args = Args::parse();
    match args.role {
        Some(Role::Target) => role::target::play(),
        Some(Role::Debugger { deaf }) => role::debugger::play(deaf),
        Some(Role::Heir) => role::heir::play(),
        None => check(&args),
    }
}

fn check(args: &Args) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!("error: the checks begin sessions with processes of several users; run as root");
        return ExitCode::from(2);
    }
    let machine = match Machine::look(args) {
        Ok(machine) => machine,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(2);
        }
    };
    let report = Report::of(&machine, args);
    if args.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
