//! Time lines of one preemption: a strip for each mode.

use std::ops::Range;

use super::super::model::{Lane, Mark, Span, SpanKind};
use super::super::timeline::{Strip, legend};
use super::folded;
use crate::results::{CaseInfo, ModeInfo, Results, TimeLine};

/// Modes whose time lines differ by more than this are not drawn to the same scale: the short
/// ones could not be read.
const SCALE_MAX: u64 = 8;

/// A mode's time line, ready to be drawn.
struct Drawn<'r> {
    mode: &'r ModeInfo,
    lanes: Vec<Lane>,
    marks: Vec<Mark>,
    length_ns: u64,
}

/// The whole section; nothing if no preemption was looked at.
pub(super) fn section(results: &Results) -> String {
    let parts = results.cases.iter().enumerate();
    let parts = parts.filter_map(|(index, case)| Some((case, strips(results, index, case)?)));
    let parts = parts.collect::<Vec<_>>();
    if parts.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>One preemption, closely</h2>\n{}</section>\n", folded(parts))
}

fn strips(results: &Results, index: usize, case: &CaseInfo) -> Option<String> {
    let drawn = results.modes.iter().filter_map(|mode| {
        let worked = results.of(&case.name, &mode.name).filter(|each| each.is_ok());
        let line =
            worked.filter_map(|each| each.time_line.as_ref()).find(|line| line.length_ns > 0);
        Some(Drawn::of(mode, line?))
    });
    let drawn = drawn.collect::<Vec<_>>();
    let longest = drawn.iter().map(|each| each.length_ns).max()?;
    let shortest = drawn.iter().map(|each| each.length_ns).min()?;
    let same = longest / shortest <= SCALE_MAX;
    let note = if same { "All to the same scale." } else { "Each to a scale of its own." };
    let whole: Range<u64> = 0..longest;
    let legend = legend(drawn.iter().flat_map(|each| &each.lanes), &whole);
    let strips = drawn.iter().enumerate().map(|(place, each)| {
        let Drawn { mode, lanes, marks, length_ns } = each;
        let window = if same { 0..longest } else { 0..*length_ns };
        let strip = Strip { name: &mode.name, explanation: &mode.title, lanes, marks };
        strip.draw(&format!("line{index}-{place}"), &window)
    });
    let strips = strips.collect::<String>();
    Some(format!("<p class=\"note\">{note}</p>\n{legend}{strips}"))
}

impl<'r> Drawn<'r> {
    fn of(mode: &'r ModeInfo, line: &TimeLine) -> Self {
        let lanes = line.rows.iter().zip(0_u32..).map(|(name, row)| Lane {
            name: name.clone(),
            spans: line
                .spans
                .iter()
                .filter(|span| span.row == row)
                .filter_map(|span| {
                    let kind = kind(&span.what)?;
                    Some(Span { start_ns: span.from_ns, end_ns: span.to_ns, kind })
                })
                .collect(),
        });
        let last = line.rows.len().saturating_sub(1);
        let marks = line.marks.iter().map(|mark| Mark {
            at_ns: mark.at_ns,
            // What is done to the others is told at their lane.
            lane: if matches!(mark.name.as_str(), "preempt" | "back") { last } else { 0 },
            text: mark.name.clone(),
        });
        let (lanes, marks) = (lanes.collect(), marks.collect());
        Self { mode, lanes, marks, length_ns: line.length_ns }
    }
}

/// What a word of the file is drawn as; one that is not known is not drawn.
fn kind(what: &str) -> Option<SpanKind> {
    Some(match what {
        "run" => SpanKind::Run,
        "wait" => SpanKind::Wait,
        "save" => SpanKind::Save,
        "restore" => SpanKind::Restore,
        "hold" => SpanKind::Hold,
        "kill" => SpanKind::Killed,
        _ => return None,
    })
}
