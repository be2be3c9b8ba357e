//! `gpreemptd`: the scheduler as a service.

mod args;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use gpreempt_daemon::accounts::Accounts;
use gpreempt_daemon::check::{self, Report};
use gpreempt_daemon::config::DEFAULT_PATH;
use gpreempt_daemon::service::{self, Failure};
use gpreempt_device::{act, keeper};

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Keeper { folder, holds }) => keep(folder, holds.as_deref()),
        Some(Command::Man { folder }) => man(folder),
        None if args.check => check(&args),
        None => service::run(args.options()),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let line = match args.json {
        true => serde_json::json!({ "error": failure.to_string() }).to_string(),
        false => format!("gpreemptd: {failure}"),
    };
    // Nobody is left to tell if that fails.
    let _ = writeln!(std::io::stderr(), "{line}");
    match failure {
        Failure::Input(_) => ExitCode::from(2),
        Failure::Work(_) => ExitCode::FAILURE,
    }
}

/// The manual page, from the same words as `--help`.
fn man(folder: &Path) -> Result<(), Failure> {
    let path = folder.join("gpreemptd.8");
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command())
        .section("8")
        .render(&mut page)
        .and_then(|()| std::fs::write(&path, page))
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// The keeper, where it has no program of its own.
fn keep(folder: &Path, holds: Option<&Path>) -> Result<(), Failure> {
    keeper::main(folder, holds, act::undo).map_err(|error| Failure::Work(error.to_string()))
}

/// Explains the configuration, and what it means for the processes that are there.
fn check(args: &Args) -> Result<(), Failure> {
    let options = args.options();
    let config = options.load_config().map_err(|error| Failure::Input(error.to_string()))?;
    let accounts = Accounts::load().map_err(|error| error.to_string())?;
    let processes = check::processes(&config, &accounts).map_err(|error| error.to_string())?;
    let usual = Path::new(DEFAULT_PATH);
    let file = match &options.config {
        Some(file) => file.to_string_lossy(),
        None if usual.exists() => usual.to_string_lossy(),
        None => "the defaults".into(),
    };
    let socket = options.socket_path(&config);
    let socket = socket.map_err(|error| Failure::Input(error.to_string()))?;
    let report = Report::new(&file, &config, &socket, (&accounts, &processes));
    let text =
        if args.json { report.json().map_err(|error| error.to_string())? } else { report.text() };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| Failure::Work(error.to_string()))
}
