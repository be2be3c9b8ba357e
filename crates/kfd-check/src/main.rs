//! `gpreempt-kfd-check`: checks whether this kernel's KFD follows the rules that `device::amd`
//! relies on.
//!
//! It runs `device::amd` against the kernel: processes that use KFD, debuggers that are killed at
//! bad moments, users without privileges. Each is a child process of this program. It needs no GPU.
//! It prints a line per check and a summary.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: results go to stdout, errors go to stderr"
)]

mod checks;
mod child;
mod outcome;
mod raw;
mod report;
mod role;

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use gpreempt_device::amd::abi::version::Version;
use gpreempt_device::amd::probe::KfdPaths;
use gpreempt_device::amd::topology::Topology;
use gpreempt_device::amd::{KernelKfd, KfdDebugCalls};
use report::Report;

use crate::outcome::{CheckResult, skipped};

fn main() -> ExitCode {
    let args = Args::parse();
    match args.role {
        Some(Role::Target) => role::run_target(),
        Some(Role::Debugger { ignore_events }) => role::run_debugger(ignore_events),
        Some(Role::Heir) => role::run_heir(),
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

/// Checks whether this kernel's KFD keeps the rules that gpreempt relies on. Needs root; needs no
/// GPU.
#[derive(Debug, Parser)]
#[command(name = "gpreempt-kfd-check", version)]
pub(crate) struct Args {
    /// One JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Which caller this kernel must accept in a session; without this option it is detected and
    /// not judged
    #[arg(long, value_name = "WHO")]
    pub(crate) expect: Option<SessionCaller>,
    /// This machine is for tests only: checks may change its settings, and some changes persist
    #[arg(long)]
    pub(crate) may_change: bool,
    /// Only checks whose names contain this
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// Which caller a kernel accepts in a debug session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SessionCaller {
    /// The process that started it (6.12.103 and newer)
    Owner,
    /// The thread that traces the process (older kernels)
    Tracer,
    /// There are no sessions (before 6.5)
    #[value(name = "nobody")]
    NoSessions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Uses KFD, by commands on its input
    #[command(hide = true)]
    Target,
    /// Has a session, by commands on its input
    #[command(hide = true)]
    Debugger {
        /// Does not handle the events of its session
        #[arg(long)]
        ignore_events: bool,
    },
    /// Has its parent's KFD descriptor as its input
    #[command(hide = true)]
    Heir,
}

/// The machine, as far as it is known before the checks.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) version: Version,
    pub(crate) has_gpu: bool,
    pub(crate) may_change: bool,
    pub(crate) expected: Option<SessionCaller>,
    /// All checks use this descriptor.
    pub(crate) kfd: Arc<KernelKfd>,
}

impl Machine {
    /// Opens KFD and reads its version.
    pub(crate) fn look(args: &Args) -> Result<Self, String> {
        let kfd = KernelKfd::open()
            .map_err(|error| format!("/dev/kfd: {error}; load the amdgpu module"))?;
        let version = kfd.version().map_err(|errno| format!("/dev/kfd: {errno}"))?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let topology = Topology::read(&KfdPaths::default().sysfs);
        Ok(Self {
            kernel: kernel.trim().to_owned(),
            version,
            has_gpu: topology.is_ok_and(|topology| topology.devices().next().is_some()),
            may_change: args.may_change,
            expected: args.expect,
            kfd: Arc::new(kfd),
        })
    }

    pub(crate) fn has_sessions(&self) -> bool {
        self.version.abilities().suspend
    }

    /// Skips a check that changes settings, unless that is permitted.
    pub(crate) fn changes(&self) -> CheckResult {
        if self.may_change {
            return Ok(());
        }
        skipped("it changes settings of this machine; --may-change permits that")
    }
}
