//! `gpreemptd`: command line, exit codes, and the keeper and manual page modes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use gpreempt_daemon::accounts::Accounts;
use gpreempt_daemon::capabilities;
use gpreempt_daemon::check::{self, Report};
use gpreempt_daemon::config::DEFAULT_PATH;
use gpreempt_daemon::service::{self, Failure, Options};
use gpreempt_device::registry::Selection;
use gpreempt_device::{change, keeper};

/// Schedules the GPUs of this machine: rules, policy, crash safety.
///
/// Runs in the foreground until SIGTERM or SIGINT; then it restores all GPU settings. SIGHUP
/// reloads the configuration.
#[derive(Debug, Parser)]
#[command(name = "gpreemptd", version = env!("GPREEMPT_VERSION"), disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file [default: /etc/gpreempt/config.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The socket for clients [default: as configured]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The folder of the journal [default: $GPREEMPT_STATE or /run/gpreempt]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Explain the configuration, and list every process that would be scheduled or that a rule
    /// names, with what it would get; change nothing
    #[arg(long)]
    check: bool,
    /// Print the result of --check as JSON
    #[arg(long, requires = "check")]
    json: bool,
    /// Also schedule the emulated GPUs of the emulator at this socket
    #[arg(long, value_name = "SOCKET")]
    emulated: Vec<PathBuf>,
    /// Also schedule the AMD GPUs of the emulated KFD in this folder
    #[arg(long, value_name = "FOLDER")]
    emulated_kfd: Vec<PathBuf>,
    /// Do not schedule NVIDIA GPUs
    #[arg(long)]
    no_nvidia: bool,
    /// Do not schedule AMD GPUs
    #[arg(long)]
    no_amd: bool,
    /// Stay in the foreground (always so; accepted for service managers)
    #[arg(long)]
    foreground: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Undo all recorded changes when the process that started this has ended
    #[command(hide = true)]
    Keeper {
        /// The folder of the session
        folder: PathBuf,
        /// The shared memory through which holds are released
        holds: Option<PathBuf>,
    },
    /// Write the manual page into a folder
    #[command(hide = true)]
    Man {
        /// The folder; it must exist
        folder: PathBuf,
    },
}

impl Args {
    fn options(&self) -> Options {
        Options {
            config: self.config.clone(),
            socket: self.socket.clone(),
            state: self.state.as_deref().map(absolute),
            devices: Selection {
                nvidia: !self.no_nvidia,
                amd: !self.no_amd,
                emulated_kfd: self.emulated_kfd.iter().map(|folder| absolute(folder)).collect(),
                emulated: self.emulated.iter().map(|socket| absolute(socket)).collect(),
            },
            private: None,
        }
    }
}

/// The journal contains paths, and its readers may have another working folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Keeper { folder, holds }) => keep(folder, holds.as_deref()),
        Some(Command::Man { folder }) => man(folder),
        None if args.check => check(&args),
        None => serve(args.options()),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let line = match args.json {
        true => serde_json::json!({ "error": failure.to_string() }).to_string(),
        false => format!("gpreemptd: {failure}"),
    };
    // A failed write to stderr cannot be reported.
    let _ = writeln!(std::io::stderr(), "{line}");
    match failure {
        Failure::Input(_) => ExitCode::from(2),
        Failure::Work(_) => ExitCode::FAILURE,
    }
}

fn serve(options: Options) -> Result<(), Failure> {
    capabilities::drop_unneeded(&options.devices).map_err(|error| {
        Failure::Work(format!("capabilities that are not needed cannot be given up: {error}"))
    })?;
    service::run(options)
}

/// Writes the manual page, which has the same text as `--help`.
fn man(folder: &Path) -> Result<(), Failure> {
    let path = folder.join("gpreemptd.8");
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command())
        .section("8")
        .render(&mut page)
        .and_then(|()| std::fs::write(&path, page))
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Runs as the keeper where `gpreempt-keeper` is not installed.
fn keep(folder: &Path, holds: Option<&Path>) -> Result<(), Failure> {
    keeper::main(folder, holds, change::undo).map_err(|error| Failure::Work(error.to_string()))
}

fn check(args: &Args) -> Result<(), Failure> {
    let options = args.options();
    let config = options.load_config().map_err(|error| Failure::Input(error.to_string()))?;
    let accounts = Accounts::load().map_err(|error| error.to_string())?;
    let mut problems = Vec::new();
    let processes = check::processes(&config, &accounts, &options.devices, &mut problems)
        .map_err(|error| error.to_string())?;
    let usual = Path::new(DEFAULT_PATH);
    let file = match &options.config {
        Some(file) => file.to_string_lossy(),
        None if usual.exists() => usual.to_string_lossy(),
        None => "the defaults".into(),
    };
    let socket = options.socket_path(&config);
    let socket = socket.map_err(|error| Failure::Input(error.to_string()))?;
    let mut report = Report::new(&file, &config, &socket, (&accounts, &processes));
    report.warnings.append(&mut problems);
    let text =
        if args.json { report.json().map_err(|error| error.to_string())? } else { report.text() };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| Failure::Work(error.to_string()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_are_read_and_paths_become_absolute() {
        Args::command().debug_assert();
        let args =
            Args::parse_from(["gpreemptd", "--no-nvidia", "--emulated", "/a", "--emulated", "/b"]);
        let devices = args.options().devices;
        assert!(!devices.nvidia && devices.amd);
        assert_eq!(devices.emulated.len(), 2);
        let args = Args::parse_from(["gpreemptd", "--no-amd", "--emulated-kfd", "here"]);
        let devices = args.options().devices;
        assert!(!devices.amd && devices.nvidia);
        assert_eq!(devices.emulated_kfd, [std::env::current_dir().unwrap().join("here")]);
        let args = Args::parse_from(["gpreemptd", "--state", "here"]);
        assert_eq!(args.options().state, Some(std::env::current_dir().unwrap().join("here")));
        assert!(Args::try_parse_from(["gpreemptd", "--json"]).is_err());
    }
}
