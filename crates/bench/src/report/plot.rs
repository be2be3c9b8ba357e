//! Lines over an axis: one for each mode, with its intervals.

use super::legend::{self, CURVES};
use super::svg::{Picture, across, stretched, tick_label};

/// Pixels of the plot's height, and of what is above and below it.
const PLOT: u32 = 240;
const TOP: u32 = 8;
const AXIS: u32 = 22;
/// Units of the plot's inside.
const WIDTH: u32 = 1_800;
const DEPTH: u32 = 1_000;
/// Labels closer than this share of the width touch each other, and on a small screen, this.
const LABEL: f64 = 0.08;
const LABEL_SMALL: f64 = 0.2;

/// A picture of lines.
#[derive(Clone, Debug)]
pub(crate) struct Plot<'a> {
    /// Unique on the page.
    pub(crate) id: &'a str,
    /// What it is.
    pub(crate) title: &'a str,
    /// The horizontal axis.
    pub(crate) x: Axis,
    /// The vertical axis.
    pub(crate) y: Axis,
    /// The lines.
    pub(crate) lines: Vec<Line<'a>>,
}

/// An axis: what it reaches from and to, and what is written beside it.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// The least value.
    pub(crate) low: f64,
    /// The greatest value.
    pub(crate) high: f64,
    /// Whether equal distances are equal factors.
    pub(crate) is_logarithmic: bool,
    /// Values that have a line, in order, and what is written there.
    pub(crate) ticks: Vec<(f64, String)>,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    /// Whose it is.
    pub(crate) name: &'a str,
    /// Its place among all modes, which is its colour.
    pub(crate) place: usize,
    /// From left to right.
    pub(crate) points: Vec<Point>,
    /// Something about it, for the legend.
    pub(crate) about: String,
}

/// A value and between what it may lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// Where on the horizontal axis.
    pub(crate) x: f64,
    /// The value.
    pub(crate) y: f64,
    /// The interval's lower end.
    pub(crate) low: f64,
    /// Its upper end.
    pub(crate) high: f64,
}

impl Axis {
    /// The place of a value, 0 at the low end and 1 at the high one.
    fn place(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.is_logarithmic { value.max(1e-300).ln() } else { value };
        let (low, high) = (scaled(self.low), scaled(self.high));
        let place = if high > low { (scaled(value) - low) / (high - low) } else { 0.5 };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.5 }
    }
}

