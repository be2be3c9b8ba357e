//! What happened when: one strip of lanes for every mode, all over the same window.

use std::ops::Range;

use super::cells::{Cells, clip};
use super::html::Escaped;
use super::marks::{self, PlacedMark, Words};
use super::model::{Lane, Mark, Mode, SpanKind};
use super::number;
use super::svg::{Picture, across, stretched, tick_label, upright};
use super::ticks;

/// Heights in pixels: a lane, a row of words beside it, the space between lanes, the axis.
const LANE: u32 = 26;
const ROW: u32 = 17;
const GAP: u32 = 7;
const AXIS: u32 = 20;

/// The whole section: a strip for every mode, all over the same window.
pub(crate) fn section(modes: &[Mode], window: &Range<u64>) -> String {
    let drawn = modes.iter().any(|mode| !mode.lanes.is_empty());
    if !drawn || window.is_empty() {
        return "<section>\n<h2>What happens when a request arrives</h2>\n\
                <p class=\"note\">Nothing was recorded in the time to be drawn.</p>\n\
                </section>\n"
            .to_owned();
    }
    let strips = modes
        .iter()
        .enumerate()
        .map(|(index, mode)| Strip::of(mode).draw(&format!("strip{index}"), window))
        .collect::<String>();
    let length = number::duration(window.end - window.start);
    let start = number::duration(window.start);
    format!(
        "<section>\n<h2>What happens when a request arrives</h2>\n\
         <p class=\"note\">The same {length} of the run in every mode, from {start} after its \
         beginning.</p>\n{}{strips}</section>\n",
        legend(modes.iter().flat_map(|mode| &mode.lanes), window)
    )
}

/// What the colours mean, as far as they occur.
pub(crate) fn legend<'a>(
    lanes: impl Iterator<Item = &'a Lane> + Clone,
    window: &Range<u64>,
) -> String {
    let occurs = |kind: SpanKind| {
        let mut spans = lanes.clone().flat_map(|lane| &lane.spans);
        spans.any(|span| span.kind == kind && clip(span, window).is_some())
    };
    let entries = SpanKind::ALL
        .into_iter()
        .filter(|kind| occurs(*kind))
        .map(|kind| {
            let (name, meaning) = (kind.name(), kind.meaning());
            format!(
                "<li><span class=\"swatch {name}\"></span><b>{name}</b> \
                 <span class=\"meaning\">{meaning}</span></li>\n"
            )
        })
        .collect::<String>();
    format!("<ul class=\"legend\">\n{entries}</ul>\n")
}

/// One mode: its name, what it does, and its lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strip<'a> {
    /// The mode.
    pub(crate) name: &'a str,
    /// What it does.
    pub(crate) explanation: &'a str,
    /// Who did what.
    pub(crate) lanes: &'a [Lane],
    /// Moments worth a word.
    pub(crate) marks: &'a [Mark],
}

impl<'a> Strip<'a> {
    fn of(mode: &'a Mode) -> Self {
        let Mode { name, explanation, lanes, marks, .. } = mode;
        Self { name, explanation, lanes, marks }
    }

    /// The strip; `id` is unique on the page.
    pub(crate) fn draw(&self, id: &str, window: &Range<u64>) -> String {
        let cells = Cells::new(window);
        let mut lanes = String::new();
        let mut y = 0;
        for (number, lane) in self.lanes.iter().enumerate() {
            let last = number + 1 == self.lanes.len();
            // A mark of a lane that does not exist is shown at the last one rather than nowhere.
            let of_lane = |lane: usize| lane == number || (last && lane > number);
            let placed = marks::place(self.marks.iter().filter(|mark| of_lane(mark.lane)), window);
            let rows = placed.iter().flat_map(|mark| [mark.large, mark.small]);
            let rows = rows.flatten().map(|words| words.row + 1).max();
            let words = row_height(rows.unwrap_or(0));
            // The last lane's words go below it, so that two lanes stay close together.
            let below = last && number > 0;
            let top = if below { y } else { y + words };
            lanes += &lane_shapes(lane, top, &cells);
            lanes += &placed.iter().map(|mark| mark_shape(mark, top, below)).collect::<String>();
            y += words + LANE + GAP;
        }
        let picture = Picture {
            id,
            title: &format!("Time line of mode {}", self.name),
            description: &description(self.lanes, window),
            height: y + AXIS,
        };
        let axis = axis(window.end - window.start, y);
        format!(
            "<div class=\"strip\">\n<h3>{}</h3>\n<p class=\"note\">{}</p>\n{}</div>\n",
            Escaped(self.name),
            Escaped(self.explanation),
            picture.around(&format!("{axis}{lanes}"))
        )
    }
}

