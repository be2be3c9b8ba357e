//! What the machine itself did while a case was measured, in a sentence.

use super::number;
use crate::results::{Measurement, Quiet, Results};

/// What stands beside a tail that may be the machine's.
pub const DISTURBED: &str = "disturbed";

/// The worst measurement of a case, and in which modes the machine may have made tails; none where
/// nobody looked.
pub fn sentence(results: &Results, case: &str) -> Option<String> {
    let of_case = results.measurements.iter().filter(|each| each.case == case);
    let known = of_case.filter_map(|each| Some((each, Quiet::of(each)?)));
    let (each, quiet) = known.max_by(|a, b| a.1.late_p99_ns.total_cmp(&b.1.late_p99_ns))?;
    let stolen = quiet.stolen.map_or_else(String::new, |part| {
        format!(", and {} of a processor was taken away", number::percent(Some(part)))
    });
    let worst = format!(
        "The machine itself, at its worst ({}, repetition {}): a thread that only sleeps woke {} \
         late at p99 and {} at most{stolen}.",
        each.mode,
        each.repetition.saturating_add(1),
        number::nanoseconds(quiet.late_p99_ns),
        number::nanoseconds(quiet.late_max_ns),
    );
    let disturbed = disturbed(results, case);
    if disturbed.is_empty() {
        return Some(worst);
    }
    Some(format!("{worst} Disturbed repetitions: {}.", disturbed.join(", ")))
}

/// The modes with disturbed repetitions, each with how many of how many.
fn disturbed(results: &Results, case: &str) -> Vec<String> {
    let counted = results.modes.iter().filter_map(|mode| {
        let measured: Vec<&Measurement> =
            results.of(case, &mode.name).filter(|each| each.is_ok()).collect();
        let count = measured.iter().filter(|each| results.is_disturbed(each)).count();
        (count > 0).then(|| format!("{} {count} of {}", mode.name, measured.len()))
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::suite_sample;

    fn set(each: &mut Measurement, name: &str, value: f64) {
        each.numbers.iter_mut().filter(|number| number.name == name).for_each(|number| {
            number.value = value;
        });
    }

    #[test]
    fn the_worst_measurement_is_named() {
        let mut results = suite_sample();
        let text =
            |results: &Results| sentence(results, "gap-10").map(|text| text.replace('\u{a0}', " "));
        let quiet = text(&results).unwrap();
        assert!(quiet.contains("woke 80.0 µs late at p99 and 150 µs at most"), "{quiet}");
        assert!(!quiet.contains("isturbed"), "{quiet}");
        for each in &mut results.measurements {
            if each.mode == "hold" && each.repetition > 0 {
                set(each, "machine_late_p99", 1e6 * f64::from(each.repetition));
                set(each, "machine_late_max", 2.9e6);
                set(each, "machine_stolen", 0.013);
            }
        }
        assert_eq!(
            text(&results).unwrap(),
            "The machine itself, at its worst (hold, repetition 3): a thread that only sleeps woke \
             2.00 ms late at p99 and 2.90 ms at most, and 1.3% of a processor was taken away. \
             Disturbed repetitions: hold 2 of 3."
        );
        results.measurements.iter_mut().for_each(|each| {
            each.numbers.retain(|number| number.name != "machine_stolen");
        });
        assert!(text(&results).unwrap().contains("at most. Disturbed"));
    }

    #[test]
    fn results_of_which_nobody_knows_say_nothing() {
        let mut results = suite_sample();
        results.measurements.iter_mut().for_each(|each| each.numbers.clear());
        assert_eq!(sentence(&results, "gap-10"), None);
    }
}
