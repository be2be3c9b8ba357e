//! Two files of results, before and after: what is better, what is worse, and what cannot be told.
//!
//! A difference counts only if the two intervals have nothing in common and it is not tiny. How
//! sure that is depends on the repetitions: three of each say less than five.

mod quantity;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::results::{Estimate, Results, SummaryRow};

pub use quantity::Quantity;

/// Changes below this part are none, however sure: a simulation differs in every digit.
pub const CHANGE_MIN: f64 = 0.01;
/// With intervals of at least this confidence a difference is one, and below it may be one. Five
/// repetitions reach it.
pub const CONFIDENCE_MIN: f64 = 0.9;

/// What became of what was measured before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What else is different, so that the numbers may be for other reasons; each a sentence.
    pub remarks: Vec<String>,
    /// One for each case, mode and quantity that either file has.
    pub rows: Vec<ComparedRow>,
}

/// One quantity of one case in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRow {
    /// The case's name.
    pub case: String,
    /// The mode's name.
    pub mode: String,
    /// What is compared.
    pub quantity: Quantity,
    /// What it was.
    pub before: Option<Estimate>,
    /// What it is.
    pub after: Option<Estimate>,
    /// By which part it grew.
    pub change: Option<f64>,
    /// What is thought of that.
    pub verdict: Verdict,
}

/// What is thought of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It worked before, and failed now.
    Fails,
    /// More repetitions failed than before, and others worked.
    FailsInPart,
    /// The intervals have nothing in common.
    Worse,
    /// The same, of too few repetitions to be sure.
    PerhapsWorse,
    /// Nothing that could be told from chance.
    Same,
    /// As [`Verdict::PerhapsWorse`], the other way.
    PerhapsBetter,
    /// As [`Verdict::Worse`], the other way.
    Better,
    /// It failed before, and works now.
    Works,
    /// It was not measured before.
    New,
    /// It was not measured now.
    Gone,
}

impl Verdict {
    /// For people.
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

    /// Whether something got worse for sure.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Fails | Self::FailsInPart | Self::Worse)
    }
}

impl Comparison {
    /// Compares two files of results.
    ///
    /// # Errors
    /// If they have nothing in common to compare.
    pub fn of(before: &Results, after: &Results) -> Result<Self, String> {
        let mut rows = Vec::new();
        for (case, mode) in places(before, after) {
            let (old, new) = (row(before, case, mode), row(after, case, mode));
            rows.extend(
                Quantity::ALL.into_iter().filter_map(|q| compared(case, mode, q, old, new)),
            );
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

    /// How many rows have that verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Whether something got worse for sure.
    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.verdict.is_bad())
    }
}

/// Cases and modes of both files, in the order of the later one.
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

fn row<'r>(results: &'r Results, case: &str, mode: &str) -> Option<&'r SummaryRow> {
    results.summary.iter().find(|row| row.case == case && row.mode == mode)
}

/// The row of one quantity; none if neither file has anything to say about it.
fn compared(
    case: &str,
    mode: &str,
    quantity: Quantity,
    old: Option<&SummaryRow>,
    new: Option<&SummaryRow>,
) -> Option<ComparedRow> {
    let before = old.and_then(|row| quantity.of(row));
    let after = new.and_then(|row| quantity.of(row));
    let is_broken = |row: Option<&SummaryRow>| {
        row.is_some_and(|row| row.ok == 0 && row.failure.is_some() && !row.skipped)
    };
    let verdict = match (&before, &after) {
        (None, None) => return None,
        (Some(_), None) if is_broken(new) => Verdict::Fails,
        (Some(_), None) => Verdict::Gone,
        (None, Some(_)) if is_broken(old) => Verdict::Works,
        (None, Some(_)) => Verdict::New,
        (Some(_), Some(_)) if fails_in_part(old, new) => Verdict::FailsInPart,
        (Some(before), Some(after)) => verdict(quantity, before, after),
    };
    let change = before.zip(after).and_then(|(before, after)| change(&before, &after));
    let (case, mode) = (case.to_owned(), mode.to_owned());
    Some(ComparedRow { case, mode, quantity, before, after, change, verdict })
}

/// Whether a repetition fails that did not before. Whatever the others measured: they are those
/// that got through.
fn fails_in_part(old: Option<&SummaryRow>, new: Option<&SummaryRow>) -> bool {
    let Some((old, new)) = old.zip(new) else { return false };
    let has_failed = |row: &SummaryRow| row.failure.is_some() && !row.skipped;
    has_failed(new) && (!has_failed(old) || new.ok < old.ok)
}

fn change(before: &Estimate, after: &Estimate) -> Option<f64> {
    Some(after.median / before.median - 1.0).filter(|change| change.is_finite())
}

fn verdict(quantity: Quantity, before: &Estimate, after: &Estimate) -> Verdict {
    // From nothing to something is a change, although no part of nothing.
    let is_tiny = change(before, after)
        .map_or(before.median == after.median, |change| change.abs() < CHANGE_MIN);
    if is_tiny || !before.differs_from(after) {
        return Verdict::Same;
    }
    let is_better = (after.median < before.median) == quantity.is_cost();
    let is_sure = before.confidence.min(after.confidence) >= CONFIDENCE_MIN;
    match (is_better, is_sure) {
        (true, true) => Verdict::Better,
        (true, false) => Verdict::PerhapsBetter,
        (false, true) => Verdict::Worse,
        (false, false) => Verdict::PerhapsWorse,
    }
}

/// What else is different between two runs.
fn remarks(before: &Results, after: &Results) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut differs = |what: &str, old: &str, new: &str| {
        if old != new {
            remarks.push(format!("{what}: {old} before, {new} after"));
        }
    };
    differs("another suite", &before.suite.name, &after.suite.name);
    if before.suite.name == after.suite.name {
        differs("the suite's text was changed", &before.suite.digest, &after.suite.digest);
    }
    differs("another backend", &before.backend, &after.backend);
    let form = |results: &Results| if results.short { "short" } else { "whole" };
    differs("another form of the suite", form(before), form(after));
    let (old, new) = (&before.environment, &after.environment);
    differs("other devices", &old.devices.join(", "), &new.devices.join(", "));
    let driver = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "none".to_owned());
    differs("another driver", &driver(&old.driver), &driver(&new.driver));
    differs("another processor", &old.processor, &new.processor);
    differs("another kernel", &old.kernel, &new.kernel);
    for (name, results) in [("before", before), ("after", after)] {
        if results.finished.is_none() {
            remarks.push(format!("the run {name} was interrupted"));
        }
        let disturbed = results.summary.iter().filter(|row| row.disturbed).count();
        if disturbed > 0 {
            remarks.push(format!(
                "the machine may have made {disturbed} of {} tails {name} (disturbed)",
                results.summary.len()
            ));
        }
    }
    remarks
}
