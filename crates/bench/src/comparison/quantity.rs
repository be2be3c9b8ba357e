//! What is compared.

use serde::Serialize;

use crate::report::number;
use crate::results::{Estimate, SummaryRow};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Half of all requests take at most this.
    P50Ns,
    /// 99 % do.
    P99Ns,
    /// p50 as a multiple of that of running alone.
    P50Ratio,
    /// The same for p99.
    P99Ratio,
    /// What best-effort work keeps of the time that requests leave.
    BeKept,
}

impl Quantity {
    /// Every one, in the order they are shown.
    pub const ALL: [Self; 5] =
        [Self::P50Ns, Self::P99Ns, Self::P50Ratio, Self::P99Ratio, Self::BeKept];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::P50Ns => "p50",
            Self::P99Ns => "p99",
            Self::P50Ratio => "p50 vs alone",
            Self::P99Ratio => "p99 vs alone",
            Self::BeKept => "BE kept",
        }
    }

    /// Whether less is better.
    pub const fn is_cost(self) -> bool {
        !matches!(self, Self::BeKept)
    }

    /// Where it is in a summary.
    pub(super) const fn of(self, row: &SummaryRow) -> Option<Estimate> {
        match self {
            Self::P50Ns => row.p50_ns,
            Self::P99Ns => row.p99_ns,
            Self::P50Ratio => row.p50_ratio,
            Self::P99Ratio => row.p99_ratio,
            Self::BeKept => row.be_kept,
        }
    }

    /// A value as people read it.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::P50Ns | Self::P99Ns => number::nanoseconds(value),
            Self::P50Ratio | Self::P99Ratio => number::times(value),
            Self::BeKept => number::percent(Some(value)),
        }
    }
}
