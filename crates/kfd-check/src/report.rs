//! The checks, one after the other, and what came of them.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::Args;
use crate::checks;
use crate::machine::Machine;
use crate::verdict::Problem;

/// What came of all checks.
#[derive(Debug)]
pub(crate) struct Report {
    kernel: String,
    kfd: String,
    has_gpu: bool,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    result: Result<(), Problem>,
    time: Duration,
}

impl Report {
    /// Runs them. Unless JSON is wanted, each has its line as soon as it is done.
    pub(crate) fn of(machine: &Machine, args: &Args) -> Self {
        let mut rows = Vec::new();
        let is_wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only));
        for check in checks::of(machine).into_iter().filter(|check| is_wanted(check.name)) {
            let since = Instant::now();
            let result = (check.run)(machine);
            let row = Row { name: check.name, result, time: since.elapsed() };
            if !args.json {
                println!("{row}");
                // Whoever reads along may be at the other end of a wire.
                let _ = std::io::stdout().flush();
            }
            rows.push(row);
        }
        let Machine { kernel, version, has_gpu, .. } = machine;
        Self { kernel: kernel.clone(), kfd: version.to_string(), has_gpu: *has_gpu, rows }
    }

    /// Whether nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.count("FAILED") == 0
    }

    /// All of it.
    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({ "kernel": self.kernel, "kfd": self.kfd, "gpu": self.has_gpu, "checks": rows })
    }

    fn count(&self, outcome: &str) -> usize {
        self.rows.iter().filter(|row| row.outcome().0 == outcome).count()
    }
}

impl Row {
    /// What to call it, and why.
    fn outcome(&self) -> (&'static str, &str) {
        match &self.result {
            Ok(()) => ("ok", ""),
            Err(Problem::Failed(what)) => ("FAILED", what),
            Err(Problem::Skipped(why)) => ("skipped", why),
        }
    }

    fn json(&self) -> Value {
        let (outcome, why) = self.outcome();
        json!({ "name": self.name, "outcome": outcome, "why": why,
            "seconds": self.time.as_secs_f64() })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outcome() {
            (outcome, "") => write!(f, "{outcome} {}", self.name),
            (outcome, why) => write!(f, "{outcome} {}: {}", self.name, why.replace('\n', " ")),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [passed, failed, skipped] = ["ok", "FAILED", "skipped"].map(|name| self.count(name));
        let gpu = if self.has_gpu { "a GPU" } else { "no GPU" };
        let Self { kernel, kfd, .. } = self;
        write!(
            f,
            "summary: {passed} passed, {failed} failed, {skipped} skipped on {kernel}, KFD {kfd}, \
             {gpu}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_why() {
        let row = |name, result| Row { name, result, time: Duration::ZERO };
        let rows = vec![
            row("one", Ok(())),
            row("two", Err(Problem::Failed("it\nbroke".to_owned()))),
            row("three", Err(Problem::Skipped("no reason".to_owned()))),
        ];
        let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["ok one", "FAILED two: it broke", "skipped three: no reason"]);
        let report = Report { kernel: "6.12".into(), kfd: "1.17".into(), has_gpu: false, rows };
        let summary = "summary: 1 passed, 1 failed, 1 skipped on 6.12, KFD 1.17, no GPU";
        assert_eq!(report.to_string(), summary);
        assert!(!report.is_good());
        assert_eq!(report.json()["checks"][1]["outcome"], "FAILED");
    }
}
