//! The variables by which a process asks for attributes in its environment.
//!
//! A cluster's scheduler sets them for the jobs it starts, so that no rule is needed on each
//! machine. Every user can set them as well, so [`crate::assignment`] limits the priority.

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_wire::memory_size::parse_bytes;

use crate::fields::quoted;
use crate::process_attributes::Environment;
use crate::rule::AttrSettings;

pub const PRIORITY: &str = "GPREEMPT_PRIORITY";
pub const WEIGHT: &str = "GPREEMPT_WEIGHT";
pub const DEADLINE: &str = "GPREEMPT_DEADLINE_US";
pub const LATENCY_BUDGET: &str = "GPREEMPT_LATENCY_BUDGET";
pub const MEMORY: &str = "GPREEMPT_MEMORY";
pub const EVICTABLE: &str = "GPREEMPT_EVICTABLE";
pub const VARIABLES: [&str; 6] = [PRIORITY, WEIGHT, DEADLINE, LATENCY_BUDGET, MEMORY, EVICTABLE];

/// The settings in an environment, and a sentence about each invalid value.
pub fn settings(environment: &Environment) -> (AttrSettings, Vec<String>) {
    let mut notes = Vec::new();
    let mut number = |name: &str, least: u64, most: u64| -> Option<u64> {
        let written = environment.get(name)?;
        let number = written.trim().parse().ok().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let written = quoted(written);
            notes.push(format!(
                "{name} is {written} and was ignored; it must be an integer from {least} to {most}."
            ));
        }
        number
    };
    let level = number(PRIORITY, 0, u64::from(Priority::MAX.level()));
    let weight = number(WEIGHT, 1, u64::from(AttrSettings::WEIGHT_MAX));
    let deadline = number(DEADLINE, 1, AttrSettings::DEADLINE_US_MAX);
    let evictable = number(EVICTABLE, 0, 1).map(|number| number == 1);
    let latency_budget = environment.get(LATENCY_BUDGET).and_then(|written| {
        let read: Result<LatencyBudget, _> = written.trim().parse();
        let noted = |error| {
            let written = quoted(written);
            notes.push(format!("{LATENCY_BUDGET} is {written} and was ignored; {error}."));
        };
        read.map_err(noted).ok()
    });
    let memory = environment.get(MEMORY).and_then(|written| {
        let noted = |error| {
            let written = quoted(written);
            notes.push(format!("{MEMORY} is {written} and was ignored; {error}."));
        };
        parse_bytes(written.trim()).map_err(noted).ok()
    });
    let settings = AttrSettings {
        priority: level.and_then(|level| u8::try_from(level).ok()).and_then(Priority::new),
        weight: weight.and_then(|weight| u32::try_from(weight).ok()),
        deadline: deadline.map(Duration::from_micros),
        latency_budget,
        memory,
        evictable,
    };
    (settings, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (AttrSettings, Vec<String>) {
        settings(&variables.iter().copied().collect())
    }

    #[test]
    fn valid_values_are_used() {
        let numbers = [(PRIORITY, " 15 "), (WEIGHT, "1000"), (DEADLINE, "3600000000")];
        let variables = [&numbers[..], &[(LATENCY_BUDGET, " 20% ")]].concat();
        let (settings, notes) = read(&variables);
        assert_eq!(settings.priority, Some(Priority::MAX));
        assert_eq!(settings.weight, Some(1_000));
        assert_eq!(settings.deadline, Some(Duration::from_millis(3_600_000)));
        assert_eq!(settings.latency_budget, LatencyBudget::from_percent(20));
        assert_eq!(notes, [""; 0]);
        assert!(read(&[("PATH", "/bin")]).0.is_empty());
    }

    #[test]
    fn invalid_values_are_ignored_and_noted() {
        let (settings, notes) = read(&[(PRIORITY, "high\n"), (WEIGHT, "0"), (DEADLINE, "1.5")]);
        assert!(settings.is_empty());
        let expected = [
            ("GPREEMPT_PRIORITY is \"high\\n\"", "0 to 15."),
            ("GPREEMPT_WEIGHT is \"0\"", "1 to 1000."),
            ("GPREEMPT_DEADLINE_US is \"1.5\"", "1 to 3600000000."),
        ]
        .map(|(what, range)| format!("{what} and was ignored; it must be an integer from {range}"));
        assert_eq!(notes, expected);
        for bad in ["", "-1", "16", "99999999999999999999999", "0x5"] {
            assert!(read(&[(PRIORITY, bad)]).0.is_empty(), "{bad}");
        }
    }

    #[test]
    fn invalid_latency_budgets_are_ignored_and_noted() {
        for bad in ["401%", "x", "-1", "0.2", ""] {
            let (settings, notes) = read(&[(LATENCY_BUDGET, bad)]);
            let note = format!(
                "GPREEMPT_LATENCY_BUDGET is \"{bad}\" and was ignored; a latency budget is a whole \
                 number of per cent from 0 to 400, such as 20%."
            );
            assert_eq!((settings.is_empty(), notes), (true, vec![note]));
        }
        assert!(!read(&[(LATENCY_BUDGET, "0")]).0.is_empty(), "zero is a setting");
    }

    #[test]
    fn memory_has_a_unit_and_evictable_is_0_or_1() {
        let (settings, notes) = read(&[(MEMORY, "60GiB"), (EVICTABLE, "1")]);
        assert_eq!((settings.memory, settings.evictable), (Some(60 << 30), Some(true)));
        assert_eq!(notes, [""; 0]);
        let (settings, notes) = read(&[(MEMORY, "60"), (EVICTABLE, "yes")]);
        assert!(settings.is_empty());
        let expected = [
            "GPREEMPT_EVICTABLE is \"yes\" and was ignored; it must be an integer from 0 to 1.",
            "GPREEMPT_MEMORY is \"60\" and was ignored; take a whole number above 0 with its unit \
             KiB, MiB, GiB or TiB, for example 24GiB.",
        ];
        assert_eq!(notes, expected);
        assert_eq!(read(&[(EVICTABLE, "0")]).0.evictable, Some(false));
    }

    #[test]
    fn an_invalid_value_does_not_affect_the_others() {
        let (settings, notes) = read(&[(PRIORITY, "16"), (WEIGHT, "2")]);
        assert_eq!((settings.priority, settings.weight, notes.len()), (None, Some(2), 1));
    }
}
