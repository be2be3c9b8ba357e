//! How quiet the machine itself was in a measurement, and whether that may have made its tail.

use super::{Distribution, Measurement, Number};

const LATE_P50: &str = "machine_late_p50";
const LATE_P99: &str = "machine_late_p99";
const LATE_MAX: &str = "machine_late_max";
const STOLEN: &str = "machine_stolen";
/// What all of them begin with.
const PREFIX: &str = "machine_";

/// A machine that is late by more than this part of a request is part of what is measured.
const PART_MAX: f64 = 0.1;
/// Whoever sleeps wakes up this late (ns) on a machine that has nothing else to do, too: timers are
/// collected, and a processor that idles takes a while. Loads that do not sleep do not notice.
const LATE_MIN_NS: f64 = 200_000.0;

/// What is known of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quiet {
    /// How late a thread woke up that only sleeps (ns): 99 % of the time at most this.
    pub(crate) late_p99_ns: f64,
    /// The latest.
    pub(crate) late_max_ns: f64,
    /// The part of one processor that the machine's host took away, if the kernel says.
    pub(crate) stolen: Option<f64>,
}

impl Quiet {
    /// As numbers of a measurement; nothing of what nobody knows.
    pub(crate) fn numbers(late: Option<&Distribution>, stolen: Option<f64>) -> Vec<Number> {
        let mut numbers = Vec::new();
        if let Some(late) = late {
            let title =
                |rest: &str| format!("the machine: how late a sleeping thread wakes, {rest}");
            // CAST: times are far below what a float counts exactly.
            numbers.extend([
                Number::new(LATE_P50, &title("p50"), "ns", late.p50_ns as f64),
                Number::new(LATE_P99, &title("p99"), "ns", late.p99_ns as f64),
                Number::new(LATE_MAX, &title("at most"), "ns", late.max_ns as f64),
            ]);
        }
        let title = "the machine: processors taken away by its host";
        numbers.extend(stolen.map(|part| Number::new(STOLEN, title, "1", part)));
        numbers
    }

    /// Whether a number is one of those.
    pub(crate) fn has(number: &Number) -> bool {
        number.name.starts_with(PREFIX)
    }

    /// What a measurement says; none where nobody looked, as in older files and in virtual time.
    pub(crate) fn of(measurement: &Measurement) -> Option<Self> {
        let number = |name: &str| measurement.number(name).filter(|value| value.is_finite());
        Some(Self {
            late_p99_ns: number(LATE_P99)?,
            late_max_ns: number(LATE_MAX)?,
            stolen: number(STOLEN),
        })
    }

    /// Whether tails of requests that take this long (p50, with nobody beside) may be its doing.
    pub(crate) fn disturbs(&self, alone_p50_ns: f64) -> bool {
        self.late_p99_ns > LATE_MIN_NS.max(alone_p50_ns * PART_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(late_p99_ns: f64) -> Quiet {
        Quiet { late_p99_ns, late_max_ns: 9e9, stolen: None }
    }

    #[test]
    fn a_tenth_of_a_request_disturbs_it_but_never_what_every_sleeper_meets_with() {
        assert!(quiet(240_001.0).disturbs(2_400_000.0));
        assert!(!quiet(240_000.0).disturbs(2_400_000.0));
        assert!(!quiet(200_000.0).disturbs(43_000.0));
        assert!(quiet(200_001.0).disturbs(43_000.0));
    }

    #[test]
    fn what_nobody_knows_has_no_number() {
        assert!(Quiet::numbers(None, None).is_empty());
        let late = Distribution::of(vec![5, 7]).unwrap();
        assert_eq!(Quiet::numbers(Some(&late), None).len(), 3);
        let all = Quiet::numbers(Some(&late), Some(0.5));
        let names: Vec<&str> = all.iter().map(|number| number.name.as_str()).collect();
        assert_eq!(names, [LATE_P50, LATE_P99, LATE_MAX, STOLEN]);
        assert!(all.iter().all(Quiet::has));
    }
}
