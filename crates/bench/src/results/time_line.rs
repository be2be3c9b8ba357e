//! One preemption, looked at closely.

use serde::{Deserialize, Serialize};

/// Who was on the device around one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeLine {
    /// The rows, from top to bottom: names of loads.
    pub rows: Vec<String>,
    /// What each was doing. Times count from the beginning of the time line.
    pub spans: Vec<Span>,
    /// Moments worth a line across all rows.
    pub marks: Vec<Mark>,
    /// How long it is.
    pub length_ns: u64,
}

/// A time during which one load did one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Which row, from 0.
    pub row: u32,
    /// `wait`, `run`, `save`, `restore`, `hold` or `kill`.
    pub what: String,
    /// From.
    pub from_ns: u64,
    /// To.
    pub to_ns: u64,
}

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// What happens: `request`, `preempt`, `first instruction`, `answer`, `back`.
    pub name: String,
    /// When.
    pub at_ns: u64,
}
