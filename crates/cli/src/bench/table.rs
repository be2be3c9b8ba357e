//! Results in plain text.

use gpreempt_bench::results::{Estimate, Results, SummaryRow};

use crate::text_table;

/// The summary and the lines that hold or do not.
pub(super) fn text(results: &Results) -> String {
    let heads = ["case", "mode", "p50 us", "p99 us", "p50/alone", "p99/alone", "BE kept", "n"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut failures = String::new();
    for row in &results.summary {
        rows.push(cells(row));
        if let Some(reason) = &row.failure {
            let word = if row.skipped { "skipped" } else { "failed" };
            failures.push_str(&format!("{word}: {}, {}: {reason}\n", row.case, row.mode));
        }
    }
    let mut text = text_table::render(&rows);
    text.push('\n');
    text.push_str(&failures);
    for check in &results.checks {
        let word = if check.passed { "pass" } else { "FAIL" };
        let case = check.case.as_deref().map(|case| format!(" [{case}]")).unwrap_or_default();
        text.push_str(&format!("{word}{case} {}: {}\n", check.name, check.text));
    }
    text
}

fn cells(row: &SummaryRow) -> Vec<String> {
    let us = |estimate: &Estimate| format!("{:.1}", estimate.median / 1e3);
    let times = |estimate: &Estimate| match estimate.low == estimate.high {
        true => format!("{:.2}", estimate.median),
        false => format!("{:.2} ({:.2}-{:.2})", estimate.median, estimate.low, estimate.high),
    };
    let part = |estimate: &Estimate| format!("{:.1} %", estimate.median * 100.0);
    let cell = |estimate: Option<Estimate>, show: &dyn Fn(&Estimate) -> String| {
        estimate.as_ref().map_or_else(|| "-".to_owned(), show)
    };
    let ratio = |estimate: Option<Estimate>| match row.overloaded {
        true => "never catches up".to_owned(),
        false => cell(estimate, &times),
    };
    let count = match (&row.failure, row.skipped) {
        (None, _) => row.ok.to_string(),
        (Some(_), true) => "skipped".to_owned(),
        (Some(_), false) => format!("{} FAILED", row.ok),
    };
    vec![
        row.case.clone(),
        row.mode.clone(),
        cell(row.p50_ns, &us),
        cell(row.p99_ns, &us),
        ratio(row.p50_ratio),
        ratio(row.p99_ratio),
        cell(row.be_kept, &part),
        count,
    ]
}
