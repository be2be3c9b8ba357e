//! How latencies are spread: a picture for each case.

use super::super::cdf::{self, Curve};
use super::folded;
use crate::results::{LcResult, Results};

/// The whole section; nothing if no request was measured.
pub(super) fn section(results: &Results) -> String {
    let figures = results.cases.iter().enumerate().filter_map(|(index, case)| {
        let curves = results.modes.iter().enumerate().filter_map(|(place, mode)| {
            let lc = middle(results, &case.name, &mode.name)?;
            let points = lc.latency.cdf.iter().map(|point| (point.ns, point.share)).collect();
            let (requests, p50_ns) = (lc.latency.count, Some(lc.latency.p50_ns));
            let p99_ns = Some(lc.latency.p99_ns);
            Some(Curve { name: &mode.name, place, points, requests, p50_ns, p99_ns })
        });
        let figure = cdf::figure(&format!("cdf{index}"), "requests", &curves.collect::<Vec<_>>());
        Some((case, figure?))
    });
    let figures = figures.collect::<Vec<_>>();
    if figures.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>How long requests take</h2>\n<p class=\"note\">Of each mode the repetition \
         whose p99 is the middle one.</p>\n{}</section>\n",
        folded(figures)
    )
}

/// The repetition whose p99 is the middle one.
fn middle<'r>(results: &'r Results, case: &'r str, mode: &'r str) -> Option<&'r LcResult> {
    let worked = results.of(case, mode).filter(|each| each.is_ok());
    let mut found = worked.filter_map(|each| each.lc.as_ref()).collect::<Vec<_>>();
    found.sort_by_key(|lc| lc.latency.p99_ns);
    let middle = found.len().checked_sub(1)? / 2;
    found.get(middle).copied()
}