impl Plot<'_> {
    /// The picture and its legend; none if no line has a point.
    pub(crate) fn draw(&self) -> Option<String> {
        if self.lines.iter().all(|line| line.points.is_empty()) {
            return None;
        }
        let paths = self.lines.iter().map(|line| {
            let class = line.place % CURVES;
            format!("<path class=\"curve c{class}\" d=\"{}\"/>", self.path(line))
        });
        let lines = stretched(TOP, PLOT, u64::from(WIDTH), DEPTH, &paths.collect::<String>());
        let dots = self.lines.iter().map(|line| self.dots(line)).collect::<String>();
        let picture = Picture {
            id: self.id,
            title: self.title,
            description: &self.description(),
            height: TOP + PLOT + AXIS,
        };
        let shapes = self.columns() + &self.rows() + &lines + &dots;
        let entries = self.lines.iter().filter(|line| !line.points.is_empty());
        let entries = entries.map(|line| legend::entry(line.place, line.name, &line.about));
        Some(picture.around(&shapes) + &legend::list(entries))
    }

    /// Vertical lines and the words below them; those without room stay away.
    fn columns(&self) -> String {
        let bottom = TOP + PLOT;
        let (mut last, mut last_small) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        let mut shapes = String::new();
        for (value, label) in &self.x.ticks {
            let share = self.x.place(*value);
            let x = across(share);
            shapes += &format!(
                "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n"
            );
            if share - last < LABEL {
                continue;
            }
            last = share;
            let major = share - last_small >= LABEL_SMALL;
            if major {
                last_small = share;
            }
            shapes += &tick_label(share, bottom + 16, major, label);
        }
        shapes
    }

    fn rows(&self) -> String {
        let rows = self.y.ticks.iter().map(|(value, label)| {
            let y = self.down(*value);
            let label = super::html::Escaped(label);
            format!(
                "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>\n\
                 <text class=\"tick end\" x=\"-8\" y=\"{y}\" dy=\"4\">{label}</text>\n"
            )
        });
        rows.collect()
    }

    /// Pixels from the picture's top.
    fn down(&self, value: f64) -> String {
        format!("{:.1}", (1.0 - self.y.place(value)) * f64::from(PLOT) + f64::from(TOP))
    }

    fn path(&self, line: &Line<'_>) -> String {
        let corners = line.points.iter().enumerate().map(|(index, point)| {
            let x = self.x.place(point.x) * f64::from(WIDTH);
            let y = (1.0 - self.y.place(point.y)) * f64::from(DEPTH);
            format!("{}{x:.0} {y:.0}", if index == 0 { 'M' } else { 'L' })
        });
        corners.collect()
    }

    /// A dot at every value, and a line from one end of its interval to the other.
    fn dots(&self, line: &Line<'_>) -> String {
        let class = line.place % CURVES;
        let dots = line.points.iter().map(|point| {
            let x = across(self.x.place(point.x));
            let (low, high) = (self.down(point.low), self.down(point.high));
            let y = self.down(point.y);
            format!(
                "<line class=\"range c{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{low}\" y2=\"{high}\"/>\
                 <circle class=\"dot c{class}\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>\n"
            )
        });
        dots.collect()
    }

    /// The picture in words: where each line begins and ends.
    fn description(&self) -> String {
        let lines = self.lines.iter().filter_map(|line| {
            let (first, last) = (line.points.first()?, line.points.last()?);
            let label = |value: f64| nearest(&self.y.ticks, value);
            let (from, to) = (label(first.y), label(last.y));
            Some(format!("{}: from about {from} to about {to}.", line.name))
        });
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// What is written at the tick next to a value.
fn nearest(ticks: &[(f64, String)], value: f64) -> &str {
    let distance = |tick: &&(f64, String)| (tick.0 - value).abs();
    let nearest = ticks.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.map_or("", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::super::well_formed::check_well_formed;
    use super::*;

    fn axis(low: f64, high: f64, is_logarithmic: bool) -> Axis {
        let ticks = vec![(low, format!("{low}")), (high, format!("{high}"))];
        Axis { low, high, is_logarithmic, ticks }
    }

    fn plot<'a>(points: Vec<Point>) -> Plot<'a> {
        let line = Line { name: "<m>", place: 1, points, about: String::new() };
        let (x, y) = (axis(0.0, 10.0, false), axis(1.0, 100.0, true));
        Plot { id: "p", title: "<t>", x, y, lines: vec![line] }
    }

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, low: y / 2.0, high: y * 2.0 }
    }

    #[test]
    fn values_have_their_places() {
        let plot = plot(vec![point(0.0, 1.0), point(5.0, 10.0), point(10.0, 100.0)]);
        assert_eq!(plot.path(&plot.lines[0]), "M0 1000L900 500L1800 0");
        assert_eq!(plot.down(10.0), "128.0");
        check_well_formed(&format!("<!DOCTYPE html>\n<p>{}</p>", plot.draw().unwrap()));
    }

    #[test]
    fn nonsense_stays_inside() {
        for (low, high, is_logarithmic) in [
            (5.0, 5.0, false),
            (0.0, 0.0, true),
            (-1.0, f64::INFINITY, true),
            (1.0, f64::NAN, false),
        ] {
            let axis = axis(low, high, is_logarithmic);
            for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 7.0] {
                assert!((0.0..=1.0).contains(&axis.place(value)), "{low} {high} {value}");
            }
        }
        assert_eq!(plot(Vec::new()).draw(), None);
    }

    #[test]
    fn labels_do_not_touch_each_other() {
        let mut plot = plot(vec![point(1.0, 1.0)]);
        plot.x.ticks = (0..100_u32).map(|n| (f64::from(n) / 10.0, format!("tick {n}"))).collect();
        let html = plot.columns();
        let labels = html.matches("<text").count();
        assert!((10..=13).contains(&labels), "{labels}");
        let on_phones = labels - html.matches("tick wide").count();
        assert!((4..=6).contains(&on_phones), "{on_phones}");
    }
}
