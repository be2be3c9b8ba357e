//! What an operator may choose. Everything else follows from the device and the tasks.

use core::fmt;

use crate::time::Duration;

/// Which policy decides who runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// The highest priority runs; equals share the device as the hardware likes.
    #[default]
    Strict,
    /// As strict, but equals take turns, each for a slice.
    RoundRobin,
    /// The earliest deadline runs; tasks without one come after all that have one.
    Deadline,
    /// Device time in proportion to weights, whatever the priorities.
    Fair,
}

impl PolicyKind {
    /// Every policy, in the order they are documented.
    pub const ALL: [Self; 4] = [Self::Strict, Self::RoundRobin, Self::Deadline, Self::Fair];

    /// The name people write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::RoundRobin => "round-robin",
            Self::Deadline => "edf",
            Self::Fair => "fair",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Protection against starvation: who waited long gets a short turn, whatever its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aging {
    /// How long a queue with work may be kept off the device.
    pub after: Duration,
    /// How long it then runs above everybody else.
    pub grant: Duration,
}

/// The scheduler's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Who runs.
    pub policy: PolicyKind,
    /// How often the rings are read: 1 to 10 ms.
    pub interval: Duration,
    /// How long one of several equals runs before the next; stretched where a switch is dear.
    pub slice: Duration,
    /// Starvation protection, if wanted.
    pub aging: Option<Aging>,
    /// How long a preempt may take before somebody hears about it.
    pub preempt_timeout: Duration,
    /// How long a hint counts when nobody ends it.
    pub hint_max: Duration,
    /// How long an important queue may be idle, at the most, while the others wait for its next
    /// request because giving the device away would not pay.
    pub linger_max: Duration,
}

impl Config {
    /// The shortest interval between two readings of the rings.
    pub const INTERVAL_MIN: Duration = Duration::from_millis(1);
    /// The longest.
    pub const INTERVAL_MAX: Duration = Duration::from_millis(10);

    /// The first setting that makes no sense, if any.
    ///
    /// # Errors
    /// Names the setting and the rule it breaks.
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
            preempt_timeout: Duration::from_millis(100),
            hint_max: Duration::from_millis(50),
            linger_max: Duration::from_millis(2),
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Which one.
    pub setting: &'static str,
    /// What it has to be.
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
    }

    #[test]
    fn policies_have_names_that_lead_back() {
        for kind in PolicyKind::ALL {
            assert_eq!(PolicyKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(PolicyKind::from_name("best"), None);
    }
}
