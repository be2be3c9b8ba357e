//! Compares two results files: what got better, what got worse, and what is within the noise.
//!
//! A difference counts only if the confidence intervals do not overlap and it is at least
//! [`CHANGE_MIN`]. With few repetitions the confidence is low and the difference is a "perhaps".

use serde::Serialize;

use crate::report::{nanoseconds, percent, times};
use crate::results::{Estimate, Results, SummaryRow};

/// Smaller relative changes do not count, however certain: simulations differ in every digit.
pub const CHANGE_MIN: f64 = 0.01;
/// Differences of intervals with less confidence are a "perhaps". Five repetitions reach it.
pub const CONFIDENCE_MIN: f64 = 0.9;

/// A number of the summary that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    P50Ns,
    P99Ns,
    P50Ratio,
    P99Ratio,
    BeKept,
}

impl Metric {
    /// In the order in which they are shown.
    pub const ALL: [Self; 5] =
        [Self::P50Ns, Self::P99Ns, Self::P50Ratio, Self::P99Ratio, Self::BeKept];

    pub const fn name(self) -> &'static str {
        match self {
            Self::P50Ns => "p50",
            Self::P99Ns => "p99",
            Self::P50Ratio => "p50 vs alone",
            Self::P99Ratio => "p99 vs alone",
            Self::BeKept => "BE kept",
        }
    }

    pub const fn is_cost(self) -> bool {
        !matches!(self, Self::BeKept)
    }

    pub(crate) const fn of(self, row: &SummaryRow) -> Option<Estimate> {
        match self {
            Self::P50Ns => row.p50_ns,
            Self::P99Ns => row.p99_ns,
            Self::P50Ratio => row.p50_ratio,
            Self::P99Ratio => row.p99_ratio,
            Self::BeKept => row.be_kept,
        }
    }

    pub fn show(self, value: f64) -> String {
        match self {
            Self::P50Ns | Self::P99Ns => nanoseconds(value),
            Self::P50Ratio | Self::P99Ratio => times(value),
            Self::BeKept => percent(Some(value)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Other differences between the runs, which may have caused those of the numbers.
    pub remarks: Vec<String>,
    /// One for each case, mode and metric that either file has.
    pub rows: Vec<ComparedRow>,
}

/// One metric of one case in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRow {
    pub case: String,
    pub mode: String,
    #[serde(rename = "quantity")]
    pub metric: Metric,
    pub before: Option<Estimate>,
    pub after: Option<Estimate>,
    /// The relative change: 0.1 is 10 % more.
    pub change: Option<f64>,
    #[serde(rename = "verdict")]
    pub assessment: Assessment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assessment {
    /// Worked before, fails now.
    Fails,
    /// More repetitions fail than before, and others work.
    FailsInPart,
    /// The intervals do not overlap.
    Worse,
    /// The same, with too few repetitions to be certain.
    PerhapsWorse,
    /// Within the noise.
    Same,
    PerhapsBetter,
    Better,
    Works,
    New,
    Gone,
}

impl Assessment {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fails => "FAILS NOW",
            Self::FailsInPart => "fails in part",
            Self::Worse => "worse",
            Self::PerhapsWorse => "perhaps worse",
            Self::Same => "same",
            Self::PerhapsBetter => "perhaps better",
            Self::Better => "better",
            Self::Works => "works now",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }

    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Fails | Self::FailsInPart | Self::Worse)
    }
}

impl Comparison {
    /// # Errors
    /// If they have no case and mode in common.
    pub fn of(before: &Results, after: &Results) -> Result<Self, String> {
        let mut rows = Vec::new();
        for (case, mode) in places(before, after) {
            let (old, new) = (before.row(case, mode), after.row(case, mode));
            rows.extend(Metric::ALL.into_iter().filter_map(|q| compared(case, mode, q, old, new)));
        }
        let shared = rows.iter().any(|row| row.before.is_some() && row.after.is_some());
        if !shared {
            return Err(format!(
                "the two files have no case and mode in common: suites {} and {}",
                before.suite.name, after.suite.name
            ));
        }
        Ok(Self { remarks: remarks(before, after), rows })
    }

    pub fn count(&self, assessment: Assessment) -> usize {
        self.rows.iter().filter(|row| row.assessment == assessment).count()
    }

    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.assessment.is_bad())
    }
}

