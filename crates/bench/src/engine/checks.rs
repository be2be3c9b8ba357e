//! The criteria of a suite, and whether the results meet them.

use crate::results::{Check, Estimate, Measurement, Results, SummaryRow};
use crate::suite::{Criterion, Quantity, Suite, Threshold};

/// Checks every criterion whose case was measured in its mode.
pub fn checks(suite: &Suite, results: &Results) -> Vec<Check> {
    let mut checks = Vec::new();
    for criterion in &suite.criteria {
        if criterion.backend.as_ref().is_some_and(|backend| *backend != results.backend) {
            continue;
        }
        for case in &results.cases {
            if !criterion.cases.is_empty() && !criterion.cases.contains(&case.name) {
                continue;
            }
            checks.extend(check(criterion, &case.name, results));
        }
    }
    checks.extend(exactness(results));
    checks
}

fn check(criterion: &Criterion, case: &str, results: &Results) -> Option<Check> {
    let row = results.row(case, &criterion.mode)?;
    let value = value(&criterion.what, row, results);
    let what = criterion.what.name();
    let (word, limit) = match criterion.limit {
        Threshold::AtMost(_) => ("at most", criterion.limit.value()),
        Threshold::AtLeast(_) => ("at least", criterion.limit.value()),
    };
    let (passed, found) = match (value, &row.failure) {
        (_, Some(reason)) => (false, format!("failed: {reason}")),
        (Some(value), None) => (criterion.limit.allows(value.median), shown(&value)),
        (None, None) => (false, "was not measured".to_owned()),
    };
    Some(Check {
        name: criterion.name.clone(),
        case: Some(case.to_owned()),
        mode: Some(criterion.mode.clone()),
        passed,
        text: format!("{what} {found}; must be {word} {limit}"),
    })
}

fn shown(value: &Estimate) -> String {
    let Estimate { median, low, high, .. } = value;
    match low == high {
        true => format!("is {median:.3}"),
        false => format!("is {median:.3} ({low:.3} to {high:.3})"),
    }
}

fn value(what: &Quantity, row: &SummaryRow, results: &Results) -> Option<Estimate> {
    match what {
        Quantity::P50Ratio => row.p50_ratio,
        Quantity::P99Ratio => row.p99_ratio,
        Quantity::MeanRatio => row.mean_ratio,
        Quantity::BeKept => row.be_kept,
        Quantity::Number(name) => results.number(&row.case, &row.mode, name),
    }
}

/// The published design runs killed kernels again, so it is exempt from the exactness check.
const REPEATS: &str = "reset";

/// Every suite checks that best-effort kernels ran exactly once.
fn exactness(results: &Results) -> Option<Check> {
    let checked: Vec<(&Measurement, bool)> = results
        .measurements
        .iter()
        .filter(|each| each.mode != REPEATS)
        .filter_map(|each| Some((each, each.be.as_ref()?.exact?)))
        .collect();
    let wrong: Vec<String> = checked
        .iter()
        .filter(|(_, exact)| !exact)
        .map(|(each, _)| format!("{}, {}", each.case, each.mode))
        .collect();
    if checked.is_empty() {
        return None;
    }
    let text = match wrong.is_empty() {
        true => format!("in all {} measurements that checked it", checked.len()),
        false => format!("violated in: {}", wrong.join("; ")),
    };
    let name = "best-effort work happened exactly once".to_owned();
    Some(Check { name, case: None, mode: None, passed: wrong.is_empty(), text })
}
