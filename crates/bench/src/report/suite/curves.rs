//! Cases that differ in one number: latency and kept work against it.

use super::super::html::Escaped;
use super::super::number;
use super::super::plot::{Axis, Line, Plot, Point};
use super::super::ticks;
use crate::results::{CaseInfo, CurvePoint, Estimate, Results, SummaryRow};

/// What is drawn against the axis.
#[derive(Clone, Copy, Debug)]
enum Quantity {
    P50,
    P99,
    Kept,
}

impl Quantity {
    const ALL: [Self; 3] = [Self::P50, Self::P99, Self::Kept];

    const fn title(self) -> &'static str {
        match self {
            Self::P50 => "Half of the requests are answered within",
            Self::P99 => "99 of 100 requests are answered within",
            Self::Kept => "Best-effort work kept of the time that requests leave",
        }
    }

    const fn of(self, row: &SummaryRow) -> Option<&Estimate> {
        match self {
            Self::P50 => row.p50_ns.as_ref(),
            Self::P99 => row.p99_ns.as_ref(),
            Self::Kept => row.be_kept.as_ref(),
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::P50 | Self::P99 => number::nanoseconds(value),
            Self::Kept => number::percent(Some(value)),
        }
    }

    /// The vertical axis for values between two.
    fn axis(self, low: f64, high: f64) -> Axis {
        match self {
            Self::P50 | Self::P99 => {
                let (low, high) = ticks::round_range(number::whole(low), number::whole(high));
                let ticks = ticks::logarithmic(low, high).into_iter().filter(|tick| tick.major);
                // CAST: latencies are far below what a float counts exactly.
                let ticks = ticks.map(|tick| (tick.at_ns as f64, tick.label)).collect();
                Axis { low: low as f64, high: high as f64, is_logarithmic: true, ticks }
            }
            Self::Kept => {
                let high = high.max(1.0);
                let quarters = [0.0, 0.25, 0.5, 0.75, 1.0];
                let ticks = quarters.map(|share| (share, format!("{:.0}%", share * 100.0)));
                Axis { low: 0.0, high, is_logarithmic: false, ticks: ticks.to_vec() }
            }
        }
    }
}

/// The whole section; nothing if no cases are points of a curve.
pub(super) fn section(results: &Results) -> String {
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
        "<section>\n<h2>What it depends on</h2>\n<p class=\"note\">The median over the \
         repetitions; a line through a dot is its interval. The numbers are in the summary.</p>\n\
         {parts}</section>\n"
    )
}

/// The pictures of one curve; nothing if it has fewer than two points.
fn curve(results: &Results, index: usize, name: &str) -> String {
    let cases = results.cases.iter().filter_map(|case| {
        let point = case.point.as_ref().filter(|point| point.curve == name)?;
        point.value.is_finite().then_some((case, point))
    });
    let mut cases = cases.collect::<Vec<_>>();
    cases.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let (Some(first), Some(last)) = (cases.first(), cases.last()) else { return String::new() };
    if first.1.value >= last.1.value {
        return String::new();
    }
    let x = horizontal(&cases);
    let axis = Escaped(&first.1.axis).to_string();
    let figures = Quantity::ALL.into_iter().zip(0..).filter_map(|(quantity, number)| {
        let id = format!("curve{index}-{number}");
        let figure = figure(results, &cases, quantity, &id, x.clone())?;
        let title = quantity.title();
        Some(format!("<div class=\"strip\">\n<h3>{title}, against {axis}</h3>\n{figure}</div>\n"))
    });
    figures.collect()
}

fn figure(
    results: &Results,
    cases: &[(&CaseInfo, &CurvePoint)],
    quantity: Quantity,
    id: &str,
    x: Axis,
) -> Option<String> {
    let lines = results.modes.iter().enumerate().map(|(place, mode)| {
        let points = cases.iter().filter_map(|(case, point)| {
            let mut rows = results.summary.iter();
            let row = rows.find(|row| row.case == case.name && row.mode == mode.name)?;
            let Estimate { median, low, high, .. } = *quantity.of(row)?;
            Some(Point { x: point.value, y: median, low, high })
        });
        let points = points.collect::<Vec<_>>();
        let about = match (points.first(), points.last()) {
            (Some(first), Some(last)) => {
                format!("{} to {}", quantity.text(first.y), quantity.text(last.y))
            }
            _ => String::new(),
        };
        Line { name: &mode.name, place, points, about }
    });
    let lines = lines.collect::<Vec<_>>();
    let points = || lines.iter().flat_map(|line| &line.points);
    let low = points().map(|point| point.low).min_by(f64::total_cmp)?;
    let high = points().map(|point| point.high).max_by(f64::total_cmp)?;
    let y = quantity.axis(low, high);
    Plot { id, title: quantity.title(), x, y, lines }.draw()
}

/// The horizontal axis, with a tick at every case.
fn horizontal(cases: &[(&CaseInfo, &CurvePoint)]) -> Axis {
    /// From this factor on, equal distances would crowd the small values together.
    const FACTOR: f64 = 20.0;
    let values = || cases.iter().map(|(_, point)| point.value);
    let low = values().min_by(f64::total_cmp).unwrap_or(0.0);
    let high = values().max_by(f64::total_cmp).unwrap_or(1.0);
    let is_logarithmic = low > 0.0 && high / low > FACTOR;
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for (_, point) in cases {
        if ticks.last().is_none_or(|last| last.0 < point.value) {
            ticks.push((point.value, label(point)));
        }
    }
    Axis { low, high, is_logarithmic, ticks }
}

/// A value and its unit, without zeros at the end.
fn label(point: &CurvePoint) -> String {
    let number = format!("{:.3}", point.value);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    match point.unit.as_str() {
        "1" | "" => number.to_owned(),
        "%" => format!("{number}%"),
        "ns" => ticks::label_of(number::whole(point.value)),
        "us" => ticks::label_of(number::whole(point.value * 1e3)),
        "ms" => ticks::label_of(number::whole(point.value * 1e6)),
        unit => format!("{number}\u{a0}{unit}"),
    }
}
