//! The scheduler's settings in the protocol, under their names in the configuration file.
//!
//! The protocol carries integers only. Times are accepted in milliseconds and microseconds, and
//! returned in the unit of the configuration file where that is exact.

use std::ops::RangeInclusive;

use gpreempt_core::config::{Aging, Config, ConfigError, PolicyKind};
use gpreempt_core::time::Duration;
use gpreempt_wire::policy::PolicySettings;

use crate::config::{AGING_MS_MAX, MS_MAX};

/// Each setting: its name without the unit, its unit in the file, and its range in that unit.
const PARAMETERS: [(&str, Unit, RangeInclusive<u64>); 7] = [
    (
        "interval",
        Unit::Ms,
        Config::INTERVAL_MIN.as_micros() / 1_000..=Config::INTERVAL_MAX.as_micros() / 1_000,
    ),
    ("slice", Unit::Ms, 1..=MS_MAX),
    ("preempt_timeout", Unit::Ms, 1..=MS_MAX),
    ("hint_max", Unit::Ms, 1..=MS_MAX),
    ("linger_max", Unit::Us, 0..=MS_MAX * 1_000),
    ("after", Unit::Ms, 1..=AGING_MS_MAX),
    ("grant", Unit::Ms, 1..=AGING_MS_MAX),
];

/// Why settings that a client asked for are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyError {
    #[error("there is no policy {0}; the policies are {names}", names = names())]
    UnknownPolicy(String),
    #[error("there is no parameter {0}; see docs/reference/configuration.md")]
    UnknownParameter(String),
    #[error("{name} is {value}; {in_file} must be from {least} to {most}")]
    OutOfRange {
        name: String,
        value: u64,
        /// The setting with its unit in the configuration file.
        in_file: String,
        least: u64,
        most: u64,
    },
    /// Each value is in its range, but the combination is invalid.
    #[error(transparent)]
    Refused(#[from] ConfigError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Ms,
    Us,
}

impl Unit {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Ms => "_ms",
            Self::Us => "_us",
        }
    }

    const fn in_us(self) -> u64 {
        match self {
            Self::Ms => 1_000,
            Self::Us => 1,
        }
    }
}

/// The settings in force. Aging that is off is not mentioned.
pub(crate) fn to_wire(config: &Config) -> PolicySettings {
    let mut settings = PolicySettings::new(config.policy.name());
    for (name, unit, _) in PARAMETERS {
        let Some(us) = read(config, name).map(Duration::as_micros) else { continue };
        let unit = if us % unit.in_us() == 0 { unit } else { Unit::Us };
        // Seven settings fit into a message.
        let _ = settings.set(&format!("{name}{}", unit.suffix()), us / unit.in_us());
    }
    settings
}

/// The settings after the change that a client asks for.
pub(crate) fn changed(config: &Config, settings: &PolicySettings) -> Result<Config, PolicyError> {
    let mut next = *config;
    if let Some(name) = settings.name() {
        next.policy = PolicyKind::from_name(&name.replace('_', "-"))
            .ok_or_else(|| PolicyError::UnknownPolicy(name.to_owned()))?;
    }
    for parameter in settings.parameters() {
        let name = parameter.name.as_str();
        let known = [Unit::Ms, Unit::Us].into_iter().find_map(|unit| {
            let plain = name.strip_suffix(unit.suffix())?;
            let known = PARAMETERS.into_iter().find(|(known, ..)| *known == plain)?;
            Some((known, parameter.value.saturating_mul(unit.in_us())))
        });
        let Some(((plain, unit, range), us)) = known else {
            return Err(PolicyError::UnknownParameter(name.to_owned()));
        };
        let (least, most) = range.into_inner();
        // Aging is switched off by zero in both of its times.
        let is_off = us == 0 && matches!(plain, "after" | "grant");
        if !is_off && !(least * unit.in_us()..=most * unit.in_us()).contains(&us) {
            return Err(PolicyError::OutOfRange {
                name: name.to_owned(),
                value: parameter.value,
                in_file: format!("{plain}{}", unit.suffix()),
                least,
                most,
            });
        }
        write(&mut next, plain, Duration::from_micros(us));
    }

    if next.aging.is_some_and(|aging| aging.after.is_zero() && aging.grant.is_zero()) {
        next.aging = None;
    }
    next.check()?;
    Ok(next)
}

fn names() -> String {
    PolicyKind::ALL.map(PolicyKind::name).join(", ")
}

fn read(config: &Config, name: &str) -> Option<Duration> {
    match name {
        "interval" => Some(config.interval),
        "slice" => Some(config.slice),
        "preempt_timeout" => Some(config.preempt_timeout),
        "hint_max" => Some(config.hint_max),
        "linger_max" => Some(config.linger_max),
        "after" => config.aging.map(|aging| aging.after),
        "grant" => config.aging.map(|aging| aging.grant),
        _ => None,
    }
}

