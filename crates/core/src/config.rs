//! The settings of the scheduler. All other parameters follow from the devices and the tasks.

use core::fmt;

pub use crate::policy::PolicyKind;
use crate::time::Duration;

/// Protection against starvation: a queue that waited long outranks all others for a short time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aging {
    /// How long a queue with work may be kept off the device.
    pub after: Duration,
    /// How long it then outranks all others.
    pub grant: Duration,
}

/// The scheduler's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How ranks are computed.
    pub policy: PolicyKind,
    /// How often the rings are read: 1 to 10 ms.
    pub interval: Duration,
    /// How long one of several equals runs before the next; longer where a switch is expensive.
    pub slice: Duration,
    /// Starvation protection; none switches it off.
    pub aging: Option<Aging>,
    /// The same for the tasks with [`crate::event::SchedAttr::has_min_share`] together: on each
    /// device they get at least `grant` of every `after + grant` in which they have work.
    pub min_share: Option<Aging>,
    /// How long a preempt may take before it is reported as a fault.
    pub preempt_timeout: Duration,
    /// How long a hint is valid if it is not ended.
    pub hint_max: Duration,
    /// How long, at most, an idle queue keeps its device because its next request is expected
    /// before a switch would pay.
    pub linger_max: Duration,
}

impl Config {
    /// The shortest interval between two readings of the rings.
    pub const INTERVAL_MIN: Duration = Duration::from_millis(1);
    /// The longest interval between two readings of the rings.
    pub const INTERVAL_MAX: Duration = Duration::from_millis(10);

    /// Checks every setting.
    ///
    /// # Errors
    /// The first invalid setting and the rule it breaks.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rules = [
            (
                (Self::INTERVAL_MIN..=Self::INTERVAL_MAX).contains(&self.interval),
                "interval",
                "between 1 ms and 10 ms",
            ),
            (!self.slice.is_zero(), "slice", "longer than zero"),
            (!self.preempt_timeout.is_zero(), "preempt_timeout", "longer than zero"),
            (!self.hint_max.is_zero(), "hint_max", "longer than zero"),
            (
                self.aging.is_none_or(|aging| !aging.after.is_zero() && !aging.grant.is_zero()),
                "aging",
                "longer than zero in both `after_ms` and `grant_ms` (0 in both switches it off)",
            ),
            (
                self.min_share.is_none_or(|share| !share.after.is_zero() && !share.grant.is_zero()),
                "min_share",
                "longer than zero in both parts",
            ),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, setting, rule)) => Err(ConfigError { setting, rule }),
            None => Ok(()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            interval: Duration::from_millis(5),
            slice: Duration::from_millis(10),
            aging: None,
            min_share: Some(Aging {
                after: Duration::from_millis(950),
                grant: Duration::from_millis(50),
            }),
            preempt_timeout: Duration::from_millis(100),
            hint_max: Duration::from_millis(50),
            linger_max: Duration::from_millis(2),
        }
    }
}

/// An invalid setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Its name.
    pub setting: &'static str,
    /// The rule it breaks.
    pub rule: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` must be {}", self.setting, self.rule)
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_legal_and_bad_settings_are_named() {
        assert_eq!(Config::default().check(), Ok(()));
        let fast = Config { interval: Duration::from_micros(999), ..Config::default() };
        assert_eq!(fast.check().map_err(|error| error.setting), Err("interval"));
        let aging = Some(Aging { after: Duration::ZERO, grant: Duration::from_millis(1) });
        let never = Config { aging, ..Config::default() };
        assert_eq!(never.check().map_err(|error| error.setting), Err("aging"));
        let never = Config { min_share: aging, ..Config::default() };
        assert_eq!(never.check().map_err(|error| error.setting), Err("min_share"));
    }
}
