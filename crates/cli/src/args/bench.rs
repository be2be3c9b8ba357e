//! The arguments of `gpreempt bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::within;

/// Measure a suite of cases in several modes and write a results file.
///
/// Each case is measured in each mode several times, interleaved. FOLDER/result.json is rewritten
/// after every measurement: an interrupted run keeps what it measured, and the same command
/// continues it. The results of a finished run are replaced only with --force. Exit code 1 if a
/// measurement or a check of the suite fails.
#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// A suite (gpreempt bench list), or a file
    #[arg(required = true, value_name = "SUITE|FILE")]
    pub(crate) suite: Option<String>,
    /// Where to measure: in the simulator, or on an NVIDIA GPU with real processes
    #[arg(long, value_enum, default_value = "emulated")]
    pub(crate) backend: BenchBackend,
    /// The modes to compare (gpreempt bench list) [default: the suite's]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) modes: Vec<String>,
    /// The cases to measure [default: all]
    #[arg(long, value_name = "X,Y", value_delimiter = ',')]
    pub(crate) cases: Vec<String>,
    /// Measurements of each case in each mode [default: the suite's]
    #[arg(long, value_name = "N", value_parser = within::<u32>(1, 1_000))]
    pub(crate) repetitions: Option<u32>,
    /// The short form: less time for each measurement, fewer repetitions
    #[arg(long)]
    pub(crate) short: bool,
    /// A stability run instead: real processes on the emulated GPU for this time, such as 1h
    #[arg(long, value_name = "TIME", value_parser = parse_length,
          conflicts_with_all = ["modes", "cases", "repetitions", "short"])]
    pub(crate) duration: Option<Duration>,
    /// The folder of the results [default: bench-SUITE-BACKEND, with --duration
    /// bench-SUITE-stability]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Measure from the start and replace the results that are in the folder
    #[arg(long)]
    pub(crate) force: bool,
    /// The commit the programs were built from, recorded in the results
    #[arg(long, value_name = "COMMIT")]
    pub(crate) commit: Option<String>,
    /// Print what would be measured and how long it would take, and measure nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the results, or with --dry-run the plan, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// List the suites and the modes
    List(BenchListArgs),
    /// Compare measured medians with those that the simulator predicts
    Predict(BenchPredictArgs),
    /// Write the page of a results file: tables, curves, distributions and time lines
    Report(BenchReportArgs),
    /// Compare two results files: what is better, what is worse, what is within the noise
    Compare(BenchCompareArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchBackend {
    /// The simulator, in virtual time
    Emulated,
    /// An NVIDIA GPU
    Nvidia,
}

/// List the suites and the modes.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare measured medians with those that the simulator predicts.
///
/// Exit code 1 if a median is off by more than 15 %.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchPredictArgs {
    /// The results file
    #[arg(value_name = "RESULT.json")]
    pub(crate) file: PathBuf,
    /// The suite, instead of its text in the results file
    #[arg(long, value_name = "FILE")]
    pub(crate) suite: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the page of a results file: tables, curves, distributions and time lines.
///
/// The page is one file without scripts that loads nothing. It links to the results file, which
/// should stay in the same folder.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchReportArgs {
    /// The results file
    #[arg(value_name = "RESULT.json")]
    pub(crate) file: PathBuf,
    /// The page [default: report.html in the folder of the results file]
    #[arg(short, long, value_name = "FILE.html")]
    pub(crate) out: Option<PathBuf>,
    /// Print the path of the page as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare two results files: what is better, what is worse, what is within the noise.
///
/// A difference counts if the confidence intervals over the repetitions do not overlap and it is
/// one percent or more. With fewer than five repetitions it is a "perhaps".
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchCompareArgs {
    /// The results file before the change
    #[arg(value_name = "BEFORE.json")]
    pub(crate) before: PathBuf,
    /// The results file after the change
    #[arg(value_name = "AFTER.json")]
    pub(crate) after: PathBuf,
    /// Exit code 1 if something got worse or fails
    #[arg(long)]
    pub(crate) check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Such as 90s, 10m or 1h; at most two days.
fn parse_length(text: &str) -> Result<Duration, String> {
    let seconds = [("s", 1), ("m", 60), ("h", 3_600)].into_iter().find_map(|(unit, seconds)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds)
    });
    seconds
        .filter(|seconds| (5..=172_800).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| "must be a time such as 90s, 10m or 1h, from 5s to 48h".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::args::Args;
    use clap::Parser;

    #[test]
    fn a_suite_or_a_subcommand_is_required() {
        for line in [
            "gpreempt bench micro --backend nvidia --modes alone,hold --cases gap30 --short",
            "gpreempt bench mine.toml --repetitions 3 --out folder --json",
            "gpreempt bench online-offline --duration 1h",
            "gpreempt bench list --json",
            "gpreempt bench predict result.json",
            "gpreempt bench report result.json -o page.html --json",
            "gpreempt bench compare a.json b.json --check --json",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "gpreempt bench",
            "gpreempt bench micro --backend abacus",
            "gpreempt bench micro --repetitions 0",
            "gpreempt bench online-offline --duration 1h --short",
            "gpreempt bench online-offline --duration 1",
            "gpreempt bench online-offline --duration 49h",
            "gpreempt bench predict",
            "gpreempt bench report",
            "gpreempt bench compare a.json",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
