//! What must come out.

use gpreempt_fields::{Fields, ReadError};

pub(super) const KEYS: &[&str] = &[
    "name",
    "cases",
    "mode",
    "what",
    "at_most_percent",
    "at_least_percent",
    "at_most",
    "at_least",
    "backend",
];

/// A line that holds or does not, for each case it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Criterion {
    /// What people read.
    pub name: String,
    /// The cases it is about; none named are all.
    pub cases: Vec<String>,
    /// The mode it is about.
    pub mode: String,
    /// The backend it is about; none is all.
    pub backend: Option<String>,
    /// What is looked at.
    pub what: Quantity,
    /// What it may be.
    pub limit: Limit,
}

/// What a line looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The median latency as a multiple of that of running alone.
    P50Ratio,
    /// The same of the 99th percentile.
    P99Ratio,
    /// The same of the average.
    MeanRatio,
    /// What best-effort work keeps of the time that is left.
    BeKept,
    /// The median of a number of that name.
    Number(String),
}

/// What a value may be, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No more.
    AtMost(u64),
    /// No less.
    AtLeast(u64),
}

impl Quantity {
    /// What is written, and what people read.
    pub fn name(&self) -> &str {
        match self {
            Self::P50Ratio => "p50_ratio",
            Self::P99Ratio => "p99_ratio",
            Self::MeanRatio => "mean_ratio",
            Self::BeKept => "be_kept",
            Self::Number(name) => name,
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "p50_ratio" => Self::P50Ratio,
            "p99_ratio" => Self::P99Ratio,
            "mean_ratio" => Self::MeanRatio,
            "be_kept" => Self::BeKept,
            other => Self::Number(other.to_owned()),
        }
    }
}

impl Limit {
    /// The number.
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

const VALUE_MAX: u64 = 1_000_000_000_000;

impl Criterion {
    /// Reads one table of `check`.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ReadError> {
        let (key, field) =
            fields.exactly_one(&["at_most_percent", "at_least_percent", "at_most", "at_least"])?;
        let value = field.u64(0..=VALUE_MAX)?;
        let limit = match key {
            "at_most_percent" => Limit::AtMost(value * 10),
            "at_least_percent" => Limit::AtLeast(value * 10),
            "at_most" => Limit::AtMost(value * 1_000),
            _ => Limit::AtLeast(value * 1_000),
        };
        let backend = fields.optional("backend").map(|field| {
            let names = ["emulated", "nvidia"];
            field.choice(names.into_iter(), |name| names.contains(&name).then(|| name.to_owned()))
        });
        Ok(Self {
            name: fields.name("name")?,
            cases: super::read::names(fields, "cases")?,
            mode: fields.name("mode")?,
            backend: backend.transpose()?,
            what: Quantity::from_name(&fields.name("what")?),
            limit,
        })
    }
}
