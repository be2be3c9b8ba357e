//! What a process says of itself in its environment.
//!
//! This is how a cluster's own scheduler stays in charge: it sets a variable for what it starts,
//! and nobody has to tell this machine anything. It is also a wish of whoever starts the process,
//! so it is read with care and limited by [`crate::verdict`].

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use crate::facts::Environment;
use crate::fields::quoted;
use crate::rule::Wish;

/// The variable that asks for a priority.
pub const PRIORITY: &str = "GPREEMPT_PRIORITY";
/// The variable that asks for a weight.
pub const WEIGHT: &str = "GPREEMPT_WEIGHT";
/// The variable that asks for a deadline.
pub const DEADLINE: &str = "GPREEMPT_DEADLINE_US";
/// All of them.
pub const VARIABLES: [&str; 3] = [PRIORITY, WEIGHT, DEADLINE];

/// What the variables ask for, and a sentence about each that makes no sense.
pub fn wish(environment: &Environment) -> (Wish, Vec<String>) {
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
    let weight = number(WEIGHT, 1, u64::from(Wish::WEIGHT_MAX));
    let deadline = number(DEADLINE, 1, Wish::DEADLINE_US_MAX);
    let wish = Wish {
        priority: level.and_then(|level| u8::try_from(level).ok()).and_then(Priority::new),
        weight: weight.and_then(|weight| u32::try_from(weight).ok()),
        deadline: deadline.map(Duration::from_micros),
    };
    (wish, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Wish, Vec<String>) {
        wish(&variables.iter().copied().collect())
    }

    #[test]
    fn good_values_are_taken() {
        let variables = [(PRIORITY, " 15 "), (WEIGHT, "1000"), (DEADLINE, "3600000000")];
        let (wish, notes) = read(&variables);
        assert_eq!(wish.priority, Some(Priority::MAX));
        assert_eq!(wish.weight, Some(1_000));
        assert_eq!(wish.deadline, Some(Duration::from_millis(3_600_000)));
        assert_eq!(notes, [""; 0]);
        assert!(read(&[("PATH", "/bin")]).0.is_empty());
    }

    #[test]
    fn bad_values_are_ignored_with_a_sentence() {
        let (wish, notes) = read(&[(PRIORITY, "high\n"), (WEIGHT, "0"), (DEADLINE, "1.5")]);
        assert!(wish.is_empty());
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
    fn one_bad_value_does_not_spoil_the_others() {
        let (wish, notes) = read(&[(PRIORITY, "16"), (WEIGHT, "2")]);
        assert_eq!((wish.priority, wish.weight, notes.len()), (None, Some(2), 1));
    }
}
