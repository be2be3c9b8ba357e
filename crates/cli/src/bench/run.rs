//! Runs a suite.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::{self, Backend, Ended};
use gpreempt_bench::nvidia::Nvidia;
use gpreempt_bench::plan::{self, Step, Wish, spoken};
use gpreempt_bench::results::{CaseInfo, Environment, ModeInfo, Results, SCHEMA, rfc3339};
use gpreempt_bench::suite::{Case, Suite};

use super::{command::command, lock::Lock, resume::resumed, watch::Keeper};
use super::{dry_run, long, page, table};
use crate::args::{BenchArgs, BenchBackend};
use crate::failure::Failure;
use crate::output;
use crate::stop::Stop;
use crate::write_file::write_whole;

pub(super) fn main(args: &BenchArgs) -> Result<(), Failure> {
    // PANIC: without another command clap asks for a suite.
    let suite = super::find(args.suite.as_deref().expect("a suite"))?;
    let stop = Stop::on_signals_impatient()?;
    if let Some(length) = args.duration {
        return long::main(args, &suite, length, &stop);
    }
    let mut backend: Box<dyn Backend> = match args.backend {
        BenchBackend::Emulated => Box::new(Emulated::new(stop.flag())),
        BenchBackend::Nvidia => Box::new(Nvidia::new(stop.flag()).map_err(Failure::run)?),
    };
    let wish = wish(args, &suite, backend.name());
    let cases = plan::cases(&suite, &wish).map_err(Failure::input)?;
    let wished = match (args.modes.is_empty(), args.backend) {
        (false, _) => &args.modes,
        (true, BenchBackend::Emulated) => &suite.emulated_modes,
        (true, BenchBackend::Nvidia) if args.short && !suite.nvidia_modes_short.is_empty() => {
            &suite.nvidia_modes_short
        }
        (true, BenchBackend::Nvidia) => &suite.nvidia_modes,
    };
    let known = backend.modes();
    let all: Vec<String> = known.iter().map(|mode| mode.name.clone()).collect();
    let wished = if wished.is_empty() { &all } else { wished };
    let modes = plan::modes(wished, &known).map_err(|error| with_other(error, wished, args))?;
    let steps = plan::steps(&cases, &modes, &wish);
    if steps.is_empty() {
        return Err(Failure::input(
            "nothing would be measured: the cases are for other modes than those of --modes; see \
             `modes` in the suite",
        ));
    }
    let estimate: Duration = steps.iter().map(|step| backend.estimate(step)).sum();
    if args.dry_run {
        return dry_run::print(&steps, backend.as_ref(), args.json);
    }
    refuse_if_missing(&suite, backend.as_mut(), &steps)?;

    let folder = folder(args, &suite);
    let path = folder.join("result.json");
    make(&folder)?;
    let _lock = Lock::take(&folder)?;
    let environment = backend.environment();
    let mut results = match resumed(&path, args, &suite, &environment)? {
        Some(results) => results,
        None => fresh(args, &suite, environment, &cases, &modes, &wish),
    };
    note(&format!("{} measurements, about {}", steps.len(), spoken(estimate)), args.json);
    let mut keeper = Keeper::new(path.clone(), stop, args.json);
    let ended = engine::run(&suite, &steps, backend.as_mut(), &mut results, &mut keeper);
    drop(keeper);
    // Whatever the backend has started is ended before anything is said.
    drop(backend);
    if ended.map_err(Failure::run)? == Ended::Stopped {
        return Err(stopped(&results, &path)?);
    }
    results.finished = Some(now());
    write_whole(&path, results.to_text().as_bytes()).map_err(Failure::run)?;
    finish(args, &results, &path)
}

/// What to say after Ctrl-C.
fn stopped(results: &Results, path: &Path) -> Result<Failure, Failure> {
    let count = results.measurements.len();
    if count == 0 {
        return Ok(Failure::run("stopped before the first measurement was done; nothing is kept"));
    }
    page::write_beside(results, path)?;
    Ok(Failure::run(format_args!(
        "stopped; {count} measurements are kept in {}, and the same command goes on",
        path.display()
    )))
}

/// A mode that only another backend has is named as such.
fn with_other(error: String, wished: &[String], args: &BenchArgs) -> Failure {
    let known = super::list::all_modes();
    let is_known = wished.iter().all(|name| known.iter().any(|mode| mode.name == *name));
    let other = match args.backend {
        BenchBackend::Emulated => "nvidia",
        BenchBackend::Nvidia => "emulated",
    };
    if is_known {
        return Failure::input(format_args!("{error}; the others are for --backend {other}"));
    }
    Failure::input(error)
}

fn wish(args: &BenchArgs, suite: &Suite, backend: &'static str) -> Wish {
    let usual = if args.short { suite.repetitions_short } else { suite.repetitions };
    Wish {
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
        "{} cannot be measured with {} here, so nothing was started; missing: {}",
        suite.name,
        backend.name(),
        missing.join("; ")
    )))
}

pub(super) fn folder(args: &BenchArgs, suite: &Suite) -> PathBuf {
    let backend = match args.backend {
        BenchBackend::Emulated => "emulated",
        BenchBackend::Nvidia => "nvidia",
    };
    args.out.clone().unwrap_or_else(|| format!("bench-{}-{backend}", suite.name).into())
}

pub(super) fn make(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::input(format_args!("cannot make {}: {error}", folder.display())))
}

fn fresh(
    args: &BenchArgs,
    suite: &Suite,
    environment: Environment,
    cases: &[&Case],
    modes: &[ModeInfo],
    wish: &Wish,
) -> Results {
    let case = |case: &&Case| CaseInfo {
        name: case.name.clone(),
        title: case.title.clone(),
        loads: engine::load_lines(case),
        point: case.point.clone(),
    };
    Results {
        schema: SCHEMA,
        suite: suite.info(),
        backend: wish.backend.to_owned(),
        command: command(args),
        commit: args.commit.clone(),
        environment,
        started: now(),
        finished: None,
        repetitions: wish.repetitions,
        short: wish.is_short,
        modes: modes.to_vec(),
        cases: cases.iter().map(case).collect(),
        measurements: Vec::new(),
        summary: Vec::new(),
        checks: Vec::new(),
    }
}

pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    rfc3339(since.map_or(0, |since| since.as_secs()))
}

/// Something to know on the way; programs do not want to.
pub(super) fn note(text: &str, is_json: bool) {
    use std::io::Write;
    if !is_json {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

pub(super) fn finish(args: &BenchArgs, results: &Results, path: &Path) -> Result<(), Failure> {
    let page = page::write_beside(results, path)?;
    if args.json {
        output::print(&results.to_text())?;
    } else {
        output::print(&format!(
            "{}\nThe results are in {}, and the page that shows them is {}.\n",
            table::text(results),
            path.display(),
            page.display()
        ))?;
    }
    verdict(results)
}

/// Fails unless everything was measured and every line holds.
fn verdict(results: &Results) -> Result<(), Failure> {
    let failed = results.measurements.iter().filter(|each| !each.is_ok()).count();
    let wrong = results.checks.iter().filter(|check| !check.passed).count();
    let failed = match failed {
        0 => None,
        1 => Some("one measurement failed".to_owned()),
        count => Some(format!("{count} measurements failed")),
    };
    let wrong = match wrong {
        0 => None,
        1 => Some("one line does not hold".to_owned()),
        count => Some(format!("{count} lines do not hold")),
    };
    let all: Vec<String> = failed.into_iter().chain(wrong).collect();
    if all.is_empty() { Ok(()) } else { Err(Failure::run(all.join(", "))) }
}