/// The cases and modes of both files, in the order of the later one.
fn places<'r>(before: &'r Results, after: &'r Results) -> Vec<(&'r str, &'r str)> {
    let mut places: Vec<(&str, &str)> = Vec::new();
    for row in after.summary.iter().chain(&before.summary) {
        let place = (row.case.as_str(), row.mode.as_str());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The row of one metric; none if neither file has it.
fn compared(
    case: &str,
    mode: &str,
    metric: Metric,
    old: Option<&SummaryRow>,
    new: Option<&SummaryRow>,
) -> Option<ComparedRow> {
    let before = old.and_then(|row| metric.of(row));
    let after = new.and_then(|row| metric.of(row));
    let is_broken = |row: Option<&SummaryRow>| {
        row.is_some_and(|row| row.ok == 0 && row.failure.is_some() && !row.skipped)
    };
    let assessment = match (&before, &after) {
        (None, None) => return None,
        (Some(_), None) if is_broken(new) => Assessment::Fails,
        (Some(_), None) => Assessment::Gone,
        (None, Some(_)) if is_broken(old) => Assessment::Works,
        (None, Some(_)) => Assessment::New,
        (Some(_), Some(_)) if fails_in_part(old, new) => Assessment::FailsInPart,
        (Some(before), Some(after)) => assessment(metric, before, after),
    };
    let change = before.zip(after).and_then(|(before, after)| change(&before, &after));
    let (case, mode) = (case.to_owned(), mode.to_owned());
    Some(ComparedRow { case, mode, metric, before, after, change, assessment })
}

/// Whether more repetitions fail than before, whatever the successful ones measured.
fn fails_in_part(old: Option<&SummaryRow>, new: Option<&SummaryRow>) -> bool {
    let Some((old, new)) = old.zip(new) else { return false };
    let has_failed = |row: &SummaryRow| row.failure.is_some() && !row.skipped;
    has_failed(new) && (!has_failed(old) || new.ok < old.ok)
}

fn change(before: &Estimate, after: &Estimate) -> Option<f64> {
    Some(after.median / before.median - 1.0).filter(|change| change.is_finite())
}

fn assessment(metric: Metric, before: &Estimate, after: &Estimate) -> Assessment {
    // From zero to something is a change, although not a relative one.
    let is_tiny = change(before, after)
        .map_or(before.median == after.median, |change| change.abs() < CHANGE_MIN);
    if is_tiny || !before.differs_from(after) {
        return Assessment::Same;
    }
    let is_better = (after.median < before.median) == metric.is_cost();
    let is_certain = before.confidence.min(after.confidence) >= CONFIDENCE_MIN;
    match (is_better, is_certain) {
        (true, true) => Assessment::Better,
        (true, false) => Assessment::PerhapsBetter,
        (false, true) => Assessment::Worse,
        (false, false) => Assessment::PerhapsWorse,
    }
}

/// Other differences between two runs.
fn remarks(before: &Results, after: &Results) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut differs = |what: &str, old: &str, new: &str| {
        if old != new {
            remarks.push(format!("{what}: {old} before, {new} after"));
        }
    };
    differs("different suite", &before.suite.name, &after.suite.name);
    if before.suite.name == after.suite.name {
        differs("the suite's text was changed", &before.suite.digest, &after.suite.digest);
    }
    differs("different backend", &before.backend, &after.backend);
    let form = |results: &Results| if results.short { "short" } else { "whole" };
    differs("different form of the suite", form(before), form(after));
    let (old, new) = (&before.environment, &after.environment);
    differs("different devices", &old.devices.join(", "), &new.devices.join(", "));
    let driver = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "none".to_owned());
    differs("different driver", &driver(&old.driver), &driver(&new.driver));
    differs("different processor", &old.processor, &new.processor);
    differs("different kernel", &old.kernel, &new.kernel);
    for (name, results) in [("before", before), ("after", after)] {
        if results.finished.is_none() {
            remarks.push(format!("the run {name} was interrupted"));
        }
        let disturbed = results.summary.iter().filter(|row| row.disturbed).count();
        if disturbed > 0 {
            remarks.push(format!(
                "host noise may have caused {disturbed} of {} tails {name} (disturbed)",
                results.summary.len()
            ));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_results;
    use crate::results::{Measurement, Status};

    fn estimate(values: &[f64]) -> Estimate {
        Estimate::of(values).unwrap()
    }

    const OLD: [f64; 5] = [10.0, 10.1, 10.2, 10.3, 10.4];

    #[test]
    fn only_intervals_that_do_not_overlap_are_a_difference() {
        for (new, cost, gain) in [
            ([10.4, 11.0, 11.5, 12.0, 12.5], Assessment::Same, Assessment::Same),
            ([10.5, 11.0, 11.5, 12.0, 12.5], Assessment::Worse, Assessment::Better),
            ([9.0, 9.1, 9.2, 9.3, 9.4], Assessment::Better, Assessment::Worse),
            (OLD, Assessment::Same, Assessment::Same),
        ] {
            let (old, new) = (estimate(&OLD), estimate(&new));
            assert_eq!(assessment(Metric::P99Ns, &old, &new), cost);
            assert_eq!(assessment(Metric::BeKept, &old, &new), gain);
        }
    }

    #[test]
    fn few_repetitions_are_not_certain() {
        let (old, new) = (estimate(&[10.0, 10.1, 10.2]), estimate(&[12.0, 12.1, 12.2]));
        assert_eq!(assessment(Metric::P99Ns, &old, &new), Assessment::PerhapsWorse);
        assert_eq!(assessment(Metric::P99Ns, &new, &old), Assessment::PerhapsBetter);
        assert_eq!(assessment(Metric::P99Ns, &estimate(&OLD), &new), Assessment::PerhapsWorse);
    }

    #[test]
    fn tiny_changes_do_not_count_and_zero_has_no_relative_change() {
        let (old, new) = (estimate(&[10.0; 5]), estimate(&[10.09; 5]));
        assert_eq!(assessment(Metric::P50Ns, &old, &new), Assessment::Same);
        assert_eq!(assessment(Metric::P50Ns, &old, &estimate(&[10.11; 5])), Assessment::Worse);
        let nothing = estimate(&[0.0; 5]);
        assert_eq!(assessment(Metric::BeKept, &nothing, &nothing), Assessment::Same);
        assert_eq!(assessment(Metric::BeKept, &nothing, &old), Assessment::Better);
        assert_eq!(change(&nothing, &old), None);
    }

    #[test]
    fn a_file_is_the_same_as_itself() {
        let results = sample_results();
        let comparison = Comparison::of(&results, &results).unwrap();
        assert!(comparison.rows.iter().all(|row| row.assessment == Assessment::Same));
        assert!(comparison.rows.iter().all(|row| row.change == Some(0.0)));
        assert!(comparison.remarks.is_empty() && !comparison.is_worse());
        // Four modes that work in three cases; the first has no best-effort work beside it.
        assert_eq!(comparison.rows.len(), 3 * (4 + 3 * 5));
    }

    #[test]
    fn failures_and_missing_cases_are_reported() {
        let (mut before, mut after) = (sample_results(), sample_results());
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
        let assessment = |case: &str, mode: &str| {
            let mut rows = comparison.rows.iter();
            rows.find(|row| row.case == case && row.mode == mode).unwrap().assessment
        };
        assert_eq!(assessment("gap-30", "slices"), Assessment::Fails);
        assert_eq!(assessment("gap-30", "hold"), Assessment::Works);
        assert_eq!(assessment("gap-30", "default"), Assessment::Same);
        assert_eq!(assessment("gap-10", "default"), Assessment::New);
        assert_eq!(assessment("gap-60", "default"), Assessment::Gone);
        assert!(comparison.is_worse());
        assert_eq!(comparison.count(Assessment::Fails), 5);
    }

    #[test]
    fn a_mode_that_fails_in_some_repetitions_is_worse() {
        let mut before = sample_results();
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
        let of_mode = |comparison: &Comparison| -> Vec<Assessment> {
            let rows = comparison.rows.iter();
            let rows = rows.filter(|row| row.case == "gap-30" && row.mode == "slices");
            rows.map(|row| row.assessment).collect()
        };
        assert_eq!(of_mode(&comparison), [Assessment::FailsInPart; 5]);
        // What failed before as often is no news, and one more is.
        let same = Comparison::of(&after, &after).unwrap();
        assert!(!same.is_worse());
        let mut more = after.clone();
        fail(&mut more, 1);
        assert_eq!(of_mode(&Comparison::of(&after, &more).unwrap()), [Assessment::FailsInPart; 5]);
        let back = Comparison::of(&after, &before).unwrap();
        assert_eq!(back.count(Assessment::FailsInPart), 0);
    }

    #[test]
    fn other_differences_of_the_runs_are_remarked_on() {
        let (before, mut after) = (sample_results(), sample_results());
        after.backend = "emulated".to_owned();
        after.environment.driver = None;
        after.finished = None;
        after.summary[1].disturbed = true;
        let remarks = Comparison::of(&before, &after).unwrap().remarks;
        assert_eq!(
            remarks,
            [
                "different backend: nvidia before, emulated after",
                "different driver: 570.1 before, none after",
                "the run after was interrupted",
                "host noise may have caused 1 of 15 tails after (disturbed)",
            ]
        );
    }

    #[test]
    fn files_without_a_common_case_are_refused() {
        let (before, mut after) = (sample_results(), sample_results());
        after.suite.name = "another".to_owned();
        after.measurements.iter_mut().for_each(|each| each.case.push('x'));
        after.cases.iter_mut().for_each(|case| case.name.push('x'));
        after.summarise();
        let error = Comparison::of(&before, &after).unwrap_err();
        assert!(error.ends_with("suites sample and another"), "{error}");
    }
}
