//! The checks and numbers of a stability run.

use std::time::Duration;

use gpreempt_device::process::StatusFile;

use super::processes::End;
use super::{Outcome, RunCounts, empty};
use crate::lines::Quantiles;
use crate::results::{Check, Number};

/// How much memory may grow: caches fill slowly.
const GROWTH_KIB: u64 = 2_048;
/// How many descriptors may be added: a transient load may be connected.
const GROWTH_DESCRIPTORS: u64 = 8;
/// The longest time without progress of offline work; a busy machine is slow too.
const NO_PROGRESS_MAX_NS: u64 = 30_000_000_000;

pub(super) fn outcome(account: &RunCounts, ends: &[End], took: Duration) -> Outcome {
    let mut measurement = empty(took);
    let mut checks = vec![
        failures(account, ends),
        check(
            "every change of priority was accepted",
            account.refused.is_empty(),
            match account.refused.first() {
                Some(first) => format!("{} of {}: {first}", account.refused.len(), account.changes),
                None => format!("all {}", account.changes),
            },
        ),
        exactness(ends),
        progress(ends),
    ];
    for (name, usage) in [("gpreemptd", &account.daemon), ("gpreempt-emu", &account.emulator)] {
        checks.extend(flat(name, usage));
        measurement.numbers.extend(last_usage(name, usage));
    }
    let online = ends.iter().find_map(|end| end.last.as_ref()?.latency_us.clone());
    measurement.numbers.extend(online.iter().flat_map(latency));
    // CAST: small numbers.
    let count = |name: &str, title: &str, value: u64| Number::new(name, title, "1", value as f64);
    measurement.numbers.extend([
        count("rounds", "rounds in which memory was read", account.rounds),
        count("visits", "transient loads", account.transients),
        count("changes", "changes of priority", account.changes),
    ]);
    Outcome { measurement, checks }
}

fn check(name: &str, passed: bool, text: impl Into<String>) -> Check {
    let (case, mode) = (Some("stability".to_owned()), Some("daemon".to_owned()));
    Check { name: name.to_owned(), case, mode, passed, text: text.into() }
}

fn failures(account: &RunCounts, ends: &[End]) -> Check {
    let at_end = ends.iter().filter_map(|end| end.failure.clone());
    let all: Vec<String> = account.failures.iter().cloned().chain(at_end).collect();
    let text = match all.first() {
        Some(first) => format!("{} failed: {first}", all.len()),
        None => format!("{} ran to the end, {} were transient", ends.len(), account.transients),
    };
    check("no program failed", all.is_empty(), text)
}

fn exactness(ends: &[End]) -> Check {
    let proofs = ends.iter().filter_map(|end| end.last.as_ref()?.exactness.as_ref());
    let results: Vec<bool> = proofs.map(|proof| proof.result == "pass").collect();
    let passed = !results.is_empty() && results.iter().all(|passed| *passed);
    let right = results.iter().filter(|passed| **passed).count();
    let text = format!("{right} of {} programs proved it", results.len());
    check("every kernel ran exactly once", passed, text)
}

/// The longest time in which an offline program made no progress.
fn progress(ends: &[End]) -> Check {
    let mut longest = 0;
    let mut total = 0;
    for end in ends.iter().filter(|end| !end.windows.is_empty()) {
        let mut since = end.windows[0].0;
        for &(from_ns, count) in &end.windows {
            if count > 0 {
                since = from_ns;
            }
            longest = longest.max(from_ns.saturating_sub(since));
            total += count;
        }
    }
    let text = format!("{total} kernels; no progress for {} ms at most", longest / 1_000_000);
    check("offline work makes progress", total > 0 && longest <= NO_PROGRESS_MAX_NS, text)
}

fn flat(name: &str, usage: &[Usage]) -> Vec<Check> {
    let memory: Vec<u64> = usage.iter().map(|usage| usage.resident_kib).collect();
    let descriptors: Vec<u64> = usage.iter().map(|usage| usage.descriptors).collect();
    let rows = [
        ("memory stays the same", "KiB", memory, GROWTH_KIB),
        ("descriptors stay the same", "", descriptors, GROWTH_DESCRIPTORS),
    ];
    rows.into_iter()
        .filter_map(|(what, unit, readings, allowed)| {
            let (early, late) = early_and_late(&readings)?;
            let title = format!("{name}: {what}");
            let text = format!("{early} {unit} early, {late} {unit} late").replace("  ", " ");
            Some(check(&title, late.saturating_sub(early) <= allowed, text))
        })
        .collect()
}

