//! The folder of a run: its lock, its results file while the run is in progress, and the decision
//! whether an interrupted run continues.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use gpreempt_bench::engine::{Progress, RunObserver};
use gpreempt_bench::results::{Environment, Results};
use gpreempt_bench::suite::Suite;
use gpreempt_wire::lock_file::LockFile;

use super::run::note;
use crate::args::{BenchArgs, BenchBackend};
use crate::failure::Failure;
use crate::stop::Stop;
use crate::write_file::write_whole;

/// The file that is locked. It is not removed: a removed file could be locked twice.
const LOCK: &str = ".lock";

/// The exclusive right to write into a folder: two runs would overwrite each other's results. The
/// kernel releases it when the process ends.
#[derive(Debug)]
pub(super) struct FolderLock {
    _lock: LockFile,
}

impl FolderLock {
    pub(super) fn take(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(LOCK);
        match LockFile::try_lock(&path) {
            Ok(Some(lock)) => Ok(Self { _lock: lock }),
            Ok(None) => Err(Failure::input(format_args!(
                "another gpreempt bench writes into {}; wait for its end, or name another folder \
                 with --out",
                folder.display()
            ))),
            Err(error) => {
                Err(Failure::input(format_args!("cannot lock {}: {error}", path.display())))
            }
        }
    }
}

/// The length of the progress line that is overwritten.
const WIDTH: usize = 100;

/// Shows progress on stderr and writes the results file after every measurement.
#[derive(Debug)]
pub(super) struct ProgressWriter {
    path: PathBuf,
    stop: Stop,
    is_terminal: bool,
    is_json: bool,
    is_shown: bool,
}

impl ProgressWriter {
    pub(super) fn new(path: PathBuf, stop: Stop, is_json: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { path, stop, is_terminal, is_json, is_shown: false }
    }
}

impl RunObserver for ProgressWriter {
    fn begins(&mut self, progress: &Progress<'_>) {
        // With --json, programs expect nothing but errors on stderr.
        if self.is_json && !self.is_terminal {
            return;
        }
        let mut err = std::io::stderr();
        let _ = match self.is_terminal {
            true => write!(err, "\r{:<WIDTH$}", progress.to_string()),
            // A log has a line for each measurement.
            false => writeln!(err, "{progress}"),
        };
        self.is_shown = true;
    }

    fn keep(&mut self, results: &Results) -> Result<(), String> {
        write_whole(&self.path, results.to_text().as_bytes()).map_err(|error| error.to_string())
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}

impl Drop for ProgressWriter {
    /// Erases the progress line.
    fn drop(&mut self) {
        if self.is_terminal && self.is_shown {
            let _ = write!(std::io::stderr(), "\r{:<WIDTH$}\r", "");
        }
    }
}

/// The results of an earlier run of the same command that was interrupted; none without a file.
pub(super) fn resumed(
    path: &Path,
    args: &BenchArgs,
    suite: &Suite,
    environment: &Environment,
) -> Result<Option<Results>, Failure> {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::input(format_args!("cannot read {name}: {error}"))),
    };
    let results = Results::read(&name, &text).map_err(Failure::input)?;
    let reason = if results.finished.is_some() {
        "is of a finished run".to_owned()
    } else if results.suite.digest != suite.digest {
        "is of another version of the suite".to_owned()
    } else if results.command != command(args) {
        "is of another command".to_owned()
    } else if let Some(what) = difference(&results, args.commit.as_deref(), environment) {
        format!("is of {what}")
    } else {
        let count = results.measurements.len();
        note(&format!("continuing {name}, which has {count} measurements"), args.json);
        return Ok(Some(results));
    };
    Err(Failure::input(format_args!(
        "{name} {reason} ({}); replace it with --force, or name another folder with --out",
        results.command
    )))
}

/// A difference that forbids to mix the results: another program or another machine.
fn difference(before: &Results, commit: Option<&str>, here: &Environment) -> Option<String> {
    let version = |environment: &Environment| {
        let mut versions = environment.versions.iter();
        versions.find(|each| each.program == "gpreempt").map(|each| each.version.clone())
    };
    let there = &before.environment;
    [
        ("another commit", before.commit.clone(), commit.map(str::to_owned)),
        ("another version of gpreempt", version(there), version(here)),
        ("other devices", Some(there.devices.join("; ")), Some(here.devices.join("; "))),
        ("another driver", there.driver.clone(), here.driver.clone()),
    ]
    .into_iter()
    .find(|(_, old, new)| old != new)
    .map(|(what, old, new)| {
        let shown = |value: Option<String>| value.unwrap_or_else(|| "none named".to_owned());
        format!("{what}: {} there, {} here", shown(old), shown(new))
    })
}

/// The command line as results record it: only the options that decide the results, in one order.
pub(super) fn command(args: &BenchArgs) -> String {
    let suite = quoted(args.suite.as_deref().unwrap_or_default());
    let mut words = vec!["gpreempt bench".to_owned(), suite];
    if args.backend == BenchBackend::Nvidia {
        words.push("--backend nvidia".to_owned());
    }
    for (option, names) in [("--modes", &args.modes), ("--cases", &args.cases)] {
        if !names.is_empty() {
            words.push(format!("{option} {}", quoted(&names.join(","))));
        }
    }
    words.extend(args.repetitions.map(|count| format!("--repetitions {count}")));
    if args.short {
        words.push("--short".to_owned());
    }
    words.extend(args.duration.map(|length| format!("--duration {}s", length.as_secs())));
    words.join(" ")
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,/:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn recorded(words: &[&str]) -> String {
        let parsed = Args::try_parse_from(["gpreempt", "bench"].iter().chain(words)).unwrap();
        let Command::Bench(args) = parsed.command else { panic!("another command") };
        command(&args)
    }

    #[test]
    fn the_options_that_decide_the_results_are_recorded_in_one_order() {
        let words = ["micro", "--short", "--out", "x", "--modes", "hold,default", "--commit", "c"];
        assert_eq!(recorded(&words), "gpreempt bench micro --modes hold,default --short");
    }

    #[test]
    fn a_shell_reads_back_a_quoted_word() {
        assert_eq!(recorded(&["my suite.toml"]), "gpreempt bench 'my suite.toml'");
        for word in ["a b", "it's", "$HOME", "", "a;b", "plain-1.toml", "ä*"] {
            let line = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word, "{line}");
        }
    }

    #[test]
    fn a_second_run_in_the_same_folder_is_refused() {
        let name = format!("gpreempt-bench-lock-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let first = FolderLock::take(&folder).unwrap();
        let refused = FolderLock::take(&folder);
        assert!(matches!(&refused, Err(Failure::Input(what)) if what.contains("another gpreempt")));
        drop(first);
        assert!(FolderLock::take(&folder).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
