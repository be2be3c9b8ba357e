//! Runs a suite.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::{self, Backend, Ended};
use gpreempt_bench::nvidia::Nvidia;
use gpreempt_bench::plan::{self, Step, Wish, spoken};
use gpreempt_bench::results::{CaseInfo, ModeInfo, Results, SCHEMA, rfc3339};
use gpreempt_bench::suite::{Case, Suite};

use super::{long, page, table, watch::Keeper};
use crate::args::{BenchArgs, BenchBackend};
use crate::failure::Failure;
use crate::output;
use crate::stop::Stop;
use crate::write_file::write_whole;

pub(super) fn main(args: &BenchArgs) -> Result<(), Failure> {
    // PANIC: without another command clap asks for a suite.
    let suite = super::find(args.suite.as_deref().expect("a suite"))?;
    let stop = Stop::on_signals()?;
    if let Some(length) = args.duration {
        return long::main(args, &suite, length, &stop);
    }
    let mut backend: Box<dyn Backend> = match args.backend {
        BenchBackend::Emulated => Box::new(Emulated),
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
    plan::check_mode_names(&suite, &super::list::all_modes()?).map_err(Failure::input)?;
    let steps = plan::steps(&cases, &modes, &wish);
    if steps.is_empty() {
        return Err(Failure::input(
            "nothing would be measured: the cases are for other modes than those of --modes; see \
             `modes` in the suite",
        ));
    }
    let estimate: Duration = steps.iter().map(|step| backend.estimate(step)).sum();
    if args.dry_run {
        return output::print(&planned(&steps, backend.as_ref()));
    }
    refuse_if_missing(&suite, backend.as_mut(), &steps)?;

    let folder = folder(args, &suite);
    let path = folder.join("result.json");
    let mut results = match resumed(&path, args, &suite)? {
        Some(results) => results,
        None => {
            make(&folder)?;
            fresh(args, &suite, backend.as_mut(), &cases, &modes, &wish)
        }
    };
    note(&format!("{} measurements, about {}", steps.len(), spoken(estimate)), args.json);
    let mut keeper = Keeper::new(path.clone(), stop);
    let ended = engine::run(&suite, &steps, backend.as_mut(), &mut results, &mut keeper);
    drop(keeper);
    // Whatever the backend has started is ended before anything is said.
    drop(backend);
    if ended.map_err(Failure::run)? == Ended::Stopped {
        page::write_beside(&results, &path)?;
        return Err(Failure::run(format_args!(
            "stopped; {} measurements are kept in {}, and the same command goes on",
            results.measurements.len(),
            path.display()
        )));
    }
    results.finished = Some(now());
    write_whole(&path, results.to_text().as_bytes()).map_err(Failure::run)?;
    finish(args, &results, &path)
}

/// A mode that only another backend has is named as such.
fn with_other(error: String, wished: &[String], args: &BenchArgs) -> Failure {
    let known = super::list::all_modes().unwrap_or_default();
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

/// A line for each case with its modes and its time, and the sum.
fn planned(steps: &[Step<'_>], backend: &dyn Backend) -> String {
    let mut text = String::new();
    let time = |steps: &[Step<'_>]| spoken(steps.iter().map(|step| backend.estimate(step)).sum());
    for of_case in steps.chunk_by(|one, other| one.case.name == other.case.name) {
        let first = &of_case[0];
        let modes: Vec<&str> = of_case
            .iter()
            .filter(|step| step.repetition == first.repetition)
            .map(|step| step.mode.name.as_str())
            .collect();
        let repetitions = of_case.len() / modes.len().max(1);
        text.push_str(&format!(
            "{}: {repetitions} times {}, about {}\n",
            first.case.name,
            modes.join(", "),
            time(of_case)
        ));
    }
    text.push_str(&format!("{} measurements, about {}\n", steps.len(), time(steps)));
    text
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

/// What an earlier run of the same command left.
fn resumed(path: &Path, args: &BenchArgs, suite: &Suite) -> Result<Option<Results>, Failure> {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::input(format_args!("cannot read {name}: {error}"))),
    };
    let results = Results::read(&name, &text).map_err(Failure::input)?;
    let reason = if results.finished.is_some() {
        "is finished"
    } else if results.suite.digest != suite.digest {
        "is of another text of the suite"
    } else if results.command != command(args) {
        "is of another command"
    } else {
        let count = results.measurements.len();
        note(&format!("going on with {name}, which has {count} measurements"), args.json);
        return Ok(Some(results));
    };
    Err(Failure::input(format_args!(
        "{name} {reason} ({}); name another folder with --out, or remove it",
        results.command
    )))
}

fn fresh(
    args: &BenchArgs,
    suite: &Suite,
    backend: &mut dyn Backend,
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
        backend: backend.name().to_owned(),
        command: command(args),
        commit: args.commit.clone(),
        environment: backend.environment(),
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

/// What was typed, in one order and with what decides the results alone.
pub(super) fn command(args: &BenchArgs) -> String {
    let mut words = vec!["gpreempt bench".to_owned(), args.suite.clone().unwrap_or_default()];
    if args.backend == BenchBackend::Nvidia {
        words.push("--backend nvidia".to_owned());
    }
    for (option, names) in [("--modes", &args.modes), ("--cases", &args.cases)] {
        if !names.is_empty() {
            words.push(format!("{option} {}", names.join(",")));
        }
    }
    words.extend(args.repetitions.map(|count| format!("--repetitions {count}")));
    if args.short {
        words.push("--short".to_owned());
    }
    words.extend(args.duration.map(|length| format!("--duration {}s", length.as_secs())));
    words.join(" ")
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
    let failed = results.checks.iter().filter(|check| !check.passed).count();
    match failed {
        0 => Ok(()),
        1 => Err(Failure::run("one line does not hold")),
        count => Err(Failure::run(format_args!("{count} lines do not hold"))),
    }
}
