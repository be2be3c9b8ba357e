//! What can be typed about benchmarks.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::within;

/// Measure a suite of cases in several modes, and write one file of results.
///
/// Each case is measured in each mode several times, interleaved. FOLDER/result.json is written
/// anew after every measurement: an interrupted run keeps what it measured, and the same command
/// goes on where it was. Exit code 1 if a measurement failed, or a line that the suite asks for
/// does not hold.
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
    /// How often each case is measured in each mode [default: the suite's]
    #[arg(long, value_name = "N", value_parser = within::<u32>(1, 1_000))]
    pub(crate) repetitions: Option<u32>,
    /// The short form: less time for each measurement, fewer repetitions
    #[arg(long)]
    pub(crate) short: bool,
    /// A stability run instead: real processes on the emulated GPU for that long, such as 1h
    #[arg(long, value_name = "TIME", value_parser = parse_length,
          conflicts_with_all = ["modes", "cases", "repetitions", "short"])]
    pub(crate) duration: Option<Duration>,
    /// Where the results go [default: bench-SUITE-BACKEND]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// The commit the programs were built from, for the record
    #[arg(long, value_name = "COMMIT")]
    pub(crate) commit: Option<String>,
    /// Say what would be measured and how long it would take, and measure nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the results, or with --dry-run the plan, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What else can be done.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// The suites and the modes there are
    List(BenchListArgs),
    /// What the simulator says about the same cases, beside what was measured
    Predict(BenchPredictArgs),
    /// The page of a file of results: tables, curves, distributions and time lines
    Report(BenchReportArgs),
    /// Before and after: what is better, what is worse, and what cannot be told from chance
    Compare(BenchCompareArgs),
}

/// Where to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchBackend {
    /// The simulator, in virtual time
    Emulated,
    /// An NVIDIA GPU
    Nvidia,
}

/// The suites and the modes there are.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the simulator says about the same cases, beside what was measured.
///
/// Exit code 1 if a median is off by more than 15 %.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchPredictArgs {
    /// The file of results
    #[arg(value_name = "RESULT.json")]
    pub(crate) file: PathBuf,
    /// The suite, instead of the text that the results contain
    #[arg(long, value_name = "FILE")]
    pub(crate) suite: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The page of a file of results: tables, curves, distributions and time lines.
///
/// It is one file without scripts that loads nothing, and it links to the file of results, which
/// should stay beside it.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchReportArgs {
    /// The file of results
    #[arg(value_name = "RESULT.json")]
    pub(crate) file: PathBuf,
    /// Where to write it [default: report.html beside the file of results]
    #[arg(short, long, value_name = "FILE.html")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON: where the page is
    #[arg(long)]
    pub(crate) json: bool,
}

/// Before and after: what is better, what is worse, and what cannot be told from chance.
///
/// A difference counts if the intervals over the repetitions have nothing in common and it is one
/// percent or more. Fewer than five repetitions make it a "perhaps".
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct BenchCompareArgs {
    /// The file of results from before
    #[arg(value_name = "BEFORE.json")]
    pub(crate) before: PathBuf,
    /// The one from after
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
    fn a_suite_or_something_else_is_asked_for() {
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
