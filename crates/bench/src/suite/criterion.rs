//! The checks of a suite: which value of which case must be within which limit, and whether a
//! measurement of the case has that value at all.

use super::{Backends, Case, Work};
use crate::engine::{BE_ALONE, LC_BUSY, PARTS};
use crate::results::Role;

/// One `[[check]]`: holds or does not, for each of its cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Criterion {
    pub name: String,
    /// Empty: every case.
    pub cases: Vec<String>,
    pub mode: String,
    /// Without one, every backend.
    pub backend: Option<String>,
    pub what: Quantity,
    pub limit: Threshold,
}

/// The value that a check compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The median latency as a multiple of the one without other loads.
    P50Ratio,
    /// The same of the 99th percentile.
    P99Ratio,
    /// The same of the average.
    MeanRatio,
    /// The part of the GPU time left by latency-critical work that best-effort work gets.
    BeKept,
    /// The median of the number of that name.
    Number(String),
}

/// The largest or smallest allowed value, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    AtMost(u64),
    AtLeast(u64),
}

impl Quantity {
    /// The name in suites and reports.
    pub fn name(&self) -> &str {
        match self {
            Self::P50Ratio => "p50_ratio",
            Self::P99Ratio => "p99_ratio",
            Self::MeanRatio => "mean_ratio",
            Self::BeKept => "be_kept",
            Self::Number(name) => name,
        }
    }

    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "p50_ratio" => Self::P50Ratio,
            "p99_ratio" => Self::P99Ratio,
            "mean_ratio" => Self::MeanRatio,
            "be_kept" => Self::BeKept,
            other => Self::Number(other.to_owned()),
        }
    }
}

impl Threshold {
    pub fn value(self) -> f64 {
        match self {
            // CAST: small numbers.
            Self::AtMost(thousandths) | Self::AtLeast(thousandths) => thousandths as f64 / 1e3,
        }
    }

    /// Whether a value is allowed.
    pub fn allows(self, value: f64) -> bool {
        match self {
            Self::AtMost(_) => value <= self.value(),
            Self::AtLeast(_) => value >= self.value(),
        }
    }
}

/// The numbers of every distribution.
const PERCENTILES: [&str; 5] = ["p50", "p99", "p999", "max", "count"];

/// What is wrong with a check, and with which of its keys.
pub(super) fn problem(criterion: &Criterion, cases: &[Case]) -> Option<(&'static str, String)> {
    if criterion.cases.is_empty() {
        let some = cases.iter().any(|case| of_case(criterion, case).is_none());
        return (!some).then(|| ("what", format!("no case has {}", criterion.what.name())));
    }
    let named = cases.iter().filter(|case| criterion.cases.contains(&case.name));
    named.filter_map(|case| of_case(criterion, case)).next()
}

fn of_case(criterion: &Criterion, case: &Case) -> Option<(&'static str, String)> {
    let (name, mode) = (&case.name, &criterion.mode);
    if !case.modes.is_empty() && !case.modes.contains(mode) {
        let modes = case.modes.join(", ");
        return Some(("mode", format!("case {name} is not measured in {mode}, but in: {modes}")));
    }
    let other = match case.backends {
        Backends::All => None,
        Backends::Emulated => Some("nvidia"),
        Backends::Nvidia => Some("emulated"),
    };
    if other.is_some() && other == criterion.backend.as_deref() {
        return Some(("backend", format!("case {name} is not measured there")));
    }
    let what = criterion.what.name();
    (!has(case, &criterion.what)).then(|| {
        let known = names(case).join(", ");
        ("what", format!("case {name} has no number {what}; besides ratios it has: {known}"))
    })
}

fn has(case: &Case, what: &Quantity) -> bool {
    match what {
        Quantity::P50Ratio | Quantity::P99Ratio | Quantity::MeanRatio => {
            case.of(Role::Lc).next().is_some()
        }
        Quantity::BeKept => case.of(Role::Be).next().is_some(),
        Quantity::Number(name) => names(case).contains(name),
    }
}

/// Whether a PyTorch program reports the times of the parts of its requests.
fn is_server(what: &str) -> bool {
    what.starts_with("serve")
}

/// The numbers that a measurement of a case can have, in some mode.
fn names(case: &Case) -> Vec<String> {
    let (has_lc, has_be) = (case.of(Role::Lc).next().is_some(), case.of(Role::Be).next().is_some());
    let mut names: Vec<String> = Vec::new();
    let mut add = |is_there: bool, more: &[&str]| {
        if is_there {
            names.extend(more.iter().map(|&name| name.to_owned()));
        }
    };
    let (on_gpu, simulated) =
        (case.backends != Backends::Emulated, case.backends != Backends::Nvidia);
    add(has_be, &[BE_ALONE]);
    add(has_lc, &[LC_BUSY]);
    add(simulated, &["preemptions", "reexecuted", "lost"]);
    let has_memory = case.loads.iter().any(|load| load.memory_mib > 0);
    add(simulated && has_memory, &["evictions", "refused"]);
    add(on_gpu, &["holds", "holds_expired", "hold_longest", "slowdown", "off_engine"]);
    add(case.of(Role::Be).count() > 1, &["jain"]);
    add(case.loads.iter().any(|load| load.deadline.is_some()), &["miss_ratio"]);
    let mut levels: Vec<u8> = case.of(Role::Lc).map(|load| load.priority.level()).collect();
    levels.dedup();
    add(levels.len() > 1, &["inverted_pairs"]);
    if case.of(Role::Be).count() > 1 {
        names.extend(case.of(Role::Be).map(|load| format!("share_{}", load.name)));
    }
    if case.loads.iter().any(|load| matches!(&load.work, Work::Torch(what) if is_server(what))) {
        for (part, _) in PARTS {
            names.extend(["p50", "p99"].map(|name| format!("{part}_{name}")));
            names.extend(["p50", "p99"].map(|name| format!("{part}_{name}_ratio")));
        }
    }
    let moments = ["be_off", "first_instruction", "resume"];
    let calls = ["call_stop", "call_resume", "call_preempt"];
    let holds = ["call_hold_begin", "hold_begin", "call_hold_end"];
    let spreads = [
        (has_lc && has_be && (simulated || case.probed), moments),
        (case.controlled && has_be, calls),
        (case.controlled && has_lc, holds),
    ];
    for (_, spread) in spreads.into_iter().filter(|(is_there, _)| *is_there) {
        for name in spread {
            names.extend(PERCENTILES.map(|suffix| format!("{name}_{suffix}")));
        }
    }
    names
}
