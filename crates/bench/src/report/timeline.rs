//! Time lines of one request: a strip for each mode, a row for each load.

mod bins;
mod marks;

use std::ops::Range;

use super::number::{self, linear};
use super::plot::{Picture, across, stretched, tick_label, upright};
use super::{Escaped, folded};
use crate::results::{CaseInfo, Mark, ModeInfo, Results, TimeLine};
use bins::{TimeBins, clip};
use marks::{Label, PlacedMark};

/// Time lines whose lengths differ by more than this factor are not drawn to the same scale: the
/// short ones could not be read.
const SCALE_MAX: u64 = 8;

/// Heights in pixels: a row, a line of labels beside it, the space between rows, the axis.
const ROW: u32 = 26;
const LABELS: u32 = 17;
const GAP: u32 = 7;
const AXIS: u32 = 20;

/// What a load does on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Run,
    Wait,
    Save,
    Restore,
    Hold,
    Killed,
}

impl Activity {
    /// In the order of the legend.
    const ALL: [Self; 6] =
        [Self::Run, Self::Wait, Self::Save, Self::Restore, Self::Hold, Self::Killed];

    /// The name in the results file; the name in the legend, which is also the class in the style
    /// sheet; its meaning.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Run => ("run", "run", "executes"),
            Self::Wait => ("wait", "waiting", "has work, waits for the device"),
            Self::Save => ("save", "save", "its state is written to memory"),
            Self::Restore => ("restore", "restore", "its state is read back"),
            Self::Hold => ("hold", "held", "the device is reserved for it between kernels"),
            Self::Killed => ("kill", "killed", "is killed and has to run again"),
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|activity| activity.words().0 == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DrawnSpan {
    start_ns: u64,
    end_ns: u64,
    kind: Activity,
}

/// The activities of one load.
struct LoadRow<'r> {
    name: &'r str,
    spans: Vec<DrawnSpan>,
}

/// The time line of one mode.
struct Strip<'r> {
    mode: &'r ModeInfo,
    rows: Vec<LoadRow<'r>>,
    marks: &'r [Mark],
    length_ns: u64,
}

/// Nothing if no time line was recorded.
pub(super) fn section(results: &Results) -> String {
    let parts = results.cases.iter().enumerate();
    let parts = parts.filter_map(|(index, case)| Some((case, strips(results, index, case)?)));
    let parts = parts.collect::<Vec<_>>();
    if parts.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>Time line of one request</h2>\n{}</section>\n", folded(parts))
}

fn strips(results: &Results, index: usize, case: &CaseInfo) -> Option<String> {
    let strips = results.modes.iter().filter_map(|mode| {
        let worked = results.of(&case.name, &mode.name).filter(|each| each.is_ok());
        let mut lines = worked.filter_map(|each| each.time_line.as_ref());
        Some(Strip::of(mode, lines.find(|line| line.length_ns > 0)?))
    });
    let strips = strips.collect::<Vec<_>>();
    let longest = strips.iter().map(|strip| strip.length_ns).max()?;
    let shortest = strips.iter().map(|strip| strip.length_ns).min()?;
    let is_same = longest / shortest <= SCALE_MAX;
    let note = if is_same { "All to the same scale." } else { "Each to a scale of its own." };
    let legend = legend(&strips, &(0..longest));
    let strips = strips.iter().enumerate().map(|(place, strip)| {
        let window = 0..if is_same { longest } else { strip.length_ns };
        strip.draw(&format!("line{index}-{place}"), &window)
    });
    let strips = strips.collect::<String>();
    Some(format!("<p class=\"note\">{note}</p>\n{legend}{strips}"))
}

