//! What can be typed.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use gpreempt_daemon::service::Options;
use gpreempt_device::registry::Selection;

/// Schedules the GPUs of this machine: rules, policy, crash safety.
///
/// Runs in the foreground until SIGTERM or SIGINT, which put everything back as it was. SIGHUP
/// reads the configuration again.
#[derive(Debug, Parser)]
#[command(name = "gpreemptd", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// The configuration [default: /etc/gpreempt/config.toml, which need not be there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen [default: as configured]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where the journal is [default: $GPREEMPT_STATE or /run/gpreempt]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Explain the configuration and what each process would get; change nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Print what --check says as JSON
    #[arg(long, requires = "check")]
    pub(crate) json: bool,
    /// Also schedule the emulated GPUs of the emulator that listens there
    #[arg(long, value_name = "SOCKET")]
    emulated: Vec<PathBuf>,
    /// Also schedule the AMD GPUs of the emulated KFD in that folder
    #[arg(long, value_name = "FOLDER")]
    emulated_kfd: Vec<PathBuf>,
    /// Leave NVIDIA GPUs alone
    #[arg(long)]
    no_nvidia: bool,
    /// Leave AMD GPUs alone
    #[arg(long)]
    no_amd: bool,
    /// Stay in the foreground, which it always does
    #[arg(long)]
    foreground: bool,
}

/// What else the program is.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Undo everything when whoever started this is gone
    #[command(hide = true)]
    Keeper {
        /// The folder of the session
        folder: PathBuf,
        /// The memory with which holds are ended
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
    pub(crate) fn options(&self) -> Options {
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

/// The journal says where things are, and whoever reads it may have another working folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_make_sense() {
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
