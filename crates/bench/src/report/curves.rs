//! Plots: latency and best-effort work against the parameter in which cases differ, and the
//! distribution of latencies in each case.

use super::number::{self, label_of, logarithmic, round_range, whole};
use super::plot::{Axis, Dot, Plot, Scale, Series};
use super::{Escaped, folded};
use crate::comparison::Metric;
use crate::results::{CaseInfo, CurvePoint, Estimate, LcResult, Results};

/// Beyond this ratio of the largest to the smallest value a linear axis would crowd the small ones.
const LINEAR_MAX: f64 = 20.0;

/// Shares with a grid line.
const SHARES: [(f64, &str); 6] =
    [(0.0, "0%"), (0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"), (1.0, "100%")];

/// What is drawn against the parameter, and the titles.
const METRICS: [(Metric, &str); 3] = [
    (Metric::P50Ns, "Half of the requests are answered within"),
    (Metric::P99Ns, "99 of 100 requests are answered within"),
    (Metric::BeKept, "Part of the idle time that best-effort work used"),
];

/// Nothing if no cases are points of a curve.
pub(super) fn against_axis(results: &Results) -> String {
    let mut names: Vec<&str> = Vec::new();
    for point in results.cases.iter().filter_map(|case| case.point.as_ref()) {
        if !names.contains(&point.curve.as_str()) {
            names.push(&point.curve);
        }
    }
    let parts = names.iter().enumerate().map(|(index, name)| curve(results, index, name));
    let parts = parts.collect::<String>();
    if parts.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>Dependence on parameters</h2>\n<p class=\"note\">The median over the \
         repetitions; a line through a dot is its interval. The numbers are in the summary.</p>\n\
         {parts}</section>\n"
    )
}

/// The plots of one curve; nothing if it has fewer than two points.
fn curve(results: &Results, index: usize, name: &str) -> String {
    let cases = results.cases.iter().filter_map(|case| {
        let point = case.point.as_ref().filter(|point| point.curve == name)?;
        point.value.is_finite().then_some((case, point))
    });
    let mut cases = cases.collect::<Vec<_>>();
    cases.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let (Some(first), Some(last)) = (cases.first(), cases.last()) else { return String::new() };
    let (low, high) = (first.1.value, last.1.value);
    if low >= high {
        return String::new();
    }
    let is_logarithmic = low > 0.0 && high / low > LINEAR_MAX;
    let scale = if is_logarithmic { Scale::Logarithmic } else { Scale::Linear };
    let mut ticks: Vec<(f64, String)> =
        cases.iter().map(|(_, point)| (point.value, label(point))).collect();
    ticks.dedup_by(|later, earlier| later.0 <= earlier.0);
    let x = Axis { low, high, scale, ticks };
    let axis = Escaped(&first.1.axis).to_string();
    let figures = METRICS.into_iter().zip(0..).filter_map(|((metric, title), number)| {
        let id = format!("curve{index}-{number}");
        let figure = figure(results, &cases, (metric, title), &id, x.clone())?;
        Some(format!("<div class=\"strip\">\n<h3>{title}, against {axis}</h3>\n{figure}</div>\n"))
    });
    figures.collect()
}

fn figure(
    results: &Results,
    cases: &[(&CaseInfo, &CurvePoint)],
    (metric, title): (Metric, &str),
    id: &str,
    x: Axis,
) -> Option<String> {
    let lines = results.modes.iter().enumerate().map(|(place, mode)| {
        let dots = cases.iter().filter_map(|(case, point)| {
            let estimate = metric.of(results.row(&case.name, &mode.name)?)?;
            let Estimate { median, low, high, .. } = estimate;
            Some(Dot { x: point.value, y: median, low, high })
        });
        let dots = dots.collect::<Vec<_>>();
        let about = match (dots.first(), dots.last()) {
            (Some(first), Some(last)) => {
                format!("{} to {}", metric.show(first.y), metric.show(last.y))
            }
            _ => String::new(),
        };
        let points = dots.iter().map(|dot| (dot.x, dot.y)).collect();
        Series { name: &mode.name, place, points, dots, about }
    });
    let lines = lines.collect::<Vec<_>>();
    let dots = || lines.iter().flat_map(|line| &line.dots);
    let low = dots().map(|dot| dot.low).min_by(f64::total_cmp)?;
    let high = dots().map(|dot| dot.high).max_by(f64::total_cmp)?;
    let y = match metric {
        Metric::BeKept => {
            let quarters = [0.0, 0.25, 0.5, 0.75, 1.0];
            let ticks = quarters.map(|share| (share, format!("{:.0}%", share * 100.0)));
            Axis { low: 0.0, high: high.max(1.0), scale: Scale::Linear, ticks: ticks.to_vec() }
        }
        Metric::P50Ns | Metric::P99Ns | Metric::P50Ratio | Metric::P99Ratio => {
            latency_axis(whole(low), whole(high))
        }
    };
    Plot { id, title, height: 240, x, y, is_stepped: false, lines }.draw()
}

/// A logarithmic axis around these latencies.
fn latency_axis(low: u64, high: u64) -> Axis {
    let (low, high) = round_range(low, high);
    let ticks = logarithmic(low, high).into_iter().filter(|tick| tick.major);
    // CAST: latencies are far below what a float counts exactly.
    let ticks = ticks.map(|tick| (tick.at_ns as f64, tick.label)).collect();
    Axis { low: low as f64, high: high as f64, scale: Scale::Logarithmic, ticks }
}

/// A value and its unit, without zeros at the end.
fn label(point: &CurvePoint) -> String {
    let number = format!("{:.3}", point.value);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    match point.unit.as_str() {
        "1" | "" => number.to_owned(),
        "%" => format!("{number}%"),
        "ns" => label_of(whole(point.value)),
        "us" => label_of(whole(point.value * 1e3)),
        "ms" => label_of(whole(point.value * 1e6)),
        unit => format!("{number}\u{a0}{unit}"),
    }
}

/// The distribution of latencies in each case; nothing if no request was measured.
pub(super) fn distributions(results: &Results) -> String {
    let figures = results.cases.iter().enumerate();
    let figures = figures
        .filter_map(|(index, case)| Some((case, distribution(results, &case.name, index)?)))
        .collect::<Vec<_>>();
    if figures.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>Distribution of latencies</h2>\n<p class=\"note\">The share of requests \
         that were answered within a time, in the repetition with the median p99; further left is \
         better. The upper part is stretched to show the slowest requests; a dot marks p99.</p>\n\
         {}</section>\n",
        folded(figures)
    )
}

