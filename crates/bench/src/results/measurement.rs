//! One case, once, in one mode.

use serde::{Deserialize, Serialize};

use super::{COUNT, Distribution, SlowRequest, TimeLine};

/// One case, once, in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The case's name.
    pub case: String,
    /// The mode's name.
    pub mode: String,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// What was left to chance follows from this.
    pub seed: u64,
    /// How long it took to measure.
    pub took_s: f64,
    /// Whether it worked.
    pub status: Status,
    /// Requests of all latency-critical loads together.
    pub lc: Option<LcResult>,
    /// Work of all best-effort loads together.
    pub be: Option<BeResult>,
    /// Each load by itself.
    pub loads: Vec<LoadResult>,
    /// What else was measured.
    pub numbers: Vec<Number>,
    /// One preemption, if it was looked at.
    pub time_line: Option<TimeLine>,
}

/// Whether it worked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase", deny_unknown_fields)]
pub enum Status {
    /// Yes.
    Ok,
    /// It was tried.
    Failed {
        /// What happened.
        reason: String,
    },
    /// It was not tried.
    Skipped {
        /// Why not.
        reason: String,
    },
}

/// Whether a load is latency critical or best effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Latency critical: requests whose latency counts.
    Lc,
    /// Best effort: work whose amount counts.
    Be,
}

/// What requests met with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LcResult {
    /// From when a request was due to its end. Requests that never began count with what they
    /// had waited.
    pub latency: Distribution,
    /// From when a request began to its end: the same, without the wait for the one before it.
    pub service: Option<Distribution>,
    /// Requests that were due and did not end.
    pub unfinished: u64,
    /// Requests that missed their deadline, of those that have one.
    pub missed: Option<u64>,
    /// The slowest of them, in the order in which they were due; at most
    /// [`SLOWEST_MAX`](super::SLOWEST_MAX), none in older files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slowest: Vec<SlowRequest>,
}

/// What best-effort work got done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeResult {
    /// How much.
    pub done: f64,
    /// Of what: `kernels`, `copies`, `rounds`.
    pub unit: String,
    /// In which time.
    pub seconds: f64,
    /// How much a second.
    pub per_second: f64,
    /// The part of what it does when nobody is beside it.
    pub of_alone: Option<f64>,
    /// The part of what it could do in the time that latency-critical work, when alone, leaves.
    pub kept: Option<f64>,
    /// Whether everything happened exactly once, where that was looked at.
    pub exact: Option<bool>,
}

/// What one load did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadResult {
    /// The load's name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its requests, if it is latency critical. Of the only such load a file does not have them:
    /// they are those of the measurement, and come from there when it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lc: Option<LcResult>,
    /// Its work, if it is best effort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub be: Option<BeResult>,
}

/// A number with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// What programs call it: `be_off_p50`.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Its unit: `ns`, `1`, `%`, `KiB`.
    pub unit: String,
    /// The number.
    pub value: f64,
}

impl Measurement {
    /// Whether it worked.
    pub fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }

    /// The number of that name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|number| number.name == name).map(|number| number.value)
    }
}

impl Number {
    /// A number.
    pub fn new(name: &str, title: &str, unit: &str, value: f64) -> Self {
        Self { name: name.into(), title: title.into(), unit: unit.into(), value }
    }

    /// The usual percentiles of times, each as a number.
    pub fn percentiles(name: &str, title: &str, spread: &Distribution) -> Vec<Self> {
        // CAST: latencies are far below what a float counts exactly.
        [
            ("p50", "half are faster", spread.p50_ns as f64),
            ("p99", "99 % are faster", spread.p99_ns as f64),
            ("p999", "99.9 % are faster", spread.p999_ns as f64),
            ("max", "the slowest", spread.max_ns as f64),
            ("count", "how many", spread.count as f64),
        ]
        .map(|(suffix, meaning, value)| {
            let unit = if suffix == "count" { COUNT } else { "ns" };
            Self::new(&format!("{name}_{suffix}"), &format!("{title}: {meaning}"), unit, value)
        })
        .to_vec()
    }
}
