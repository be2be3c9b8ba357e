//! The summary: a table for each case, a row for each mode.

use super::super::grid::{Cell, Row, table};
use super::super::html::Escaped;
use super::super::machine::{self, DISTURBED};
use super::super::number;
use super::folded;
use crate::results::{CaseInfo, Estimate, ModeInfo, Results, SummaryRow};

/// A column: its name and what it means.
struct Column {
    name: &'static str,
    meaning: &'static str,
}

const COLUMNS: [Column; 6] = [
    Column {
        name: "p50",
        meaning: "Half of the requests were answered within this time, counted from when they \
                  were due.",
    },
    Column { name: "p99", meaning: "99 of 100 requests were answered within this time." },
    Column {
        name: "p50 vs alone",
        meaning: "p50 divided by the p50 of the same repetition with nobody beside. 1.00× means \
                  that the other work is not noticed.",
    },
    Column { name: "p99 vs alone", meaning: "The same for p99." },
    Column {
        name: "BE kept",
        meaning: "Best-effort work done, of what it could have done in the time that the requests \
                  leave.",
    },
    Column {
        name: "Runs",
        meaning: "Repetitions that worked. The others are listed with their reasons.",
    },
];

const DISTURBED_MEANING: &str = "The p99 is that of a repetition in which the machine itself was \
    so late that it may have made the tail: a thread that only sleeps woke more than 0.2 ms and \
    more than a tenth of a request (p50 alone) late at p99. It counts as all others do.";

/// The whole section.
pub(super) fn section(results: &Results) -> String {
    let columns = COLUMNS.map(|column| column.name.to_owned());
    let tables = results.cases.iter().map(|case| {
        let rows = results.modes.iter().enumerate();
        let rows = rows.filter_map(|(place, mode)| row(results, case, place, mode));
        let rows = rows.collect::<Vec<_>>();
        let loads = case.loads.join("; ");
        let loads = if loads.is_empty() { String::new() } else { note("note", &loads) };
        let machine = machine::sentence(results, &case.name);
        let machine = machine.map_or_else(String::new, |text| note("note machine", &text));
        (case, loads + &table("Mode", &columns, &rows) + &machine)
    });
    format!("<section>\n<h2>Summary</h2>\n{}</section>\n", folded(tables.collect()))
}

fn note(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", Escaped(text))
}

fn row<'r>(
    results: &'r Results,
    case: &CaseInfo,
    place: usize,
    mode: &'r ModeInfo,
) -> Option<Row<'r>> {
    let mut rows = results.summary.iter();
    let found = rows.find(|row| row.case == case.name && row.mode == mode.name);
    let cells = match found {
        Some(row) if row.ok == 0 => Err(reason(row)),
        Some(row) => Ok(cells(row, results.repetitions)),
        // A mode that has nothing to do with a case has no row, unless it only was not reached.
        None if results.finished.is_some() => return None,
        None => Err(Cell::of("not measured before the interruption")),
    };
    Some(Row { name: &mode.name, about: &mode.title, place: Some(place), cells })
}

fn reason(row: &SummaryRow) -> Cell {
    let why = row.failure.as_deref().unwrap_or("no reason was given");
    if row.skipped {
        Cell::of(format!("skipped: {why}"))
    } else {
        Cell::wrong(format!("failed: {why}"))
    }
}

fn cells(row: &SummaryRow, repetitions: u32) -> Vec<Cell> {
    let percent = |share: f64| number::percent(Some(share));
    let runs = if row.failure.is_some() {
        Cell::wrong(format!("{} of {repetitions}", row.ok))
    } else {
        Cell::of(row.ok.to_string())
    };
    let mark = (row.disturbed && !row.overloaded).then_some(DISTURBED);
    vec![
        Cell::estimate(row.p50_ns.as_ref(), number::nanoseconds),
        Cell::estimate(row.p99_ns.as_ref(), number::nanoseconds),
        ratio(row, row.p50_ratio.as_ref()),
        ratio(row, row.p99_ratio.as_ref()).marked(mark),
        Cell::estimate(row.be_kept.as_ref(), percent),
        runs,
    ]
}

/// Where requests queue up a ratio says how long somebody measured, so words stand there.
fn ratio(row: &SummaryRow, ratio: Option<&Estimate>) -> Cell {
    match row.overloaded {
        true => Cell::of(number::OVERLOADED),
        false => Cell::estimate(ratio, number::times),
    }
}

/// What each column means, and the intervals.
pub(super) fn glossary(results: &Results) -> String {
    let entries = COLUMNS
        .iter()
        .map(|Column { name, meaning }| format!("<dt>{name}</dt>\n<dd>{meaning}</dd>\n"));
    let estimates = results.summary.iter().flat_map(|row| {
        [row.p50_ns, row.p99_ns, row.p50_ratio, row.p99_ratio, row.be_kept].into_iter().flatten()
    });
    let least = estimates.map(|estimate| estimate.confidence).min_by(f64::total_cmp);
    let confidence = least.filter(|least| *least > 0.0).map_or_else(String::new, |least| {
        format!(
            "<dt>interval</dt>\n<dd>The median over the repetitions is between these two values \
             with a probability of {} or more.</dd>\n",
            number::percent(Some(least))
        )
    });
    let disturbed = match results.summary.iter().any(|row| row.disturbed) {
        true => format!("<dt>{DISTURBED}</dt>\n<dd>{DISTURBED_MEANING}</dd>\n"),
        false => String::new(),
    };
    format!(
        "<section>\n<h2>What the columns mean</h2>\n<dl>\n{}{confidence}{disturbed}</dl>\n\
         </section>\n",
        entries.collect::<String>()
    )
}
