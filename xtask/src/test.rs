//! `cargo xtask test` runs every test; `cargo xtask seeds` random simulations; `cargo xtask hw` the
//! tests on hardware.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::process::{build_release, cargo, repository_root, run_to_success};
use crate::step::{Outcome, Step};
use crate::{
    attack, ci, container, cost, deployment, dist, documents, examples, headers, kernel, kfd_vm,
    kill_loop, packages, pages, python, step, tidy,
};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Leave out the steps that take long.
    #[arg(long)]
    quick: bool,
    /// Run one step only.
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
    /// Run the step in this process and write its outcome into a file.
    #[arg(long, requires = "only", hide = true)]
    outcome: Option<PathBuf>,
}

/// Seeds of the smoke test: enough to meet every kind of fault, few enough to wait for.
const SMOKE_SEEDS: u64 = 1000;

/// When everything has to be over, so that a build server that waits for 90 minutes hears of it.
const ALL_MAX: Duration = Duration::from_secs(75 * 60);
/// What a second try has to leave for the other steps.
const RESERVE: Duration = Duration::from_secs(20 * 60);
/// How long the tests of one program may take: a test that waits for ever costs itself only.
const RUNNER: &str = "timeout --foreground --kill-after=10 600";

struct Test {
    name: &'static str,
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

const TESTS: &[Test] = &[
    quick("tests", 40, cargo_test),
    quick("tidy", 5, || Outcome::of(tidy::check_repository())),
    quick("shell", 5, ci::check_scripts),
    quick("vectors", 10, kernel::vectors_step),
    slow("seeds", 15, || Outcome::of(simulate(SMOKE_SEEDS, None))),
    slow("cost", 10, cost::check),
    slow("dist", 15, || Outcome::of(dist::main(dist::CHECKED))),
    slow("documents", 10, documents::check),
    slow("slurm", 12, deployment::check_slurm),
    slow("systemd", 20, deployment::check_systemd),
    slow("container", 15, container::check),
    slow("kfd-vm", 20, kfd_vm::check),
    slow("kills", 10, kill_loop::check),
    slow("attacks", 12, attack::check),
    slow("python", 15, python::check),
    slow("examples", 15, examples::check_in_tests),
    slow("pages", 10, || pages::check(None, false)),
];

pub(crate) fn main(args: &TestArgs) -> anyhow::Result<bool> {
    if let (Some(only), Some(file)) = (&args.only, &args.outcome) {
        let outcome = (find(only)?.action)();
        std::fs::write(file, outcome.to_line()).context("cannot say how it went")?;
        return Ok(!matches!(outcome, Outcome::Failed(_)));
    }
    let deadline = Instant::now() + ALL_MAX;
    let is_quick = args.quick;
    if !is_quick {
        packages::install_missing();
        headers::fetch_kfd();
    }
    let steps = match &args.only {
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
/// a machine that does not stall; the table says so, and how it failed.
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
    let outcome = step::run_supervised(&mut again(test.name, &file), &file, limit);
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
    if let Some(header) = headers::find_kfd() {
        tests.env(headers::KFD_VARIABLE, header);
    }
    Outcome::of(run_to_success(&mut tests))
}

/// Simulates `count` seeds, the first of them `start`; a broken rule is an error.
///
/// In release mode, because a seed is worth more than a debug assertion: overflow is checked there
/// too, and ten times as many seeds fit into a minute.
pub(crate) fn simulate(count: u64, start: Option<u64>) -> anyhow::Result<()> {
    let program = build_release(&["--package", "gpreempt-cli", "--bin", "gpreempt"])?;
    run_to_success(&mut simulation(&program, count, start))?;
    // These take longer, because moves of memory do.
    let count = count.div_ceil(10);
    run_to_success(simulation(&program, count, start).arg("--with-memory"))
}

fn simulation(program: &Path, count: u64, start: Option<u64>) -> Command {
    let mut command = Command::new(program);
    command.args(["sim", "--seeds"]).arg(count.to_string());
    if let Some(start) = start {
        command.arg("--start").arg(start.to_string());
    }
    command
}

pub(crate) fn hardware() -> anyhow::Result<bool> {
    let cli = build_release(&["--package", "gpreempt-cli", "--bin", "gpreempt"])?;
    build_release(&["--package", "gpreempt-bench", "--bin", "gpreempt-load"])?;
    let folder = cli.parent().unwrap_or_else(|| Path::new("."));
    if !Path::new("/dev/nvidiactl").exists() {
        println!("SKIPPED: no NVIDIA driver here. Take hw/hardware_test.py and the binaries in");
        println!("{} to a machine with a GPU and Python 3, and run", folder.display());
        println!("    python3 hardware_test.py --bin FOLDER --out hardware.json --commit COMMIT");
        return Ok(true);
    }
    let script = repository_root().join("hw/hardware_test.py");
    let mut command = Command::new("python3");
    command.arg(script).arg("--bin").arg(folder);
    run_to_success(&mut command)?;
    Ok(true)
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
        assert!(summary.ends_with("0 passed, 0 failed, 13 skipped"), "{summary}");
    }

    #[test]
    fn steps_are_found_by_their_names() {
        for test in TESTS {
            assert_eq!(find(test.name).unwrap().name, test.name);
        }
        let error = find("tset").err().unwrap().to_string();
        assert!(error.starts_with("there is no step `tset`; there are tests, tidy"), "{error}");
    }

    #[test]
    fn the_first_seed_is_named_only_when_it_was_given() {
        let args = |command: &Command| {
            command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let program = Path::new("gpreempt");
        assert_eq!(args(&simulation(program, 1000, None)), ["sim", "--seeds", "1000"]);
        let from_seven = args(&simulation(program, 10, Some(7)));
        assert_eq!(from_seven, ["sim", "--seeds", "10", "--start", "7"]);
    }
}