/// The latency of online requests, at all of their priorities.
fn latency(found: &Quantiles) -> Vec<Number> {
    [("p50", found.p50), ("p99", found.p99), ("max", found.max)]
        .map(|(name, us)| {
            let (name, title) = (format!("online_{name}"), format!("online latency: {name}"));
            Number::new(&name, &title, "ns", us * 1e3)
        })
        .to_vec()
}

fn last_usage(name: &str, usage: &[Usage]) -> Vec<Number> {
    let Some(last) = usage.last() else { return Vec::new() };
    // CAST: small numbers.
    vec![
        Number::new(
            &format!("{name}_resident_kib"),
            &format!("memory of {name} at the end"),
            "KiB",
            last.resident_kib as f64,
        ),
        Number::new(
            &format!("{name}_descriptors"),
            &format!("descriptors of {name} at the end"),
            "1",
            last.descriptors as f64,
        ),
    ]
}

/// Memory and descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) resident_kib: u64,
    pub(super) descriptors: u64,
}

impl Usage {
    pub(super) fn of(pid: u32) -> Option<Self> {
        let resident_kib = StatusFile::read(pid).ok()?.number("VmRSS", 0)?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Self { resident_kib, descriptors })
    }
}

/// The medians of the second tenth and of the last tenth of the readings: the first tenth is the
/// start of the process, and a median ignores single large readings.
pub(super) fn early_and_late(readings: &[u64]) -> Option<(u64, u64)> {
    let tenth = (readings.len() / 10).max(1);
    let early = median(readings.get(tenth..2 * tenth).filter(|part| !part.is_empty())?);
    let late = median(&readings[readings.len() - tenth..]);
    Some((early, late))
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(windows: &[(u64, u64)]) -> End {
        End { failure: None, last: None, windows: windows.to_vec() }
    }

    #[test]
    fn a_long_time_without_progress_fails() {
        const S: u64 = 1_000_000_000;
        let goes_on = [end(&[(0, 5), (S, 0), (20 * S, 4), (21 * S, 3)])];
        assert!(progress(&goes_on).passed, "{}", progress(&goes_on).text);
        let stands = [end(&[(0, 5), (S, 0), (20 * S, 0), (40 * S, 0)])];
        assert!(!progress(&stands).passed, "{}", progress(&stands).text);
        assert!(!progress(&[]).passed);
    }

    #[test]
    fn a_leak_fails() {
        let usage = |kib: u64| Usage { resident_kib: kib, descriptors: 9 };
        let steady: Vec<Usage> = (0..100).map(|_| usage(5_000)).collect();
        assert!(flat("x", &steady).iter().all(|check| check.passed));
        let leaking: Vec<Usage> = (0..100).map(|second| usage(5_000 + second * 100)).collect();
        let checks = flat("x", &leaking);
        assert!(!checks[0].passed && checks[1].passed, "{checks:?}");
    }

    #[test]
    fn a_program_that_failed_is_named() {
        let mut failed = end(&[]);
        failed.failure = Some("first did not end".into());
        let found = failures(&RunCounts::default(), &[failed]);
        assert!(!found.passed && found.text.contains("first did not end"), "{}", found.text);
    }

    #[test]
    fn memory_is_read_from_the_status_of_a_process() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.descriptors > 2 && usage.resident_kib > 100, "{usage:?}");
    }

    #[test]
    fn memory_of_the_start_of_a_process_does_not_count() {
        let mut readings: Vec<u64> = vec![1; 10];
        readings.extend([50; 80]);
        readings.extend([60; 10]);
        assert_eq!(early_and_late(&readings), Some((50, 60)));
        assert_eq!(early_and_late(&[5]), None);
        assert_eq!(early_and_late(&[5, 6]), Some((6, 6)));
    }
}
