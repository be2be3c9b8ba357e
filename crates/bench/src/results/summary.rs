//! One row for each case and mode, over all repetitions.

use serde::{Deserialize, Serialize};

use super::disturbance::is_in_median;
use super::{Estimate, Measurement, Results, Status};

/// What a case came to in a mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryRow {
    /// The case's name.
    pub case: String,
    /// The mode's name.
    pub mode: String,
    /// Repetitions that worked.
    pub ok: u32,
    /// Why the others did not; the first reason.
    pub failure: Option<String>,
    /// Whether the first of the others was not even tried.
    pub skipped: bool,
    /// Whether requests came faster than they were served, so that every number about them says how
    /// long somebody measured.
    #[serde(default)]
    pub overloaded: bool,
    /// Whether the p99, or its ratio, is of a repetition in which the machine was so late that it
    /// may have made the tail; also if that was so with nobody beside, of which the ratio is one.
    #[serde(default)]
    pub disturbed: bool,
    /// Half of all requests take at most this (ns).
    pub p50_ns: Option<Estimate>,
    /// 99 % do (ns).
    pub p99_ns: Option<Estimate>,
    /// The average (ns), to compare with papers.
    pub mean_ns: Option<Estimate>,
    /// p50 as a multiple of that of running alone, in the same repetition.
    pub p50_ratio: Option<Estimate>,
    /// The same for p99.
    pub p99_ratio: Option<Estimate>,
    /// The same for the average.
    pub mean_ratio: Option<Estimate>,
    /// What best-effort work keeps of the time that latency-critical work leaves.
    pub be_kept: Option<Estimate>,
}

/// The rows, cases in order and modes in order.
pub(super) fn rows(results: &Results) -> Vec<SummaryRow> {
    let mut rows = Vec::new();
    for case in &results.cases {
        for mode in &results.modes {
            let alone = mode.alone.as_deref().unwrap_or(&mode.name);
            rows.extend(row(results, &case.name, &mode.name, alone));
        }
    }
    rows
}

fn row(results: &Results, case: &str, mode: &str, alone: &str) -> Option<SummaryRow> {
    let all: Vec<&Measurement> = results.of(case, mode).collect();
    if all.is_empty() {
        return None;
    }
    let ok: Vec<&Measurement> = all.iter().copied().filter(|each| each.is_ok()).collect();
    let failure = all.iter().find_map(|each| match &each.status {
        Status::Ok => None,
        Status::Failed { reason } => Some((reason.clone(), false)),
        Status::Skipped { reason } => Some((reason.clone(), true)),
    });
    let beside = |repetition: u32| {
        results.of(case, alone).find(|each| each.repetition == repetition && each.is_ok())
    };
    let estimate = |read: fn(&Measurement) -> Option<f64>| {
        Estimate::of(&ok.iter().filter_map(|each| read(each)).collect::<Vec<_>>())
    };
    let ratio = |read: fn(&Measurement) -> Option<f64>| {
        let ratios = ok.iter().filter_map(|each| {
            let base = read(beside(each.repetition)?)?;
            Some(read(each)? / base).filter(|ratio| ratio.is_finite())
        });
        Estimate::of(&ratios.collect::<Vec<_>>())
    };
    let is_disturbed = |each: &Measurement| results.is_disturbed(each);
    let tails = ok.iter().filter_map(|each| Some((p99(each)?, is_disturbed(each))));
    // To itself everything is 1: such a ratio is of no repetition in particular.
    let tail_ratios = ok.iter().filter(|_| mode != alone).filter_map(|each| {
        let base = beside(each.repetition)?;
        Some((p99(each)? / p99(base)?, is_disturbed(each) || is_disturbed(base)))
    });
    let disturbed = is_in_median(tails.collect()) || is_in_median(tail_ratios.collect());
    Some(SummaryRow {
        case: case.to_owned(),
        mode: mode.to_owned(),
        ok: u32::try_from(ok.len()).unwrap_or(u32::MAX),
        skipped: failure.as_ref().is_some_and(|(_, skipped)| *skipped),
        failure: failure.map(|(reason, _)| reason),
        // In most repetitions.
        overloaded: ok.iter().filter(|each| is_overloaded(each)).count() * 2 > ok.len(),
        disturbed,
        p50_ns: estimate(p50),
        p99_ns: estimate(p99),
        mean_ns: estimate(mean),
        p50_ratio: ratio(p50),
        p99_ratio: ratio(p99),
        mean_ratio: ratio(mean),
        be_kept: estimate(|each| each.be.as_ref()?.kept),
    })
}

/// Of requests that are only late now and then hardly any wait at the end: not one in twenty.
fn is_overloaded(each: &Measurement) -> bool {
    each.lc.as_ref().is_some_and(|lc| lc.unfinished.saturating_mul(20) > lc.latency.count.max(60))
}

// CAST: latencies are far below what a float counts exactly.
fn p50(each: &Measurement) -> Option<f64> {
    each.lc.as_ref().map(|lc| lc.latency.p50_ns as f64)
}

// CAST: as above.
fn p99(each: &Measurement) -> Option<f64> {
    each.lc.as_ref().map(|lc| lc.latency.p99_ns as f64)
}

fn mean(each: &Measurement) -> Option<f64> {
    each.lc.as_ref().map(|lc| lc.latency.mean_ns)
}
