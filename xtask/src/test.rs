//! `cargo xtask test`: the one command that runs every test there is.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::args::Syntax;
use crate::cost;
use crate::dist;
use crate::kernel;
use crate::kfd_header;
use crate::kfd_vm;
use crate::kill_loop;
use crate::packages;
use crate::pages;
use crate::process::{cargo, run_to_success};
use crate::python;
use crate::seeds;
use crate::shell;
use crate::slurm;
use crate::step::{self, Outcome, Step};
use crate::supervisor;
use crate::systemd;
use crate::tidy;

const SYNTAX: Syntax =
    Syntax { switches: &["--quick"], options: &["--only", "--outcome"], positionals: &[] };

/// Seeds of the smoke test: enough to meet every kind of fault, few enough to wait for.
const SMOKE_SEEDS: u64 = 1000;

/// When everything has to be over, so that a build server that waits for 90 minutes hears of it.
const ALL_MAX: Duration = Duration::from_secs(75 * 60);
/// What a second try has to leave for the other steps.
const RESERVE: Duration = Duration::from_secs(20 * 60);
/// How long the tests of one program may take: a test that waits for ever costs itself only.
const RUNNER: &str = "timeout --foreground --kill-after=10 600";

/// One of the steps.
struct Test {
    name: &'static str,
    /// Whether `--quick` leaves it out.
    is_slow: bool,
    /// After how many minutes something must be wrong, also where it begins with nothing built.
    minutes_max: u64,
    action: fn() -> Outcome,
}

const fn quick(name: &'static str, minutes_max: u64, action: fn() -> Outcome) -> Test {
    Test { name, is_slow: false, minutes_max, action }
}

const fn slow(name: &'static str, minutes_max: u64, action: fn() -> Outcome) -> Test {
    Test { name, is_slow: true, minutes_max, action }
}

/// Every step, in order.
const TESTS: &[Test] = &[
    quick("tests", 40, cargo_test),
    quick("tidy", 5, || Outcome::of(tidy::check_repository())),
    quick("shell", 5, shell::check),
    quick("vectors", 10, kernel::vectors_step),
    slow("seeds", 15, || Outcome::of(seeds::run(SMOKE_SEEDS, None))),
    slow("cost", 10, cost::check),
    slow("dist", 15, || Outcome::of(dist::make_and_check())),
    slow("slurm", 12, slurm::check),
    slow("systemd", 20, systemd::check),
    slow("kfd-vm", 20, kfd_vm::check),
    slow("kills", 10, kill_loop::check),
    slow("python", 15, python::check),
    slow("pages", 10, pages::check),
];

/// Runs the tests and prints what became of them.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    if let (Some(only), Some(file)) = (args.text_of("--only"), args.text_of("--outcome")) {
        let outcome = (find(only)?.action)();
        std::fs::write(file, outcome.to_line()).context("cannot say how it went")?;
        return Ok(!matches!(outcome, Outcome::Failed(_)));
    }
    let deadline = Instant::now() + ALL_MAX;
    let is_quick = args.has("--quick");
    if !is_quick {
        packages::install_missing();
        kfd_header::fetch();
    }
    let steps = match args.text_of("--only") {
        Some(only) => vec![supervised(find(only)?, deadline)],
        None => TESTS.iter().map(|test| step_of(test, is_quick, deadline)).collect(),
    };
    let summary = step::run(steps);
    println!("\n{summary}");
    Ok(summary.is_good())
}

fn find(name: &str) -> anyhow::Result<&'static Test> {
    TESTS.iter().find(|test| test.name == name).with_context(|| {
        let names: Vec<_> = TESTS.iter().map(|test| test.name).collect();
        format!("there is no step `{name}`; there are {}", names.join(", "))
    })
}

fn step_of(test: &'static Test, is_quick: bool, deadline: Instant) -> Step {
    if is_quick && test.is_slow {
        Step::left_out(test.name, "left out by --quick")
    } else {
        supervised(test, deadline)
    }
}

/// The step in a process of its own. What fails is tried once more, because some of it depends on
/// a machine that does not stand still; the table says so, and how it failed.
fn supervised(test: &'static Test, deadline: Instant) -> Step {
    Step::new(test.name, move || {
        let first = attempt(test, deadline);
        let Outcome::Failed(reason) = &first else { return first };
        if deadline.saturating_duration_since(Instant::now()) < RESERVE {
            return first;
        }
        eprintln!("== {} once more, because it FAILED: {reason}", test.name);
        match attempt(test, deadline - RESERVE) {
            Outcome::Passed => Outcome::PassedAgain(format!("when tried again; before: {reason}")),
            Outcome::Failed(again) => Outcome::Failed(format!("twice: {reason}; {again}")),
            Outcome::Skipped(why) => Outcome::Failed(format!("{reason}; then skipped: {why}")),
            again @ Outcome::PassedAgain(_) => again,
        }
    })
}

fn attempt(test: &Test, deadline: Instant) -> Outcome {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Outcome::Failed("no time was left for it".to_owned());
    }
    let limit = left.min(Duration::from_secs(test.minutes_max * 60));
    let file = std::env::temp_dir().join(format!("gpreempt-step-{}", std::process::id()));
    let outcome = supervisor::run(&mut again(test.name, &file), &file, limit);
    let _ = std::fs::remove_file(file);
    outcome
}

/// This very program, also if it was built anew meanwhile, for one step.
fn again(name: &str, file: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["test", "--only", name, "--outcome"]).arg(file);
    command
}

fn cargo_test() -> Outcome {
    let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
    // A test that fails must fail again, so properties draw from a fixed seed here. Set another one
    // to look further.
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        tests.env("PROPTEST_RNG_SEED", "1");
    }
    tests.args(["--config", &format!("target.'cfg(unix)'.runner = '{RUNNER}'")]);
    if let Some(header) = kfd_header::find() {
        tests.env(kfd_header::VARIABLE, header);
    }
    Outcome::of(run_to_success(&mut tests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_run_names_what_it_leaves_out() {
        let deadline = Instant::now();
        let slow = TESTS.iter().filter(|test| test.is_slow);
        let summary = step::run(slow.map(|test| step_of(test, true, deadline)).collect());
        let summary = summary.to_string();
        assert!(summary.ends_with("0 passed, 0 failed, 9 skipped"), "{summary}");
    }

    #[test]
    fn steps_are_found_by_their_names() {
        for test in TESTS {
            assert_eq!(find(test.name).unwrap().name, test.name);
        }
        let error = find("tset").err().unwrap().to_string();
        assert!(error.starts_with("there is no step `tset`; there are tests, tidy"), "{error}");
    }
}
