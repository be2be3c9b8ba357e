//! The latency budget of a process: how much slower it may become in exchange for throughput of
//! others.
//!
//! ```text
//!             length of its busy periods
//!  slowdown = -------------------------- - 1
//!              that length - lost time
//! ```
//!
//! [Busy periods](crate::busy_periods) say which time off the engine is lost.

use core::fmt;
use core::str::FromStr;

/// How much slower a process may become, in per cent. Zero is as fast as possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatencyBudget(u16);

impl LatencyBudget {
    /// No slower than necessary.
    pub const ZERO: Self = Self(0);
    /// The largest budget: five times as slow.
    pub const PERCENT_MAX: u16 = 400;

    /// A budget of that many per cent; none above [`Self::PERCENT_MAX`].
    pub const fn from_percent(percent: u16) -> Option<Self> {
        if percent <= Self::PERCENT_MAX { Some(Self(percent)) } else { None }
    }

    /// The budget in per cent.
    pub const fn percent(self) -> u16 {
        self.0
    }

    /// Whether the process is to be as fast as possible.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for LatencyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// A text that is no budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLatencyBudget;

impl fmt::Display for BadLatencyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a latency budget is a whole number of per cent from 0 to 400, such as 20%")
    }
}

impl core::error::Error for BadLatencyBudget {}

/// Reads `20%` and `20`.
impl FromStr for LatencyBudget {
    type Err = BadLatencyBudget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let percent = number.parse().ok().filter(|_| is_number);
        percent.and_then(Self::from_percent).ok_or(BadLatencyBudget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_whole_numbers_of_per_cent_up_to_400() {
        for (text, percent) in [("0", 0), ("20%", 20), ("20 %", 20), ("400%", 400)] {
            assert_eq!(text.parse().map(LatencyBudget::percent), Ok(percent), "{text}");
        }
        for text in ["", "%", "-1%", "+1%", "401", "99999999", "20%%", "0.2", "x"] {
            assert_eq!(text.parse::<LatencyBudget>(), Err(BadLatencyBudget), "{text}");
        }
    }
}
