//! Runs a suite: chooses backend, cases and modes, measures, and writes results and page.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::{self, Backend, Ended};
use gpreempt_bench::nvidia::Nvidia;
use gpreempt_bench::plan::{self, RunSelection, Step, format_duration};
use gpreempt_bench::results::{Results, now};
use gpreempt_bench::suite::Suite;

use super::folder::{FolderLock, ProgressWriter, command, resumed};
use super::plan::{all_modes, dry_run, find_suite};
use super::{files, stability, table};
use crate::args::{BenchArgs, BenchBackend};
use crate::failure::Failure;
use crate::output;
use crate::stop::Stop;
use crate::write_file::write_whole;

pub(super) fn main(args: &BenchArgs) -> Result<(), Failure> {
    // PANIC: without a subcommand clap requires a suite.
    let suite = find_suite(args.suite.as_deref().expect("a suite"))?;
    let stop = Stop::on_signals_impatient()?;
    if let Some(length) = args.duration {
        return stability::main(args, &suite, length, &stop);
    }
    let mut backend: Box<dyn Backend> = match args.backend {
        BenchBackend::Emulated => Box::new(Emulated::new(stop.flag())),
        BenchBackend::Nvidia => Box::new(Nvidia::new(stop.flag()).map_err(Failure::run)?),
    };
    let selection = selection(args, &suite, backend.name());
    let cases = plan::cases(&suite, &selection).map_err(Failure::input)?;
    let wanted = match (args.modes.is_empty(), args.backend) {
        (false, _) => &args.modes,
        (true, BenchBackend::Emulated) => &suite.emulated_modes,
        (true, BenchBackend::Nvidia) if args.short && !suite.nvidia_modes_short.is_empty() => {
            &suite.nvidia_modes_short
        }
        (true, BenchBackend::Nvidia) => &suite.nvidia_modes,
    };
    let known = backend.modes();
    let all: Vec<String> = known.iter().map(|mode| mode.name.clone()).collect();
    let wanted = if wanted.is_empty() { &all } else { wanted };
    let modes = plan::modes(wanted, &known).map_err(|error| with_other(error, wanted, args))?;
    let steps = plan::steps(&cases, &modes, &selection);
    if steps.is_empty() {
        return Err(Failure::input(
            "there is nothing to measure: no case runs in a mode of --modes; see `modes` in the \
             suite",
        ));
    }
    let estimate: Duration = steps.iter().map(|step| backend.estimate(step)).sum();
    if args.dry_run {
        return dry_run(&steps, backend.as_ref(), args.json);
    }
    refuse_if_missing(&suite, backend.as_mut(), &steps)?;

    let folder = folder(args, &suite);
    let path = folder.join("result.json");
    create(&folder)?;
    let _lock = FolderLock::take(&folder)?;
    let environment = backend.environment();
    let earlier = match args.force {
        true => None,
        false => resumed(&path, args, &suite, &environment)?,
    };
    let mut results = match earlier {
        Some(results) => results,
        None => Results {
            commit: args.commit.clone(),
            ..engine::fresh(&suite, command(args), environment, &cases, &modes, &selection)
        },
    };
    let count = output::counted(steps.len(), "measurement", "measurements");
    note(&format!("{count}, about {}", format_duration(estimate)), args.json);
    let mut writer = ProgressWriter::new(path.clone(), stop, args.json);
    let ended = engine::run(&suite, &steps, backend.as_mut(), &mut results, &mut writer);
    drop(writer);
    // Processes of the backend end before anything is printed.
    drop(backend);
    if ended.map_err(Failure::run)? == Ended::Stopped {
        return Err(stopped(&results, &path)?);
    }
    results.finished = Some(now());
    write_whole(&path, results.to_text().as_bytes()).map_err(Failure::run)?;
    finish(args, &results, &path)
}

/// The message after Ctrl-C.
fn stopped(results: &Results, path: &Path) -> Result<Failure, Failure> {
    let count = results.measurements.len();
    if count == 0 {
        return Ok(Failure::run(
            "stopped before the first measurement was done; there are no results",
        ));
    }
    files::write_page_beside(results, path)?;
    Ok(Failure::run(format_args!(
        "stopped; {count} measurements are in {}, and the same command continues",
        path.display()
    )))
}

/// Adds to the error which backend has the modes, if the other one has.
fn with_other(error: String, wanted: &[String], args: &BenchArgs) -> Failure {
    let known = all_modes();
    let is_known = wanted.iter().all(|name| known.iter().any(|mode| mode.name == *name));
    let other = match args.backend {
        BenchBackend::Emulated => "nvidia",
        BenchBackend::Nvidia => "emulated",
    };
    if is_known {
        return Failure::input(format_args!("{error}; the others are for --backend {other}"));
    }
    Failure::input(error)
}

fn selection(args: &BenchArgs, suite: &Suite, backend: &'static str) -> RunSelection {
    let usual = if args.short { suite.repetitions_short } else { suite.repetitions };
    RunSelection {
        backend,
        repetitions: args.repetitions.unwrap_or(usual),
        is_short: args.short,
        cases: args.cases.clone(),
    }
}

fn refuse_if_missing(
    suite: &Suite,
    backend: &mut dyn Backend,
    steps: &[Step<'_>],
) -> Result<(), Failure> {
    let missing = backend.missing(steps);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::input(format_args!(
        "{} cannot be measured with {} on this machine, so nothing was started; missing: {}",
        suite.name,
        backend.name(),
        missing.join("; ")
    )))
}

pub(super) fn folder(args: &BenchArgs, suite: &Suite) -> PathBuf {
    let kind = match args.backend {
        _ if args.duration.is_some() => "stability",
        BenchBackend::Emulated => "emulated",
        BenchBackend::Nvidia => "nvidia",
    };
    args.out.clone().unwrap_or_else(|| format!("bench-{}-{kind}", suite.name).into())
}

pub(super) fn create(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::input(format_args!("cannot create {}: {error}", folder.display()))
    })
}

/// A note for people: not printed with `--json`.
pub(super) fn note(text: &str, is_json: bool) {
    if !is_json {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

pub(super) fn finish(args: &BenchArgs, results: &Results, path: &Path) -> Result<(), Failure> {
    let page = files::write_page_beside(results, path)?;
    if args.json {
        output::print(&results.to_text())?;
    } else {
        output::print(&format!(
            "{}\nThe results are in {}, their page is {}.\n",
            table::text(results),
            path.display(),
            page.display()
        ))?;
    }
    check_success(results)
}

/// Fails unless every measurement succeeded and every check passed.
fn check_success(results: &Results) -> Result<(), Failure> {
    let failed = results.measurements.iter().filter(|each| !each.is_ok()).count();
    let wrong = results.checks.iter().filter(|check| !check.passed).count();
    let failed = match failed {
        0 => None,
        1 => Some("one measurement failed".to_owned()),
        count => Some(format!("{count} measurements failed")),
    };
    let wrong = match wrong {
        0 => None,
        1 => Some("one check failed".to_owned()),
        count => Some(format!("{count} checks failed")),
    };
    let all: Vec<String> = failed.into_iter().chain(wrong).collect();
    if all.is_empty() { Ok(()) } else { Err(Failure::run(all.join(", "))) }
}
