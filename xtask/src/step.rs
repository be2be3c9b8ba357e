//! The steps of a test run: each in a process of its own with a time limit, and the table of their
//! outcomes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::Context;
use gpreempt_device::process::{ProcessInfo, all_pids};
use rustix::process::{Signal, WaitOptions, getpid, wait};

use crate::process::wait_for;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// In the second attempt; the text says why the first one failed.
    PassedAgain(String),
    Failed(String),
    /// Why it was not run.
    Skipped(String),
}

impl Outcome {
    /// What the result of a step that was run means.
    pub(crate) fn of(result: anyhow::Result<()>) -> Self {
        result.map_or_else(|error| Self::Failed(format!("{error:#}")), |()| Self::Passed)
    }

    /// The line by which the process of a step reports its outcome.
    pub(crate) fn to_line(&self) -> String {
        format!("{} {}", self.name(), self.reason())
    }

    /// The outcome that a line reports.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (name, reason) = line.split_once(' ')?;
        match name {
            "ok" if reason.is_empty() => Some(Self::Passed),
            "ok" => Some(Self::PassedAgain(reason.to_owned())),
            "FAILED" => Some(Self::Failed(reason.to_owned())),
            "skipped" => Some(Self::Skipped(reason.to_owned())),
            _ => None,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Passed | Self::PassedAgain(_) => "ok",
            Self::Failed(_) => "FAILED",
            Self::Skipped(_) => "skipped",
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::PassedAgain(reason) | Self::Failed(reason) | Self::Skipped(reason) => reason,
        }
    }
}

pub(crate) struct Step {
    name: &'static str,
    action: Box<dyn FnOnce() -> Outcome>,
}

impl Step {
    pub(crate) fn new(name: &'static str, action: impl FnOnce() -> Outcome + 'static) -> Self {
        Self { name, action: Box::new(action) }
    }

    /// A step that is left out on purpose, for `reason`.
    pub(crate) fn left_out(name: &'static str, reason: &'static str) -> Self {
        Self::new(name, move || Outcome::Skipped(reason.to_owned()))
    }
}

#[derive(Debug)]
pub(crate) struct Summary {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    outcome: Outcome,
    time: Duration,
}

/// Runs all `steps`, also those after a failure: one run should find every problem.
pub(crate) fn run(steps: Vec<Step>) -> Summary {
    let mut rows = Vec::new();
    for Step { name, action } in steps {
        eprintln!("== {name}");
        let start = Instant::now();
        let outcome = action();
        rows.push(Row { name, outcome, time: start.elapsed() });
    }
    Summary { rows }
}

impl Summary {
    pub(crate) fn is_good(&self) -> bool {
        self.count("FAILED") == 0
    }