fn distribution(results: &Results, case: &str, index: usize) -> Option<String> {
    let measured = results.modes.iter().enumerate().filter_map(|(place, mode)| {
        Some((place, &mode.name, &median_repetition(results, case, &mode.name)?.latency))
    });
    let measured = measured.collect::<Vec<_>>();
    let latencies = || measured.iter().flat_map(|(.., latency)| &latency.cdf).map(|p| p.ns);
    let requests = measured.iter().map(|(.., latency)| latency.count).max()?;
    let x = latency_axis(latencies().min()?, latencies().max()?);
    let lines = measured.iter().map(|(place, name, latency)| {
        // CAST: latencies are far below what a float counts exactly.
        let points = latency.cdf.iter().map(|point| (point.ns as f64, point.share)).collect();
        let dot = Dot { x: latency.p99_ns as f64, y: 0.99, low: 0.99, high: 0.99 };
        let about = format!("p99 {}", number::duration(latency.p99_ns));
        Series { name, place: *place, points, dots: vec![dot], about }
    });
    let lines = lines.collect();
    let ticks = SHARES.map(|(share, label)| (share, label.to_owned())).to_vec();
    // CAST: as above.
    let rest = (0.5 / requests as f64).clamp(1e-5, 0.05);
    let y = Axis { low: 0.0, high: 1.0, scale: Scale::Tail(rest), ticks };
    let (id, title) = (format!("cdf{index}"), "Distribution of the latencies of requests");
    Plot { id: &id, title, height: 300, x, y, is_stepped: true, lines }.draw()
}

fn median_repetition<'r>(
    results: &'r Results,
    case: &'r str,
    mode: &'r str,
) -> Option<&'r LcResult> {
    let worked = results.of(case, mode).filter(|each| each.is_ok());
    let mut found = worked.filter_map(|each| each.lc.as_ref()).collect::<Vec<_>>();
    found.sort_by_key(|lc| lc.latency.p99_ns);
    let middle = found.len().checked_sub(1)? / 2;
    found.get(middle).copied()
}
