//! What can be typed about published designs.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// A published way of taking best-effort work off a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Set a flag, maybe empty the ring, wait for what runs; later submit again what did not
    Reset,
}

/// Published designs, done to other processes from outside, to compare with.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    pub(crate) command: PeerCommand,
}

/// Which design.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PeerCommand {
    Slices(SlicesArgs),
}

/// Time slices and nothing else: 1 s for --lc, 1 us for --be, until the time is over or Ctrl-C.
///
/// Nobody is stopped and nobody takes turns. Two --be processes of 1 us each starve each other:
/// neither makes any progress while both have work. That is what this is here to show; `gpreempt
/// attach` keeps all but one of them stopped. Everything is as it was afterwards, also after
/// kill -9.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct SlicesArgs {
    /// Latency-critical processes: 1 s
    #[arg(long, value_name = "PID", required = true, num_args = 1..,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lc: Vec<u32>,
    /// Best-effort processes: 1 us
    #[arg(long, value_name = "PID", required = true, num_args = 1..,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) be: Vec<u32>,
    /// How long (1 to 600)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The part of the program that undoes everything when the rest of it dies.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct KeeperArgs {
    /// The session's folder
    pub(crate) folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn slices(line: &str) -> Option<SlicesArgs> {
        match Args::try_parse_from(line.split(' ')).ok()?.command {
            Command::Peer(PeerArgs { command: PeerCommand::Slices(args) }) => Some(args),
            Command::Be(_)
            | Command::Lc(_)
            | Command::Devices(_)
            | Command::Keeper(_)
            | Command::Leash(_)
            | Command::Man { .. } => None,
        }
    }

    #[test]
    fn several_processes_of_each_kind_can_be_named() {
        let args = slices("gpreempt-load peer slices --lc 7 --be 8 9 --seconds 10 --json");
        let args = args.unwrap();
        assert_eq!((args.lc, args.be), (vec![7], vec![8, 9]));
        assert_eq!((args.seconds, args.json), (10, true));
        let args = slices("gpreempt-load peer slices --be 8 --lc 7 --be 9 --seconds 1").unwrap();
        assert_eq!((args.lc, args.be), (vec![7], vec![8, 9]));
    }

    #[test]
    fn half_of_a_comparison_is_refused() {
        for line in [
            "gpreempt-load peer",
            "gpreempt-load peer slices --lc 7 --be 8",
            "gpreempt-load peer slices --lc 7 --seconds 1",
            "gpreempt-load peer slices --be 7 --seconds 1",
            "gpreempt-load peer slices --lc --be 7 --seconds 1",
            "gpreempt-load peer slices --lc 0 --be 7 --seconds 1",
            "gpreempt-load peer slices --lc me --be 7 --seconds 1",
            "gpreempt-load peer slices --lc 7 --be 8 --seconds 0",
            "gpreempt-load peer slices --lc 7 --be 8 --seconds 601",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn the_keeper_is_started_with_a_folder_and_not_shown() {
        let args = Args::try_parse_from(["gpreempt-load", "keeper", "a/b"]).unwrap();
        assert!(matches!(args.command, Command::Keeper(args) if args.folder == *"a/b"));
        let help = Args::try_parse_from(["gpreempt-load", "--help"]).unwrap_err().to_string();
        assert!(help.contains("peer") && !help.contains("keeper"), "{help}");
    }
}