fn write(config: &mut Config, name: &str, value: Duration) {
    let aging = config.aging.unwrap_or(Aging { after: Duration::ZERO, grant: Duration::ZERO });
    match name {
        "interval" => config.interval = value,
        "slice" => config.slice = value,
        "preempt_timeout" => config.preempt_timeout = value,
        "hint_max" => config.hint_max = value,
        "linger_max" => config.linger_max = value,
        "after" => config.aging = Some(Aging { after: value, ..aging }),
        "grant" => config.aging = Some(Aging { grant: value, ..aging }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &str, parameters: &[(&str, u64)]) -> PolicySettings {
        let mut settings = PolicySettings::new(name);
        for (name, value) in parameters {
            settings.set(name, *value).unwrap();
        }
        settings
    }

    #[test]
    fn the_settings_in_force_can_be_set_again() {
        let aging =
            Some(Aging { after: Duration::from_millis(950), grant: Duration::from_micros(1_500) });
        for config in [Config::default(), Config { aging, ..Config::default() }] {
            let sent = to_wire(&config);
            assert_eq!(changed(&Config::default(), &sent), Ok(config));
        }
        let sent = to_wire(&Config { aging, ..Config::default() });
        assert_eq!((sent.name(), sent.value("interval_ms")), (Some("strict"), Some(5)));
        assert_eq!((sent.value("after_ms"), sent.value("grant_us")), (Some(950), Some(1_500)));
    }

    #[test]
    fn a_setting_that_is_not_named_stays() {
        let next = changed(&Config::default(), &settings("", &[("slice_us", 2_500)])).unwrap();
        assert_eq!(next, Config { slice: Duration::from_micros(2_500), ..Config::default() });
        let next = changed(&next, &settings("round_robin", &[])).unwrap();
        assert_eq!(next.policy, PolicyKind::RoundRobin);
    }

    #[test]
    fn aging_is_switched_on_and_off() {
        let on = settings("", &[("after_ms", 900), ("grant_ms", 100)]);
        let on = changed(&Config::default(), &on).unwrap();
        assert!(on.aging.is_some());
        let off = changed(&on, &settings("", &[("after_ms", 0), ("grant_ms", 0)])).unwrap();
        assert_eq!(off, Config::default());
        let half = changed(&Config::default(), &settings("", &[("after_ms", 900)]));
        assert!(half.unwrap_err().to_string().contains("aging"));
    }

    #[test]
    fn invalid_settings_are_refused_with_the_reason() {
        let refused = |name: &str, parameters: &[(&str, u64)]| {
            changed(&Config::default(), &settings(name, parameters)).unwrap_err().to_string()
        };
        assert!(refused("best", &[]).contains("strict, round-robin, edf, fair"));
        assert!(refused("", &[("interval", 5)]).contains("no parameter interval"));
        assert!(refused("", &[("mood_ms", 5)]).contains("no parameter mood_ms"));
        let interval = refused("", &[("interval_ms", 20)]);
        assert_eq!(interval, "interval_ms is 20; interval_ms must be from 1 to 10");
        assert!(
            refused("", &[("slice_ms", u64::MAX)]).contains("slice_ms must be from 1 to 10000")
        );
    }

    /// The same number in the file and in a request are both good, or both are not.
    #[test]
    fn the_ranges_are_those_of_the_file() {
        let keys =
            ["interval_ms", "slice_ms", "preempt_timeout_ms", "hint_max_ms", "linger_max_us"];
        let numbers =
            [0, 1, 2, 10, 11, 9_999, 10_000, 10_001, 3_600_000, 10_000_000, 10_000_001, u64::MAX];
        for key in keys {
            for number in numbers {
                let text = format!("[scheduler]\n{key} = {number}\n");
                let file = crate::config::Config::parse("f", &text);
                let file = file.ok().map(|config| config.scheduler.core);
                let sent = changed(&Config::default(), &settings("", &[(key, number)])).ok();
                assert_eq!(sent, file, "{text}");
            }
        }
        for number in numbers.into_iter().filter(|number| *number > 0) {
            let text = format!("[scheduler]\naging = {{ after_ms = {number}, grant_ms = 5 }}\n");
            let file = crate::config::Config::parse("f", &text);
            let file = file.ok().map(|config| config.scheduler.core);
            let both = settings("", &[("after_ms", number), ("grant_ms", 5)]);
            assert_eq!(changed(&Config::default(), &both).ok(), file, "{text}");
        }
    }
}
