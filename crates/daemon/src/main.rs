//! `gpreemptd`: the scheduler as a service.

mod args;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use gpreempt_daemon::accounts::Accounts;
use gpreempt_daemon::check::{self, Report};
use gpreempt_daemon::config::DEFAULT_PATH;
use gpreempt_daemon::service;
use gpreempt_device::{act, keeper};

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Keeper { folder }) => keep(folder),
        None if args.check => check(&args),
        None => service::run(args.options()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Nobody is left to tell if that fails.
            let _ = writeln!(std::io::stderr(), "gpreemptd: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The keeper, where it has no program of its own.
fn keep(folder: &Path) -> Result<(), String> {
    keeper::main(folder, &mut act::undo).map_err(|error| error.to_string())
}

/// Explains the configuration, and what it means for the processes that are there.
fn check(args: &Args) -> Result<(), String> {
    let options = args.options();
    let config = options.load_config().map_err(|error| error.to_string())?;
    let accounts = Accounts::load().map_err(|error| error.to_string())?;
    let processes = check::processes(&config, &accounts).map_err(|error| error.to_string())?;
    let usual = Path::new(DEFAULT_PATH);
    let file = match &options.config {
        Some(file) => file.to_string_lossy(),
        None if usual.exists() => usual.to_string_lossy(),
        None => "the defaults".into(),
    };
    let report = Report::new(&file, &config, &accounts, &processes);
    let text =
        if args.json { report.json().map_err(|error| error.to_string())? } else { report.text() };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}
