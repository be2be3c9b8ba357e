//! How many requests were answered within which time: one curve for every mode.
//!
//! Time is logarithmic because modes differ by orders of magnitude. Shares are stretched towards
//! the top, where the tail is: from 90 % to 99 % is about as far as from 0 % to 90 %.

use super::legend::{self, CURVES};
use super::model::{Mode, Report};
use super::number;
use super::svg::{Picture, across, stretched, tick_label};
use super::ticks;

/// Pixels of the plot's height, and of what is above and below it.
const PLOT: u32 = 300;
const TOP: u32 = 8;
const AXIS: u32 = 22;

/// Units of the plot's inside: two for every pixel of a large screen, as much as can be seen.
const WIDTH: u32 = 1_800;
const DEPTH: u32 = 1_000;

/// Shares that have a line.
const SHARES: [(f64, &str); 6] =
    [(0.0, "0%"), (0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"), (1.0, "100%")];

/// How the latencies of one mode are spread.
#[derive(Clone, Debug)]
pub(crate) struct Curve<'a> {
    /// The mode.
    pub(crate) name: &'a str,
    /// Its place among all modes, which is its colour.
    pub(crate) place: usize,
    /// Latencies, and the shares of requests that took no longer; both rise, and the last share
    /// is 1.
    pub(crate) points: Vec<(u64, f64)>,
    /// How many requests there were.
    pub(crate) requests: u64,
    /// Half of them took no longer.
    pub(crate) p50_ns: Option<u64>,
    /// 99 of 100 took no longer.
    pub(crate) p99_ns: Option<u64>,
}

impl<'a> Curve<'a> {
    fn of(place: usize, mode: &'a Mode) -> Self {
        let requests = mode.online_ns.len() as f64;
        let share = |rank: u32| f64::from(rank) / requests;
        Self {
            name: &mode.name,
            place,
            points: mode.online_ns.iter().zip(1..).map(|(ns, rank)| (*ns, share(rank))).collect(),
            requests: mode.online_ns.len() as u64,
            p50_ns: mode.latency_ns(500),
            p99_ns: mode.latency_ns(990),
        }
    }
}

/// The whole section.
pub(crate) fn section(report: &Report) -> String {
    let curves = report.modes.iter().enumerate().map(|(place, mode)| Curve::of(place, mode));
    let body = figure("cdf", "online requests", &curves.collect::<Vec<_>>());
    let body = body.unwrap_or_else(|| {
        "<p class=\"note\">No online request was answered, so there is nothing to draw.</p>\n"
            .to_owned()
    });
    format!("<section>\n<h2>How long online requests take</h2>\n{body}</section>\n")
}

/// The picture of some curves and what belongs to it; none if there is nothing to draw.
pub(crate) fn figure(id: &str, whose: &str, curves: &[Curve<'_>]) -> Option<String> {
    let scale = Scale::of(curves)?;
    let mut shapes = grid(&scale);
    let paths = curves.iter().map(|curve| {
        let class = curve.place % CURVES;
        format!("<path class=\"curve c{class}\" d=\"{}\"/>", path(curve, &scale))
    });
    shapes += &stretched(TOP, PLOT, u64::from(WIDTH), DEPTH, &paths.collect::<String>());
    shapes += &dots(curves, &scale);
    let picture = Picture {
        id,
        title: &format!("Distribution of the latencies of {whose}"),
        description: &description(curves),
        height: TOP + PLOT + AXIS,
    };
    let entries = curves.iter().map(|curve| {
        let p99 = match curve.p99_ns {
            Some(ns) => format!("p99 {}", number::duration(ns)),
            None => "no requests".to_owned(),
        };
        legend::entry(curve.place, curve.name, &p99)
    });
    Some(format!(
        "<p class=\"note\">Share of {whose} answered within a time, further left is better. The \
         upper part is stretched to show the slowest requests; a dot marks p99.</p>\n{}{}",
        picture.around(&shapes),
        legend::list(entries)
    ))
}

/// From latencies and shares to places on the plot, each from 0 to 1.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low_ns: u64,
    high_ns: u64,
    /// What is left of a request at the very top, where the logarithm would never arrive.
    rest: f64,
}

impl Scale {
    /// The scale on which all requests of all modes are to be seen, if there are any.
    fn of(curves: &[Curve<'_>]) -> Option<Self> {
        let latencies = || curves.iter().flat_map(|curve| &curve.points).map(|(ns, _)| *ns);
        let (low_ns, high_ns) = ticks::round_range(latencies().min()?, latencies().max()?);
        let requests = curves.iter().map(|curve| curve.requests).max()?;
        let rest = (0.5 / requests as f64).clamp(1e-5, 0.05);
        Some(Self { low_ns, high_ns, rest })
    }

    /// Left to right.
    fn across(&self, latency_ns: u64) -> f64 {
        // A latency of nothing has no logarithm; a nanosecond is as good.
        let logarithm = |ns: u64| (ns.max(1) as f64).ln();
        let low = logarithm(self.low_ns);
        (logarithm(latency_ns) - low) / (logarithm(self.high_ns) - low)
    }

    /// Top to bottom.
    fn down(&self, share: f64) -> f64 {
        1.0 - (1.0 - share * (1.0 - self.rest)).ln() / self.rest.ln()
    }

    /// Pixels from the picture's top.
    fn down_pixels(&self, share: f64) -> String {
        format!("{:.1}", self.down(share) * f64::from(PLOT) + f64::from(TOP))
    }
}

fn grid(scale: &Scale) -> String {
    let bottom = TOP + PLOT;
    let times = ticks::logarithmic(scale.low_ns, scale.high_ns);
    let times = times.iter().map(|tick| {
        let share = scale.across(tick.at_ns);
        let x = across(share);
        let label = tick_label(share, bottom + 16, tick.major, &tick.label);
        format!(
            "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n{label}"
        )
    });
    // A line so close to the top that its label would touch the top's is left out.
    let room = |share: f64| share >= 1.0 || scale.down(share) > 0.055;
    let shares = SHARES.into_iter().filter(|(share, _)| room(*share));
    let shares = shares.map(|(share, label)| {
        let y = scale.down_pixels(share);
        format!(
            "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>\n\
             <text class=\"tick end\" x=\"-8\" y=\"{y}\" dy=\"4\">{label}</text>\n"
        )
    });
    times.chain(shares).collect()
}

/// The stairs of one mode, from the fastest request at the bottom to the slowest at the top.
fn path(curve: &Curve<'_>, scale: &Scale) -> String {
    let mut steps: Vec<(String, String)> = Vec::new();
    for (latency, share) in &curve.points {
        let x = format!("{:.0}", scale.across(*latency) * f64::from(WIDTH));
        let down = scale.down(share.clamp(0.0, 1.0));
        let y = format!("{:.0}", down.abs() * f64::from(DEPTH));
        match steps.last_mut() {
            // Not to be told apart: only the last one counts.
            Some(step) if step.0 == x => step.1 = y,
            _ => steps.push((x, y)),
        }
    }
    let Some((first, _)) = steps.first() else {
        return String::new();
    };
    let start = format!("M{first} {DEPTH}");
    let stairs = steps.iter().map(|(x, y)| format!("H{x}V{y}"));
    start + &stairs.collect::<String>()
}

/// A dot at every mode's p99.
fn dots(curves: &[Curve<'_>], scale: &Scale) -> String {
    let y = scale.down_pixels(0.99);
    let dots = curves.iter().filter_map(|curve| {
        let x = across(scale.across(curve.p99_ns?));
        let class = curve.place % CURVES;
        Some(format!("<circle class=\"dot c{class}\" cx=\"{x}\" cy=\"{y}\" r=\"4.5\"/>\n"))
    });
    dots.collect()
}

/// The picture in words.
fn description(curves: &[Curve<'_>]) -> String {
    let modes = curves.iter().map(|curve| {
        let half = number::duration_or_dash(curve.p50_ns);
        let most = number::duration_or_dash(curve.p99_ns);
        format!("{}: half within {half}, 99% within {most}.", curve.name)
    });
    modes.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    /// The corners of a path made of `M`, `H` and `V`.
    fn corners(path: &str) -> Vec<(i64, i64)> {
        let (start, stairs) = path.split_at(path.find('H').unwrap());
        let (x, y) = start[1..].split_once(' ').unwrap();
        let mut at: (i64, i64) = (x.parse().unwrap(), y.parse().unwrap());
        let mut corners = vec![at];
        for step in stairs[1..].split('H') {
            let (x, y) = step.split_once('V').unwrap();
            at = (x.parse().unwrap(), at.1);
            corners.push(at);
            at.1 = y.parse().unwrap();
            corners.push(at);
        }
        corners
    }

    #[test]
    fn a_curve_rises_from_the_bottom_to_the_top() {
        let mut mode = sample::mode("m");
        mode.online_ns = (0..50_000).map(|n| 1_000_000 + n * n / 7).collect();
        let curve = Curve::of(0, &mode);
        let scale = Scale::of(std::slice::from_ref(&curve)).unwrap();
        let path = path(&curve, &scale);
        let corners = corners(&path);
        assert_eq!(corners.first().unwrap().1, i64::from(DEPTH));
        assert_eq!(corners.last().unwrap().1, 0);
        assert!(corners.is_sorted_by(|a, b| a.0 <= b.0 && a.1 >= b.1));
        assert!(corners.iter().all(|corner| (0..=i64::from(WIDTH)).contains(&corner.0)));
        assert!(path.len() < 25_000, "{}", path.len());
    }

    #[test]
    fn the_axis_of_shares_is_finite_ordered_and_full() {
        for requests in [1, 10, 1_000, 10_000_000] {
            let rest = (0.5 / f64::from(requests)).clamp(1e-5, 0.05);
            let scale = Scale { low_ns: 1, high_ns: 10, rest };
            assert!((scale.down(0.0) - 1.0).abs() < 1e-9);
            assert!(scale.down(1.0).abs() < 1e-9);
            assert!(SHARES.is_sorted_by(|a, b| scale.down(a.0) > scale.down(b.0)));
        }
    }

    #[test]
    fn a_single_request_and_one_that_took_no_time() {
        for latencies in [vec![5_000], vec![0], vec![0, u64::MAX]] {
            let mut mode = sample::mode("m");
            mode.online_ns = latencies;
            let curve = Curve::of(0, &mode);
            let scale = Scale::of(std::slice::from_ref(&curve)).unwrap();
            let corners = corners(&path(&curve, &scale));
            assert_eq!(corners.last().unwrap().1, 0);
        }
    }

    #[test]
    fn without_requests_there_is_a_sentence_instead_of_a_picture() {
        let mut report = sample::report();
        for mode in &mut report.modes {
            mode.online_ns.clear();
        }
        let html = section(&report);
        assert!(html.contains("No online request was answered"));
        assert!(!html.contains("<svg"));
    }
}
