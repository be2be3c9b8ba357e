//! Steps that run one after the other, and the table that says how each of them went.

use std::fmt;
use std::time::{Duration, Instant};

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As it should.
    Passed,
    /// As it should when it was tried again, and what was wrong before.
    PassedAgain(String),
    /// Not as it should, and why.
    Failed(String),
    /// It was not run, and why.
    Skipped(String),
}

impl Outcome {
    /// What the result of a step that was run means.
    pub(crate) fn of(result: anyhow::Result<()>) -> Self {
        result.map_or_else(|error| Self::Failed(format!("{error:#}")), |()| Self::Passed)
    }

    /// The line by which one process tells it to another.
    pub(crate) fn to_line(&self) -> String {
        format!("{} {}", self.name(), self.reason())
    }

    /// What a line means, if it is one.
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

/// Something to do and what to call it.
pub(crate) struct Step {
    name: &'static str,
    action: Box<dyn FnOnce() -> Outcome>,
}

impl Step {
    /// A step called `name` that does `action`.
    pub(crate) fn new(name: &'static str, action: impl FnOnce() -> Outcome + 'static) -> Self {
        Self { name, action: Box::new(action) }
    }

    /// A step that is left out on purpose, for `reason`.
    pub(crate) fn left_out(name: &'static str, reason: &'static str) -> Self {
        Self::new(name, move || Outcome::Skipped(reason.to_owned()))
    }
}

/// What became of some steps.
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

/// Runs all `steps`, also those after a failure: one run should tell everything.
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
    /// Whether nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.count("FAILED") == 0
    }

    fn count(&self, outcome: &str) -> usize {
        self.rows.iter().filter(|row| row.outcome.name() == outcome).count()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<8} {:<8} {:>8}", "step", "result", "time")?;
        for Row { name, outcome, time } in &self.rows {
            let time = format!("{:.1} s", time.as_secs_f64());
            let row = format!("{name:<8} {:<8} {time:>8}  {}", outcome.name(), outcome.reason());
            writeln!(f, "{}", row.trim_end())?;
        }
        let [passed, failed, skipped] = ["ok", "FAILED", "skipped"].map(|name| self.count(name));
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
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
    fn what_one_process_says_another_understands() {
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
step     result       time
tests    ok         12.3 s
seeds    FAILED      0.4 s  seed 7 broke
cost     skipped     0.0 s  no valgrind
1 passed, 1 failed, 1 skipped";
        assert_eq!(summary.to_string(), table);
    }
}