/// The colours that occur.
fn legend(strips: &[Strip<'_>], window: &Range<u64>) -> String {
    let occurs = |kind: Activity| {
        let rows = strips.iter().flat_map(|strip| &strip.rows);
        let mut spans = rows.flat_map(|row| &row.spans);
        spans.any(|span| span.kind == kind && clip(span, window).is_some())
    };
    let entries = Activity::ALL.into_iter().filter(|kind| occurs(*kind)).map(|kind| {
        let (_, name, meaning) = kind.words();
        format!(
            "<li><span class=\"swatch {name}\"></span><b>{name}</b> \
             <span class=\"meaning\">{meaning}</span></li>\n"
        )
    });
    format!("<ul class=\"legend\">\n{}</ul>\n", entries.collect::<String>())
}

impl<'r> Strip<'r> {
    fn of(mode: &'r ModeInfo, line: &'r TimeLine) -> Self {
        let rows = line.rows.iter().zip(0_u32..).map(|(name, row)| {
            let spans = line.spans.iter().filter(|span| span.row == row).filter_map(|span| {
                let kind = Activity::from_name(&span.what)?;
                Some(DrawnSpan { start_ns: span.from_ns, end_ns: span.to_ns, kind })
            });
            LoadRow { name, spans: spans.collect() }
        });
        Self { mode, rows: rows.collect(), marks: &line.marks, length_ns: line.length_ns }
    }

    /// The row of a mark: the marks of best-effort work belong to the last one.
    fn row_of(&self, mark: &Mark) -> usize {
        match mark.name.as_str() {
            "preempt" | "back" => self.rows.len().saturating_sub(1),
            _ => 0,
        }
    }

    /// `id` is unique on the page.
    fn draw(&self, id: &str, window: &Range<u64>) -> String {
        let bins = TimeBins::new(window);
        let mut rows = String::new();
        let mut y = 0;
        for (number, row) in self.rows.iter().enumerate() {
            let last = number + 1 == self.rows.len();
            let of_row = |mark: &&Mark| self.row_of(mark) == number;
            let placed = marks::place(self.marks.iter().filter(of_row), window);
            let lines = placed.iter().flat_map(|mark| [mark.large, mark.small]);
            let lines = lines.flatten().map(|label| label.row + 1).max();
            let labels = labels_height(lines.unwrap_or(0));
            // The last row's labels are below it, so that two rows stay close together.
            let below = last && number > 0;
            let top = if below { y } else { y + labels };
            rows += &row.shapes(top, &bins);
            rows += &placed.iter().map(|mark| mark_shape(mark, top, below)).collect::<String>();
            y += labels + ROW + GAP;
        }
        let picture = Picture {
            id,
            title: &format!("Time line of mode {}", self.mode.name),
            description: &self.description(window),
            height: y + AXIS,
        };
        let axis = axis(window.end - window.start, y);
        format!(
            "<div class=\"strip\">\n<h3>{}</h3>\n<p class=\"note\">{}</p>\n{}</div>\n",
            Escaped(&self.mode.name),
            Escaped(&self.mode.title),
            picture.around(&format!("{axis}{rows}"))
        )
    }

    /// For screen readers: the time of each activity of each load.
    fn description(&self, window: &Range<u64>) -> String {
        let rows = self.rows.iter().map(|row| {
            let spans = row.spans.iter().filter_map(|span| clip(span, window));
            let spans = spans.collect::<Vec<_>>();
            let times = Activity::ALL.into_iter().filter_map(|kind| {
                let of_kind = spans.iter().filter(|span| span.kind == kind);
                let time = of_kind.map(|span| span.end_ns - span.start_ns).sum::<u64>();
                (time > 0).then(|| format!("{} {}", kind.words().1, number::duration(time)))
            });
            let times = times.collect::<Vec<_>>().join(", ");
            let times = if times.is_empty() { "nothing" } else { &times };
            format!("{}: {times}.", row.name)
        });
        rows.collect::<Vec<_>>().join(" ")
    }
}

/// Grid lines at round times, and their labels.
fn axis(length_ns: u64, y: u32) -> String {
    let ticks = linear(length_ns);
    let shapes = ticks.iter().map(|tick| {
        let share = tick.at_ns as f64 / length_ns as f64;
        let line = upright("grid", &across(share), 0, y);
        line + &tick_label(share, y + 14, tick.major, &tick.label)
    });
    shapes.collect()
}

impl LoadRow<'_> {
    /// The name, the background and the spans.
    fn shapes(&self, top: u32, bins: &TimeBins) -> String {
        let runs = bins.runs(&self.spans);
        let mut paths = String::new();
        for kind in Activity::ALL {
            let mut path = String::new();
            let mut end = 0;
            for run in runs.iter().filter(|run| run.kind == kind) {
                let (gap, length) = (run.from - end, run.to - run.from);
                path += &if path.is_empty() {
                    format!("M{gap} 5h{length}")
                } else {
                    format!("m{gap} 0h{length}")
                };
                end = run.to;
            }
            if !path.is_empty() {
                paths += &format!("<path class=\"{}\" d=\"{path}\"/>", kind.words().1);
            }
        }
        let base = top + ROW / 2 + 4;
        format!(
            "<rect class=\"ground\" y=\"{top}\" width=\"100%\" height=\"{ROW}\"/>\n\
             <text class=\"lane end\" x=\"-8\" y=\"{base}\">{}</text>\n{}",
            Escaped(&shortened(self.name)),
            stretched(top, ROW, bins.count(), 10, &paths)
        )
    }
}

/// A name that fits beside its row.
fn shortened(name: &str) -> String {
    const LETTERS: usize = 9;
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    name.chars().take(LETTERS - 1).chain(['…']).collect()
}

/// A mark: once if it is the same on all screens, otherwise once for each kind.
fn mark_shape(mark: &PlacedMark<'_>, top: u32, below: bool) -> String {
    if mark.large == mark.small {
        return mark_variant(mark, mark.large, "", top, below);
    }
    mark_variant(mark, mark.large, " wide", top, below)
        + &mark_variant(mark, mark.small, " narrow", top, below)
}

/// A line across the row, extended to the label if there is one.
fn mark_variant(
    mark: &PlacedMark<'_>,
    label: Option<Label>,
    screen: &str,
    top: u32,
    below: bool,
) -> String {
    let x = across(mark.share);
    let text = Escaped(mark.text);
    let class = format!("mark{screen}");
    let bottom = top + ROW;
    let Some(label) = label else {
        let line = upright(&class, &x, top, bottom);
        return format!("<g><title>{text}</title>\n{line}</g>\n");
    };
    let height = labels_height(label.row);
    let (line, base) = if below {
        let end = bottom + height + 13;
        (upright(&class, &x, top, end), end)
    } else {
        // PANIC: the strip has the height of every line of labels above `top`.
        (upright(&class, &x, top - height - 12, bottom), top - height - 5)
    };
    let (side, distance) = if label.before { ("end", -5) } else { ("start", 5) };
    format!(
        "{line}<text class=\"word {side}{screen}\" x=\"{x}\" dx=\"{distance}\" y=\"{base}\">\
         {text}</text>\n"
    )
}

fn labels_height(lines: usize) -> u32 {
    LABELS * u32::try_from(lines).expect("there are few lines")
}