    fn count(&self, outcome: &str) -> usize {
        self.rows.iter().filter(|row| row.outcome.name() == outcome).count()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<9} {:<8} {:>8}", "step", "result", "time")?;
        for Row { name, outcome, time } in &self.rows {
            let time = format!("{:.1} s", time.as_secs_f64());
            let row = format!("{name:<9} {:<8} {time:>8}  {}", outcome.name(), outcome.reason());
            writeln!(f, "{}", row.trim_end())?;
        }
        let [passed, failed, skipped] = ["ok", "FAILED", "skipped"].map(|name| self.count(name));
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The pause before processes that were ended are looked for again.
const LOOK: Duration = Duration::from_millis(100);
/// How often processes that a step left behind are ended; each may have started another.
const ROUNDS_MAX: u32 = 100;

/// Runs `command`, which writes its outcome into `file`, for `limit` at the most. Whatever it
/// started ends with it: a program that still runs would disturb the next step, and keep the
/// output of this process open.
pub(crate) fn run_supervised(command: &mut Command, file: &Path, limit: Duration) -> Outcome {
    match supervise(command, file, limit) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn supervise(command: &mut Command, file: &Path, limit: Duration) -> anyhow::Result<Outcome> {
    // Descendants that lose their parent become children of this process, so that they are found.
    rustix::process::set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
    // Earlier descendants and an earlier outcome do not belong to this step.
    let before: Vec<u32> = descendants(&[]).into_iter().map(|process| process.key.pid).collect();
    let _ = fs::remove_file(file);
    let mut child = command.spawn().context("cannot start the step")?;
    let ended = wait_for(&mut child, limit).context("cannot wait for the step")?;
    if ended.is_none() {
        eprintln!("what was running when the time was up:");
        for process in descendants(&before) {
            eprintln!("  {}", describe(&process));
        }
    }
    end_descendants(&before);
    let Some(status) = ended else {
        return Ok(Outcome::Failed(format!("not over after {} s", limit.as_secs())));
    };
    let said = fs::read_to_string(file).unwrap_or_default();
    Ok(match Outcome::from_line(&said) {
        Some(outcome @ Outcome::Failed(_)) => outcome,
        Some(outcome) if status.success() => outcome,
        _ => Outcome::Failed(format!("it ended with {status} and did not say why")),
    })
}

fn end_descendants(before: &[u32]) {
    for _ in 0..ROUNDS_MAX {
        // All that have ended are reaped.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let left = descendants(before);
        if left.is_empty() {
            return;
        }
        for process in left {
            eprintln!("the step left it behind, and it has to end: {}", describe(&process));
            gpreempt_stage::signal(process.key.pid, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
    eprintln!("some of them cannot be ended");
}

/// A process, what it waits for in the kernel, and its command line.
fn describe(process: &ProcessInfo) -> String {
    let pid = process.key.pid;
    let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
    let command = text("cmdline").unwrap_or_default().replace('\0', " ");
    let place = text("wchan").unwrap_or_default();
    format!("{pid} {} {}", place.trim(), command.trim())
}

/// The descendants of this process that still run, but for those in `before` and theirs.
fn descendants(before: &[u32]) -> Vec<ProcessInfo> {
    let pids = all_pids().unwrap_or_default().into_iter().filter(|pid| !before.contains(pid));
    let mut others: Vec<ProcessInfo> = pids.filter_map(|pid| ProcessInfo::read(pid).ok()).collect();
    let mut family = vec![std::process::id()];
    let mut found = Vec::new();
    loop {
        let is_related = |process: &ProcessInfo| family.contains(&process.parent);
        let (related, rest) = others.into_iter().partition::<Vec<_>, _>(is_related);
        if related.is_empty() {
            // Zombies only have to be reaped.
            found.retain(|process: &ProcessInfo| !process.zombie);
            return found;
        }
        family.extend(related.iter().map(|process| process.key.pid));
        found.extend(related);
        others = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_failure_does_not_keep_later_steps_from_running() {
        let ran = Rc::new(Cell::new(false));
        let later = Rc::clone(&ran);
        let summary = run(vec![
            Step::new("first", || Outcome::of(Err(anyhow::anyhow!("it broke")))),
            Step::new("second", move || {
                later.set(true);
                Outcome::Passed
            }),
        ]);
        assert!(ran.get());
        assert!(!summary.is_good());
    }

    #[test]
    fn an_outcome_survives_its_line() {
        for outcome in [
            Outcome::Passed,
            Outcome::PassedAgain("at first it broke".to_owned()),
            Outcome::Failed("it broke".to_owned()),
            Outcome::Skipped("there is no GPU".to_owned()),
        ] {
            assert_eq!(Outcome::from_line(&outcome.to_line()), Some(outcome));
        }
        for nonsense in ["", "ok", "perhaps so"] {
            assert_eq!(Outcome::from_line(nonsense), None);
        }
    }

    #[test]
    fn skipped_steps_are_counted_and_are_no_failure() {
        let summary = run(vec![
            Step::new("tests", || Outcome::Passed),
            Step::left_out("cost", "valgrind is missing"),
        ]);
        assert!(summary.is_good());
        assert!(summary.to_string().ends_with("1 passed, 0 failed, 1 skipped"));
    }

    #[test]
    fn the_table_says_what_happened_and_why() {
        let row = |name, outcome, ms| Row { name, outcome, time: Duration::from_millis(ms) };
        let summary = Summary {
            rows: vec![
                row("tests", Outcome::Passed, 12_340),
                row("seeds", Outcome::Failed("seed 7 broke".to_owned()), 400),
                row("cost", Outcome::Skipped("no valgrind".to_owned()), 0),
            ],
        };
        let table = "\
step      result       time
tests     ok         12.3 s
seeds     FAILED      0.4 s  seed 7 broke
cost      skipped     0.0 s  no valgrind
1 passed, 1 failed, 1 skipped";
        assert_eq!(summary.to_string(), table);
    }

    /// Supervises in a process of its own: everything that this one started would be ended, the
    /// programs of other tests too. The answer is the outcome, and what it said meanwhile.
    fn supervised(script: &str) -> String {
        let mut child = Command::new("/proc/self/exe");
        child.args(["step::tests::in_a_process_of_its_own", "--exact", "--ignored"]);
        let output = child.arg("--nocapture").env("SCRIPT", script).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    #[test]
    #[ignore = "run by the other tests"]
    fn in_a_process_of_its_own() {
        let script = std::env::var("SCRIPT").unwrap();
        let file = std::env::temp_dir().join(format!("gpreempt-supervised-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("FILE", &file);
        let outcome = run_supervised(&mut command, &file, Duration::from_secs(2));
        let _ = fs::remove_file(file);
        println!("outcome: {}", outcome.to_line());
    }

    #[test]
    fn a_step_says_how_it_went() {
        let said = supervised("echo -n 'skipped there is no GPU' >$FILE");
        assert!(said.contains("outcome: skipped there is no GPU"), "{said}");
        let said = supervised("exit 3");
        assert!(said.contains("outcome: FAILED it ended with exit status: 3"), "{said}");
    }

    #[test]
    fn a_step_that_does_not_end_is_ended_with_all_it_started() {
        let said = supervised("setsid sleep 61.7 & sleep 61.8");
        assert!(said.contains("outcome: FAILED not over after 2 s"), "{said}");
        assert!(said.contains("sleep 61.7") && said.contains("sleep 61.8"), "{said}");
        assert_gone("61.7");
    }

    #[test]
    fn processes_that_a_step_left_are_ended() {
        let said = supervised("(setsid sleep 62.7 &) ; echo -n 'ok ' >$FILE");
        assert!(said.contains("outcome: ok"), "{said}");
        assert!(said.contains("left it behind"), "{said}");
        assert_gone("62.7");
    }

    fn assert_gone(argument: &str) {
        let commands = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        let left: Vec<_> =
            commands.filter(|line| line.starts_with("sleep") && line.contains(argument)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
