//! The results file: what one run of a suite measured, on which machine, with which command.
//!
//! `gpreempt demo`, `compare`, `bench` and the Python test kit all write this format, and one page
//! ([`report`](crate::report)) shows it. The file is rewritten after every measurement, so an
//! interrupted run keeps what it has; a file without `finished` is of such a run. Times are in
//! nanoseconds, shares and ratios are fractions (1 is 100 %).

mod file;
mod statistics;
mod summary;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use file::now;
pub use statistics::{
    CdfPoint, Distribution, Estimate, POINTS_MAX, RequestWaits, SLOWEST_MAX, SlowRequest,
};
pub(crate) use summary::HostNoise;
pub use summary::SummaryRow;

pub const SCHEMA: u32 = 1;

/// The unit of counted numbers, which are shown without decimals.
pub const COUNT: &str = "count";

/// The baseline mode: latency-critical work with the device to itself.
pub const ALONE: &str = "alone";

/// One run of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    pub schema: u32,
    pub suite: SuiteInfo,
    /// `emulated` or `nvidia`; the test kit has backends of its own.
    pub backend: String,
    /// The command line, reduced to the options that decide the results.
    pub command: String,
    /// The commit the programs were built from, if known.
    pub commit: Option<String>,
    pub environment: Environment,
    /// Time of the first measurement (RFC 3339, UTC).
    pub started: String,
    /// Time of the last measurement; none if the run was interrupted.
    pub finished: Option<String>,
    /// Measurements per case and mode.
    pub repetitions: u32,
    /// Whether this is the short form of the suite.
    pub short: bool,
    /// The result in one or two sentences, where the suite has a conclusion of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    pub modes: Vec<ModeInfo>,
    pub cases: Vec<CaseInfo>,
    /// In the order in which they were made.
    pub measurements: Vec<Measurement>,
    /// One row for each case and mode.
    pub summary: Vec<SummaryRow>,
    /// The criteria of the suite, and whether they hold.
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteInfo {
    pub name: String,
    pub title: String,
    /// A checksum of the suite's text: results of different texts are not mixed.
    pub digest: String,
    /// The text itself; none in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// One of the ways of sharing the device that a run compares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeInfo {
    pub name: String,
    pub title: String,
    /// The baseline: requests on the same device without other work. None for the baseline itself.
    pub alone: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseInfo {
    pub name: String,
    pub title: String,
    /// A line for each load.
    pub loads: Vec<String>,
    /// The position of this case on a curve, if it is part of one.
    pub point: Option<CurvePoint>,
}

/// The position of a case on a curve; cases with the same `curve` form one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    pub curve: String,
    /// What the horizontal axis shows.
    pub axis: String,
    pub unit: String,
    pub value: f64,
}

/// The machine on which it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The GPUs, or the device models of the simulator.
    pub devices: Vec<String>,
    pub driver: Option<String>,
    /// The release of the operating system's kernel.
    pub kernel: String,
    pub processor: String,
    /// Hardware threads.
    pub cores: u32,
    pub versions: Vec<Version>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    pub program: String,
    pub version: String,
}

/// A criterion and whether it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub name: String,
    /// The case it applies to, if it applies to one.
    pub case: Option<String>,
    /// The mode it applies to, if it applies to one.
    pub mode: Option<String>,
    pub passed: bool,
    /// The measured value and the limit.
    pub text: String,
}

/// One case, once, in one mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    pub case: String,
    pub mode: String,
    /// From 0.
    pub repetition: u32,
    pub seed: u64,
    /// Wall-clock time of the measurement.
    pub took_s: f64,
    pub status: Status,
    /// Requests of all latency-critical loads together.
    pub lc: Option<LcResult>,
    /// Work of all best-effort loads together.
    pub be: Option<BeResult>,
    pub loads: Vec<LoadResult>,
    pub numbers: Vec<Number>,
    /// The time line of one request, where it was recorded.
    pub time_line: Option<TimeLine>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase", deny_unknown_fields)]
pub enum Status {
    #[default]
    Ok,
    Failed {
        reason: String,
    },
    /// The measurement was not attempted.
    Skipped {
        reason: String,
    },
}

/// Whether a load is latency-critical or best-effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Latency-critical: the latency of its requests is measured.
    Lc,
    /// Best-effort: the amount of its work is measured.
    Be,
}

/// The latencies of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LcResult {
    /// From the time a request was due to its end. A request that never began counts with the time
    /// it had waited.
    pub latency: Distribution,
    /// From the beginning of a request to its end, without the wait for the previous request.
    pub service: Option<Distribution>,
    /// Requests that were due and did not end.
    pub unfinished: u64,
    /// Requests that missed their deadline, of those that have one.
    pub missed: Option<u64>,
    /// The slowest requests in the order in which they were due; none in older files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slowest: Vec<SlowRequest>,
}

