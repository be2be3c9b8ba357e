//! Pictures as SVG whose letters keep their size on every screen, and plots of lines over two axes.
//!
//! The outer picture has no view box: horizontal positions are percentages of the available width,
//! heights are pixels. Only shapes without text are in an inner picture that is stretched.

use super::Escaped;

/// Colours and line styles before they repeat.
pub(super) const COLOURS: usize = 10;

/// Pixels above and below a plot.
const TOP: u32 = 8;
const AXIS: u32 = 22;
/// Units inside a plot: two for every pixel of a large screen.
const WIDTH: u32 = 1_800;
const DEPTH: u32 = 1_000;
/// Labels closer than this share of the width touch each other, on a large and on a small screen.
const LABEL: f64 = 0.08;
const LABEL_SMALL: f64 = 0.2;

/// A picture with a title and a description for screen readers.
#[derive(Clone, Debug)]
pub(super) struct Picture<'a> {
    /// Unique on the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) description: &'a str,
    /// In pixels.
    pub(super) height: u32,
}

impl Picture<'_> {
    pub(super) fn around(&self, content: &str) -> String {
        let Self { id, height, .. } = self;
        let title = Escaped(self.title);
        let description = Escaped(self.description);
        format!(
            "<svg class=\"picture\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\" \
             width=\"100%\" height=\"{height}\">\n\
             <title id=\"{id}-title\">{title}</title>\n\
             <desc id=\"{id}-desc\">{description}</desc>\n\
             {content}</svg>\n"
        )
    }
}

/// Shapes stretched to the whole width: `content` is drawn in units from 0 to `width` and from 0
/// to `depth`, which become 100 % and `height` pixels.
pub(super) fn stretched(y: u32, height: u32, width: u64, depth: u32, content: &str) -> String {
    format!(
        "<svg y=\"{y}\" width=\"100%\" height=\"{height}\" viewBox=\"0 0 {width} {depth}\" \
         preserveAspectRatio=\"none\">{content}</svg>\n"
    )
}

/// A share of the width as a percentage.
pub(super) fn across(share: f64) -> String {
    let digits = format!("{:.2}", share.clamp(0.0, 1.0) * 100.0);
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}%")
}

/// A vertical line.
pub(super) fn upright(class: &str, x: &str, y1: u32, y2: u32) -> String {
    format!("<line class=\"{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{y1}\" y2=\"{y2}\"/>\n")
}

/// The label of a tick on a horizontal axis; at the ends of the axis it stays inside.
pub(super) fn tick_label(share: f64, y: u32, major: bool, text: &str) -> String {
    let side = match share {
        ..0.02 => "start",
        0.95.. => "end",
        _ => "middle",
    };
    let class = if major { "tick" } else { "tick wide" };
    format!(
        "<text class=\"{class} {side}\" x=\"{}\" y=\"{y}\">{}</text>\n",
        across(share),
        Escaped(text)
    )
}

/// Lines over two axes, one for each mode, with dots and intervals.
#[derive(Clone, Debug)]
pub(super) struct Plot<'a> {
    /// Unique on the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    /// Pixels between the axes.
    pub(super) height: u32,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Whether values stay the same until the next point and jump there.
    pub(super) is_stepped: bool,
    pub(super) lines: Vec<Series<'a>>,
}

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) scale: Scale,
    /// Values with a grid line, in order, and their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
    /// Shares from 0 to 1, stretched towards 1: from 0.9 to 0.99 is about as far as from 0 to 0.9.
    /// The number is the remainder at 1, which the logarithm would never reach.
    Tail(f64),
}

#[derive(Clone, Debug)]
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// The index of the mode, which decides the colour.
    pub(super) place: usize,
    /// From left to right.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) dots: Vec<Dot>,
    /// Behind the name in the legend.
    pub(super) about: String,
}