/// Lines through all lanes at round times, and the times.
fn axis(length_ns: u64, y: u32) -> String {
    let ticks = ticks::linear(length_ns);
    let shapes = ticks.iter().map(|tick| {
        let share = tick.at_ns as f64 / length_ns as f64;
        let line = upright("grid", &across(share), 0, y);
        line + &tick_label(share, y + 14, tick.major, &tick.label)
    });
    shapes.collect()
}

/// A lane's name, its ground and its spans.
fn lane_shapes(lane: &Lane, top: u32, cells: &Cells) -> String {
    let runs = cells.runs(&lane.spans);
    let mut paths = String::new();
    for kind in SpanKind::ALL {
        let mut path = String::new();
        let mut end = 0;
        for run in runs.iter().filter(|run| run.kind == kind) {
            let (gap, length) = (run.from - end, run.to - run.from);
            let step = if path.is_empty() {
                format!("M{gap} 5h{length}")
            } else {
                format!("m{gap} 0h{length}")
            };
            path += &step;
            end = run.to;
        }
        if !path.is_empty() {
            paths += &format!("<path class=\"{}\" d=\"{path}\"/>", kind.name());
        }
    }
    let base = top + LANE / 2 + 4;
    let name = shortened(&lane.name);
    format!(
        "<rect class=\"ground\" y=\"{top}\" width=\"100%\" height=\"{LANE}\"/>\n\
         <text class=\"lane end\" x=\"-8\" y=\"{base}\">{}</text>\n{}",
        Escaped(&name),
        stretched(top, LANE, cells.count(), 10, &paths)
    )
}

/// A name that fits beside its lane.
fn shortened(name: &str) -> String {
    const LETTERS: usize = 9;
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    name.chars().take(LETTERS - 1).chain(['…']).collect()
}

/// A mark: once if it looks the same on all screens, otherwise once for each kind.
fn mark_shape(mark: &PlacedMark<'_>, top: u32, below: bool) -> String {
    if mark.large == mark.small {
        return mark_variant(mark, mark.large, "", top, below);
    }
    mark_variant(mark, mark.large, " wide", top, below)
        + &mark_variant(mark, mark.small, " narrow", top, below)
}

/// A line across the lane, and on to the words if they have a place.
fn mark_variant(
    mark: &PlacedMark<'_>,
    words: Option<Words>,
    screen: &str,
    top: u32,
    below: bool,
) -> String {
    let x = across(mark.share);
    let text = Escaped(mark.text);
    let class = format!("mark{screen}");
    let bottom = top + LANE;
    let Some(words) = words else {
        let line = upright(&class, &x, top, bottom);
        return format!("<g><title>{text}</title>\n{line}</g>\n");
    };
    let row = row_height(words.row);
    let (line, base) = if below {
        let end = bottom + row + 13;
        (upright(&class, &x, top, end), end)
    } else {
        // PANIC: the strip left a row's height above `top` for every row of words.
        (upright(&class, &x, top - row - 12, bottom), top - row - 5)
    };
    let (side, distance) = if words.before { ("end", -5) } else { ("start", 5) };
    format!(
        "{line}<text class=\"word {side}{screen}\" x=\"{x}\" dx=\"{distance}\" y=\"{base}\">\
         {text}</text>\n"
    )
}

/// Pixels that this many rows of words take.
fn row_height(rows: usize) -> u32 {
    ROW * u32::try_from(rows).expect("there are few rows")
}

/// The strip in words: how long each lane did what.
fn description(lanes: &[Lane], window: &Range<u64>) -> String {
    let lanes = lanes.iter().map(|lane| {
        let spans = lane.spans.iter().filter_map(|span| clip(span, window));
        let spans = spans.collect::<Vec<_>>();
        let times = SpanKind::ALL.into_iter().filter_map(|kind| {
            let of_kind = spans.iter().filter(|span| span.kind == kind);
            let time = of_kind.map(|span| span.end_ns - span.start_ns).sum::<u64>();
            (time > 0).then(|| format!("{} {}", kind.name(), number::duration(time)))
        });
        let times = times.collect::<Vec<_>>().join(", ");
        let times = if times.is_empty() { "nothing" } else { &times };
        format!("{}: {times}.", lane.name)
    });
    lanes.collect::<Vec<_>>().join(" ")
}