/// The work that best-effort loads did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeResult {
    pub done: f64,
    /// Of `done`: `kernels`, `copies`, `rounds`.
    pub unit: String,
    pub seconds: f64,
    pub per_second: f64,
    /// `per_second` as a fraction of that without other work on the device.
    pub of_alone: Option<f64>,
    /// The fraction of what it could do in the time that latency-critical work, when alone, leaves
    /// idle.
    pub kept: Option<f64>,
    /// Whether every kernel ran exactly once, where that was checked.
    pub exact: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadResult {
    pub name: String,
    pub role: Role,
    /// Requests of a latency-critical load. The file leaves them out for the only such load: they
    /// are those of the measurement, and are copied from there when the file is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lc: Option<LcResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub be: Option<BeResult>,
}

/// A further measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// For programs: `be_off_p50`.
    pub name: String,
    pub title: String,
    /// `ns`, `1`, `%`, `KiB`, [`COUNT`].
    pub unit: String,
    pub value: f64,
}

/// Which load was on the device around one request. Times count from the beginning of the time
/// line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeLine {
    /// Names of loads, from top to bottom.
    pub rows: Vec<String>,
    pub spans: Vec<Span>,
    pub marks: Vec<Mark>,
    pub length_ns: u64,
}

/// A time in which one load did one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// From 0.
    pub row: u32,
    /// `wait`, `run`, `save`, `restore`, `hold` or `kill`.
    pub what: String,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// A labelled moment: `request`, `preempt`, `first instruction`, `answer`, `back`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    pub name: String,
    pub at_ns: u64,
}

impl Results {
    /// A run in which nothing was measured yet.
    pub fn new(suite: SuiteInfo, backend: &str, command: String) -> Self {
        Self {
            schema: SCHEMA,
            suite,
            backend: backend.to_owned(),
            command,
            commit: None,
            environment: Environment::default(),
            started: now(),
            finished: None,
            repetitions: 1,
            short: false,
            conclusion: None,
            modes: Vec::new(),
            cases: Vec::new(),
            measurements: Vec::new(),
            summary: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// The measurements of one case in one mode.
    pub fn of<'r>(&'r self, case: &'r str, mode: &'r str) -> impl Iterator<Item = &'r Measurement> {
        self.measurements.iter().filter(move |each| each.case == case && each.mode == mode)
    }

    /// The summary of one case in one mode.
    pub fn row(&self, case: &str, mode: &str) -> Option<&SummaryRow> {
        self.summary.iter().find(|row| row.case == case && row.mode == mode)
    }

    /// The estimate of a further number over the successful repetitions.
    pub fn number(&self, case: &str, mode: &str, name: &str) -> Option<Estimate> {
        let worked = self.of(case, mode).filter(|each| each.is_ok());
        Estimate::of(&worked.filter_map(|each| each.number(name)).collect::<Vec<_>>())
    }
}

impl Measurement {
    pub fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|number| number.name == name).map(|number| number.value)
    }
}

impl BeResult {
    /// Work that is not compared with the baseline yet.
    pub(crate) fn new(done: f64, unit: &str, seconds: f64, exact: Option<bool>) -> Self {
        let per_second = done / seconds;
        Self { done, unit: unit.to_owned(), seconds, per_second, exact, ..Self::default() }
    }
}

impl Number {
    pub fn new(name: &str, title: &str, unit: &str, value: f64) -> Self {
        Self { name: name.into(), title: title.into(), unit: unit.into(), value }
    }

    /// From a request that met best-effort work: until that was off the device, until the
    /// request's first instruction, and from its end until best-effort work ran again.
    pub(crate) fn of_preemptions(off: Vec<u64>, first: Vec<u64>, resume: Vec<u64>) -> Vec<Self> {
        Self::of_times([
            ("be_off", "from a request to best-effort work being off", off),
            ("first_instruction", "from a request to its first instruction", first),
            ("resume", "from a request's end to best-effort work running", resume),
        ])
    }

    /// The percentiles of each of these times; those that never occurred have none.
    pub(crate) fn of_times<const N: usize>(times: [(&str, &str, Vec<u64>); N]) -> Vec<Self> {
        let spreads = times
            .into_iter()
            .filter_map(|(name, title, times)| Some((name, title, Distribution::of(times)?)));
        spreads.flat_map(|(name, title, spread)| Self::percentiles(name, title, &spread)).collect()
    }

    /// The percentiles, the maximum and the count of a distribution of times.
    fn percentiles(name: &str, title: &str, spread: &Distribution) -> Vec<Self> {
        // CAST: latencies are far below what a float counts exactly.
        [
            ("p50", "p50", spread.p50_ns as f64),
            ("p99", "p99", spread.p99_ns as f64),
            ("p999", "p99.9", spread.p999_ns as f64),
            ("max", "maximum", spread.max_ns as f64),
            ("count", "count", spread.count as f64),
        ]
        .map(|(suffix, meaning, value)| {
            let unit = if suffix == "count" { COUNT } else { "ns" };
            Self::new(&format!("{name}_{suffix}"), &format!("{title}: {meaning}"), unit, value)
        })
        .to_vec()
    }
}
