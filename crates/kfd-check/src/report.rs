//! Runs the checks, prints their results, and examines the kernel's log.

use std::io::Write;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::outcome::Problem;
use crate::{Args, Machine, checks};

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
    /// Runs the checks. Without `--json`, each result is printed at once.
    pub(crate) fn of(machine: &Machine, args: &Args) -> Self {
        let mut rows = Vec::new();
        let is_wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only));
        for check in checks::of(machine).into_iter().filter(|check| is_wanted(check.name)) {
            let since = Instant::now();
            let result = (check.run)(machine);
            let row = Row { name: check.name, result, time: since.elapsed() };
            if !args.json {
                println!("{row}");
                // The output may be a serial line.
                let _ = io::stdout().flush();
            }
            rows.push(row);
        }
        let Machine { kernel, version, has_gpu, .. } = machine;
        Self { kernel: kernel.clone(), kfd: version.to_string(), has_gpu: *has_gpu, rows }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.count("FAILED") == 0
    }

    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({ "kernel": self.kernel, "kfd": self.kfd, "gpu": self.has_gpu, "checks": rows })
    }

    fn count(&self, outcome: &str) -> usize {
        self.rows.iter().filter(|row| row.outcome().0 == outcome).count()
    }
}

impl Row {
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

/// Messages of a kernel that has detected a fault in itself.
const TROUBLES: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "general protection fault",
    "refcount_t:",
    "UBSAN",
    "KASAN",
    "blocked for more than",
    "possible recursive locking",
    "use-after-free",
    "list_add corruption",
];

/// Messages of a kernel on an overloaded machine, which are not faults.
const STARVED: &[&str] = &["soft lockup", "rcu_preempt", "rcu_sched", "clocksource"];

pub(crate) fn read() -> io::Result<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty())?;
    let mut lines = Vec::new();
    let mut record = vec![0_u8; 8192];
    loop {
        match rustix::io::read(&log, &mut *record) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(lines),
            Ok(length) => lines.push(String::from_utf8_lossy(&record[..length]).into_owned()),
            // Some records were overwritten meanwhile.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The records with fault messages.
pub(crate) fn troubles(records: &[String]) -> Vec<String> {
    let text = |record: &String| record.split_once(';').map(|(_, text)| text.trim().to_owned());
    let is_trouble = |text: &String| {
        TROUBLES.iter().any(|word| text.contains(word))
            && !STARVED.iter().any(|word| text.contains(word))
    };
    records.iter().filter_map(text).filter(is_trouble).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_contains_the_result_and_the_reason() {
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

    #[test]
    fn fault_messages_are_found_and_overload_messages_are_not() {
        let records: Vec<String> = [
            "6,1,0,-;Linux version 6.12",
            "4,2,0,-;WARNING: CPU: 1 PID: 7 at kfd_process.c:1\n",
            "0,3,0,-;watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "3,4,0,-;INFO: task kfd-target:7 blocked for more than 120 seconds.",
        ]
        .map(str::to_owned)
        .to_vec();
        let found = troubles(&records);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("WARNING") && found[1].starts_with("INFO"));
    }
}