/// A value and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dot {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Axis {
    /// The position of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let scaled = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(1e-300).ln(),
            Scale::Tail(rest) => (1.0 - value.clamp(0.0, 1.0) * (1.0 - rest)).ln() / rest.ln(),
        };
        let (low, high) = (scaled(self.low), scaled(self.high));
        let place = if high > low { (scaled(value) - low) / (high - low) } else { 0.5 };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.5 }
    }
}

impl Plot<'_> {
    /// The picture and its legend; none if no line has a point.
    pub(super) fn draw(&self) -> Option<String> {
        let shown = || self.lines.iter().filter(|line| !line.points.is_empty());
        shown().next()?;
        let paths = shown().map(|line| {
            let class = line.place % COLOURS;
            format!("<path class=\"curve c{class}\" d=\"{}\"/>", self.path(line))
        });
        let lines =
            stretched(TOP, self.height, u64::from(WIDTH), DEPTH, &paths.collect::<String>());
        let dots = shown().map(|line| self.dots(line)).collect::<String>();
        let words = shown().map(|line| format!("{}: {}.", line.name, line.about));
        let picture = Picture {
            id: self.id,
            title: self.title,
            description: &words.collect::<Vec<_>>().join(" "),
            height: TOP + self.height + AXIS,
        };
        let shapes = self.columns() + &self.rows() + &lines + &dots;
        let entries = shown().map(legend_entry).collect::<String>();
        Some(picture.around(&shapes) + &format!("<ul class=\"legend\">\n{entries}</ul>\n"))
    }

    /// Vertical grid lines and the labels below them; labels without room are left out.
    fn columns(&self) -> String {
        let bottom = TOP + self.height;
        let (mut last, mut last_small) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        let mut shapes = String::new();
        for (value, label) in &self.x.ticks {
            let share = self.x.place(*value);
            shapes += &upright("grid", &across(share), TOP, bottom);
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

    /// Horizontal grid lines; one so close to the top that its label would touch that of the
    /// highest value is left out.
    fn rows(&self) -> String {
        let room =
            |value: f64| self.y.place(value) < 0.945 || self.y.place(value) >= 1.0 - f64::EPSILON;
        let rows = self.y.ticks.iter().filter(|(value, _)| room(*value)).map(|(value, label)| {
            let y = self.down(*value);
            let label = Escaped(label);
            format!(
                "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>\n\
                 <text class=\"tick end\" x=\"-8\" y=\"{y}\" dy=\"4\">{label}</text>\n"
            )
        });
        rows.collect()
    }

    /// Pixels from the picture's top.
    fn down(&self, value: f64) -> String {
        format!("{:.1}", (1.0 - self.y.place(value)) * f64::from(self.height) + f64::from(TOP))
    }

    fn path(&self, line: &Series<'_>) -> String {
        let mut path = String::new();
        for (x, y) in &line.points {
            let x = format!("{:.0}", self.x.place(*x) * f64::from(WIDTH));
            let y = format!("{:.0}", (1.0 - self.y.place(*y)) * f64::from(DEPTH));
            path += &match (path.is_empty(), self.is_stepped) {
                (true, true) => format!("M{x} {DEPTH}V{y}"),
                (true, false) => format!("M{x} {y}"),
                (false, true) => format!("H{x}V{y}"),
                (false, false) => format!("L{x} {y}"),
            };
        }
        path
    }

    fn dots(&self, line: &Series<'_>) -> String {
        let class = line.place % COLOURS;
        let dots = line.dots.iter().map(|dot| {
            let x = across(self.x.place(dot.x));
            let (low, high) = (self.down(dot.low), self.down(dot.high));
            let y = self.down(dot.y);
            format!(
                "<line class=\"range c{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{low}\" y2=\"{high}\"/>\
                 <circle class=\"dot c{class}\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>\n"
            )
        });
        dots.collect()
    }
}

fn legend_entry(line: &Series<'_>) -> String {
    let class = line.place % COLOURS;
    let (name, about) = (Escaped(line.name), Escaped(&line.about));
    format!(
        "<li><svg class=\"key\" aria-hidden=\"true\" width=\"28\" height=\"10\">\
         <line class=\"curve c{class}\" x1=\"0\" x2=\"28\" y1=\"5\" y2=\"5\"/></svg>\
         <b>{name}</b> <span class=\"meaning\">{about}</span></li>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_well_formed;
    use super::*;

    fn axis(low: f64, high: f64, scale: Scale) -> Axis {
        let ticks = vec![(low, format!("{low}")), (high, format!("{high}"))];
        Axis { low, high, scale, ticks }
    }

    fn plot<'a>(points: &[(f64, f64)], is_stepped: bool) -> Plot<'a> {
        let dots = points.iter().map(|&(x, y)| Dot { x, y, low: y / 2.0, high: y * 2.0 }).collect();
        let points = points.to_vec();
        let line = Series { name: "<m>", place: 1, points, dots, about: String::new() };
        let (x, y) = (axis(0.0, 10.0, Scale::Linear), axis(1.0, 100.0, Scale::Logarithmic));
        Plot { id: "p", title: "<t>", height: 240, x, y, is_stepped, lines: vec![line] }
    }

    #[test]
    fn values_have_their_places() {
        let points = [(0.0, 1.0), (5.0, 10.0), (10.0, 100.0)];
        let straight = plot(&points, false);
        assert_eq!(straight.path(&straight.lines[0]), "M0 1000L900 500L1800 0");
        assert_eq!(straight.down(10.0), "128.0");
        check_well_formed(&format!("<!DOCTYPE html>\n<p>{}</p>", straight.draw().unwrap()));
        let stepped = plot(&points, true);
        assert_eq!(stepped.path(&stepped.lines[0]), "M0 1000V1000H900V500H1800V0");
    }

    #[test]
    fn the_axis_of_shares_is_finite_ordered_and_full() {
        let shares = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0];
        for rest in [0.05, 0.0005, 1e-5] {
            let axis = axis(0.0, 1.0, Scale::Tail(rest));
            assert!(axis.place(0.0).abs() < 1e-9 && (axis.place(1.0) - 1.0).abs() < 1e-9);
            assert!(shares.is_sorted_by(|a, b| axis.place(*a) < axis.place(*b)));
        }
    }

    #[test]
    fn values_out_of_range_stay_inside() {
        for (low, high, scale) in [
            (5.0, 5.0, Scale::Linear),
            (0.0, 0.0, Scale::Logarithmic),
            (-1.0, f64::INFINITY, Scale::Logarithmic),
            (1.0, f64::NAN, Scale::Linear),
            (0.0, 1.0, Scale::Tail(0.01)),
        ] {
            let axis = axis(low, high, scale);
            for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 7.0] {
                assert!((0.0..=1.0).contains(&axis.place(value)), "{low} {high} {value}");
            }
        }
        assert_eq!(plot(&[], false).draw(), None);
    }

    #[test]
    fn labels_do_not_touch_each_other() {
        let mut plot = plot(&[(1.0, 1.0)], false);
        plot.x.ticks = (0..100_u32).map(|n| (f64::from(n) / 10.0, format!("tick {n}"))).collect();
        let html = plot.columns();
        let labels = html.matches("<text").count();
        assert!((10..=13).contains(&labels), "{labels}");
        let on_phones = labels - html.matches("tick wide").count();
        assert!((4..=6).contains(&on_phones), "{on_phones}");
    }

    #[test]
    fn shares_are_short_percentages_inside_the_picture() {
        for (share, text) in [(0.0, "0%"), (0.123_456, "12.35%"), (0.5, "50%"), (1.7, "100%")] {
            assert_eq!(across(share), text);
        }
        assert_eq!(across(-0.1), "0%");
    }

    #[test]
    fn labels_at_the_ends_of_an_axis_stay_inside() {
        assert!(tick_label(0.0, 1, true, "0").contains("tick start"));
        assert!(tick_label(0.5, 1, true, "5 ms").contains("tick middle"));
        assert!(tick_label(1.0, 1, false, "10 ms").contains("tick wide end"));
    }
}
