use super::*;
use crate::report::suite_sample;
use crate::results::{Measurement, Status};

fn estimate(values: &[f64]) -> Estimate {
    Estimate::of(values).unwrap()
}

const OLD: [f64; 5] = [10.0, 10.1, 10.2, 10.3, 10.4];

#[test]
fn only_intervals_that_are_apart_are_a_difference() {
    for (new, cost, gain) in [
        ([10.4, 11.0, 11.5, 12.0, 12.5], Verdict::Same, Verdict::Same),
        ([10.5, 11.0, 11.5, 12.0, 12.5], Verdict::Worse, Verdict::Better),
        ([9.0, 9.1, 9.2, 9.3, 9.4], Verdict::Better, Verdict::Worse),
        (OLD, Verdict::Same, Verdict::Same),
    ] {
        let (old, new) = (estimate(&OLD), estimate(&new));
        assert_eq!(verdict(Quantity::P99Ns, &old, &new), cost);
        assert_eq!(verdict(Quantity::BeKept, &old, &new), gain);
    }
}

#[test]
fn few_repetitions_are_not_sure() {
    let (old, new) = (estimate(&[10.0, 10.1, 10.2]), estimate(&[12.0, 12.1, 12.2]));
    assert_eq!(verdict(Quantity::P99Ns, &old, &new), Verdict::PerhapsWorse);
    assert_eq!(verdict(Quantity::P99Ns, &new, &old), Verdict::PerhapsBetter);
    assert_eq!(verdict(Quantity::P99Ns, &estimate(&OLD), &new), Verdict::PerhapsWorse);
}

#[test]
fn tiny_changes_are_none_and_nothing_is_no_part() {
    let (old, new) = (estimate(&[10.0; 5]), estimate(&[10.09; 5]));
    assert_eq!(verdict(Quantity::P50Ns, &old, &new), Verdict::Same);
    assert_eq!(verdict(Quantity::P50Ns, &old, &estimate(&[10.11; 5])), Verdict::Worse);
    let nothing = estimate(&[0.0; 5]);
    assert_eq!(verdict(Quantity::BeKept, &nothing, &nothing), Verdict::Same);
    assert_eq!(verdict(Quantity::BeKept, &nothing, &old), Verdict::Better);
    assert_eq!(change(&nothing, &old), None);
}

#[test]
fn a_file_is_the_same_as_itself() {
    let results = suite_sample();
    let comparison = Comparison::of(&results, &results).unwrap();
    assert!(comparison.rows.iter().all(|row| row.verdict == Verdict::Same));
    assert!(comparison.rows.iter().all(|row| row.change == Some(0.0)));
    assert!(comparison.remarks.is_empty() && !comparison.is_worse());
    // Four modes that work in three cases; the first has no best-effort work beside it.
    assert_eq!(comparison.rows.len(), 3 * (4 + 3 * 5));
}

#[test]
fn what_fails_comes_and_goes_is_told() {
    let (mut before, mut after) = (suite_sample(), suite_sample());
    for each in before.measurements.iter_mut().filter(|each| each.mode == "hold") {
        each.status = Status::Failed { reason: "it did".to_owned() };
    }
    for each in after.measurements.iter_mut().filter(|each| each.mode == "slices") {
        each.status = Status::Failed { reason: "it does".to_owned() };
    }
    before.measurements.retain(|each| each.case != "gap-10");
    after.measurements.retain(|each| each.case != "gap-60");
    before.summarise();
    after.summarise();
    let comparison = Comparison::of(&before, &after).unwrap();
    let verdict = |case: &str, mode: &str| {
        let mut rows = comparison.rows.iter();
        rows.find(|row| row.case == case && row.mode == mode).unwrap().verdict
    };
    assert_eq!(verdict("gap-30", "slices"), Verdict::Fails);
    assert_eq!(verdict("gap-30", "hold"), Verdict::Works);
    assert_eq!(verdict("gap-30", "default"), Verdict::Same);
    assert_eq!(verdict("gap-10", "default"), Verdict::New);
    assert_eq!(verdict("gap-60", "default"), Verdict::Gone);
    assert!(comparison.is_worse());
    assert_eq!(comparison.count(Verdict::Fails), 5);
}

#[test]
fn a_mode_that_fails_now_and_then_is_worse() {
    let mut before = suite_sample();
    let third = before.measurements.iter().filter(|each| each.repetition == 1).cloned();
    let third = third.map(|each| Measurement { repetition: 2, ..each }).collect::<Vec<_>>();
    before.measurements.extend(third);
    before.summarise();
    let mut after = before.clone();
    let fail = |results: &mut Results, repetition: u32| {
        let is_meant = |each: &&mut Measurement| {
            (each.case.as_str(), each.mode.as_str(), each.repetition)
                == ("gap-30", "slices", repetition)
        };
        let each = results.measurements.iter_mut().find(is_meant).unwrap();
        each.status = Status::Failed { reason: "now and then".to_owned() };
        results.summarise();
    };
    fail(&mut after, 0);
    let comparison = Comparison::of(&before, &after).unwrap();
    assert!(comparison.is_worse());
    let of_mode = |comparison: &Comparison| -> Vec<Verdict> {
        let rows = comparison.rows.iter();
        let rows = rows.filter(|row| row.case == "gap-30" && row.mode == "slices");
        rows.map(|row| row.verdict).collect()
    };
    assert_eq!(of_mode(&comparison), [Verdict::FailsInPart; 5]);
    // What failed before as often is no news, and one more is.
    let same = Comparison::of(&after, &after).unwrap();
    assert!(!same.is_worse());
    let mut more = after.clone();
    fail(&mut more, 1);
    assert_eq!(of_mode(&Comparison::of(&after, &more).unwrap()), [Verdict::FailsInPart; 5]);
    let back = Comparison::of(&after, &before).unwrap();
    assert_eq!(back.count(Verdict::FailsInPart), 0);
}

#[test]
fn other_circumstances_are_remarked_on() {
    let (before, mut after) = (suite_sample(), suite_sample());
    after.backend = "emulated".to_owned();
    after.environment.driver = None;
    after.finished = None;
    after.summary[1].disturbed = true;
    let remarks = Comparison::of(&before, &after).unwrap().remarks;
    assert_eq!(
        remarks,
        [
            "another backend: nvidia before, emulated after",
            "another driver: 570.1 before, none after",
            "the run after was interrupted",
            "the machine may have made 1 of 15 tails after (disturbed)",
        ]
    );
}

#[test]
fn files_without_anything_in_common_are_refused() {
    let (before, mut after) = (suite_sample(), suite_sample());
    after.suite.name = "another".to_owned();
    after.measurements.iter_mut().for_each(|each| each.case.push('x'));
    after.cases.iter_mut().for_each(|case| case.name.push('x'));
    after.summarise();
    let error = Comparison::of(&before, &after).unwrap_err();
    assert!(error.ends_with("suites sample and another"), "{error}");
}
