//! The lines of a best-effort load.

use std::fmt;

use serde::Serialize;

use super::exactness::Exactness;
use super::pipeline::{Total, Window};

/// What is counted.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    Kernels,
    Copies,
    Graphs,
    /// Of an endless kernel.
    Rounds,
}

/// What happened in one interval.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "line", rename = "rate")]
pub(super) struct Rate {
    unit: Unit,
    /// The interval, by `CLOCK_MONOTONIC`.
    from_ns: u64,
    until_ns: u64,
    count: u64,
    per_second: f64,
    /// Since the beginning.
    total: u64,
}

/// The last line.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(super) struct Final {
    /// The round, of a load that has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) round: Option<u64>,
    unit: Unit,
    from_ns: u64,
    until_ns: u64,
    total: u64,
    per_second: f64,
    /// Whether everything that was submitted completed.
    drained: bool,
    /// Whether everything happened exactly once, where that was looked at.
    exactness: Option<Exactness>,
}

impl Rate {
    /// The line for a window.
    pub(super) fn new(unit: Unit, window: Window) -> Self {
        let Window { from_ns, until_ns, count, total } = window;
        Self { unit, from_ns, until_ns, count, per_second: rate(count, from_ns, until_ns), total }
    }
}

impl Final {
    /// The line for everything.
    pub(super) fn new(unit: Unit, total: &Total, exactness: Option<Exactness>) -> Self {
        let Total { from_ns, until_ns, count, is_drained } = *total;
        let per_second = rate(count, from_ns, until_ns);
        Self {
            round: None,
            unit,
            from_ns,
            until_ns,
            total: count,
            per_second,
            drained: is_drained,
            exactness,
        }
    }
}

impl Final {
    /// Whether everything that was submitted completed.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Whether nothing is known to have happened twice or not at all.
    pub(super) fn is_exact(&self) -> bool {
        self.exactness.as_ref().is_none_or(Exactness::is_pass)
    }
}

pub(super) fn rate(count: u64, from_ns: u64, until_ns: u64) -> f64 {
    if until_ns <= from_ns {
        return 0.0;
    }
    // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
    count as f64 * 1e9 / (until_ns - from_ns) as f64
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernels => "kernels",
            Self::Copies => "copies",
            Self::Graphs => "graphs",
            Self::Rounds => "rounds",
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, until_ns, per_second, .. } = self;
        write!(f, "be {until_ns}: {per_second:.1} {unit}/s")
    }
}

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, total, per_second, .. } = self;
        write!(f, "be total: {total} {unit}, {per_second:.1} {unit}/s")?;
        if !self.drained {
            write!(f, ", NOT all completed")?;
        }
        if let Some(exactness) = &self.exactness {
            write!(f, ", {exactness}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_for_people_and_for_programs() {
        let window =
            Window { from_ns: 1_000_000_000, until_ns: 1_500_000_000, count: 63, total: 100 };
        let line = Rate::new(Unit::Kernels, window);
        assert_eq!(line.to_string(), "be 1500000000: 126.0 kernels/s");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":1000000000,\
             \"until_ns\":1500000000,\"count\":63,\"per_second\":126.0,\"total\":100}"
        );
        let total = Total { from_ns: 0, until_ns: 0, count: 0, is_drained: false };
        let line = Final::new(Unit::Copies, &total, None);
        assert_eq!(line.to_string(), "be total: 0 copies, 0.0 copies/s, NOT all completed");
    }
}
