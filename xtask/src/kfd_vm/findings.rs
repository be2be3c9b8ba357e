//! What the checks in a virtual machine said.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::kernel::Kernel;

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// `ok`, `FAILED` or `skipped`.
    pub(super) outcome: &'static str,
    pub(super) name: String,
    /// Why, if it is not `ok`.
    pub(super) why: String,
}

/// All checks on one kernel.
#[derive(Clone, Debug)]
pub(super) struct Findings {
    pub(super) kernel: Kernel,
    pub(super) lines: Vec<Line>,
    /// The line that sums them up.
    pub(super) summary: String,
    /// What the checking program ended with.
    pub(super) exit: Option<i32>,
    pub(super) time: Duration,
}

impl Findings {
    /// Reads what was written on the wire.
    pub(super) fn parse(kernel: Kernel, said: &str, time: Duration) -> Self {
        let mut findings =
            Self { kernel, lines: Vec::new(), summary: String::new(), exit: None, time };
        for line in said.lines() {
            if let Some(code) = line.strip_prefix("exit ") {
                findings.exit = code.trim().parse().ok();
            } else if let Some(summary) = line.strip_prefix("summary: ") {
                findings.summary = summary.to_owned();
            } else {
                findings.lines.extend(Line::parse(line));
            }
        }
        findings
    }

    /// Those that are not as they should be. Nothing is left out there, so what was skipped counts.
    pub(super) fn bad(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.outcome != "ok")
    }

    /// Whether everything was checked and is as it should be.
    pub(super) fn is_good(&self) -> bool {
        self.exit == Some(0) && !self.lines.is_empty() && self.bad().next().is_none()
    }

    pub(super) fn json(&self) -> Value {
        let checks: Vec<Value> = self
            .lines
            .iter()
            .map(|line| json!({ "name": line.name, "outcome": line.outcome, "why": line.why }))
            .collect();
        json!({
            "kernel": self.kernel.release,
            "listens_to": self.kernel.kind.name(),
            "good": self.is_good(),
            "seconds": self.time.as_secs_f64(),
            "checks": checks,
        })
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (first, rest) = line.split_once(' ')?;
        let outcome = ["ok", "FAILED", "skipped"].into_iter().find(|name| *name == first)?;
        let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
        Some(Self { outcome, name: name.trim().to_owned(), why: why.trim().to_owned() })
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kernel { release, kind } = &self.kernel;
        let result = if self.is_good() { "ok" } else { "FAILED" };
        let (name, seconds) = (kind.name(), self.time.as_secs_f64());
        write!(f, "{release:<24} {name:<8} {result:<7} {seconds:>6.1} s  {}", self.summary)?;
        for Line { outcome, name, why } in self.bad() {
            write!(f, "\n    {outcome} {name}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kfd_vm::kernel::Kind;

    fn findings(said: &str) -> Findings {
        let kernel = Kernel { release: "6.12.115".to_owned(), kind: Kind::Owner };
        Findings::parse(kernel, said, Duration::from_secs(30))
    }

    #[test]
    fn only_everything_is_good() {
        let good = findings("ok one\nok two\nsummary: 2 passed\nexit 0\n");
        assert!(good.is_good());
        assert_eq!((good.lines.len(), good.summary.as_str()), (2, "2 passed"));
        for said in [
            "ok one\nFAILED two: it: broke\nexit 1\n",
            "ok one\nskipped two: no reason\nexit 0\n",
            "ok one\n",
            "exit 0\n",
            "ok one\nexit 101\n",
            "",
        ] {
            assert!(!findings(said).is_good(), "{said}");
        }
        let bad = findings("FAILED two: it: broke\nexit 1\n");
        assert_eq!(bad.lines[0].why, "it: broke");
        assert!(bad.to_string().contains("FAILED two: it: broke"), "{bad}");
        assert_eq!(bad.json()["good"], false);
    }
}
