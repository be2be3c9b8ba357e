//! At a glance: a row for each case and a column for each mode.

use super::super::grid::{Cell, Row, table};
use super::super::machine::DISTURBED;
use super::super::number;
use crate::results::{Results, SummaryRow};

/// The whole section; nothing if there is nothing to compare.
pub(super) fn section(results: &Results) -> String {
    // What the others are compared with is 1.00 everywhere.
    let modes = results.modes.iter().filter(|mode| mode.alone.is_some()).collect::<Vec<_>>();
    if results.cases.len() < 2 || modes.is_empty() {
        return String::new();
    }
    let rows = results.cases.iter().map(|case| {
        let cells = modes.iter().map(|mode| {
            let mut rows = results.summary.iter();
            cell(rows.find(|row| row.case == case.name && row.mode == mode.name))
        });
        let cells = Ok(cells.collect());
        Row { name: &case.title, about: &case.name, place: None, cells }
    });
    let columns = modes.iter().map(|mode| mode.name.clone()).collect::<Vec<_>>();
    format!(
        "<section class=\"dense\">\n<h2>At a glance</h2>\n<p class=\"note\">p99 of requests, as a \
         multiple of that with nobody beside, and below it what best-effort work keeps of the time \
         that requests leave.</p>\n{}</section>\n",
        table("Case", &columns, &rows.collect::<Vec<_>>())
    )
}

fn cell(row: Option<&SummaryRow>) -> Cell {
    let Some(row) = row else { return Cell::of(number::NOTHING) };
    if row.ok == 0 {
        return if row.skipped { Cell::of("skipped") } else { Cell::wrong("failed") };
    }
    let kept = row.be_kept.map(|kept| number::percent(Some(kept.median)));
    let ratio = match row.overloaded {
        true => Some(number::OVERLOADED.to_owned()),
        false => row.p99_ratio.map(|ratio| number::times(ratio.median)),
    };
    let mark = (row.disturbed && !row.overloaded).then_some(DISTURBED);
    match (ratio, kept) {
        (Some(ratio), Some(kept)) => Cell::of(ratio).with(kept).marked(mark),
        (Some(ratio), None) => Cell::of(ratio).marked(mark),
        (None, Some(kept)) => Cell::of(number::NOTHING).with(kept),
        (None, None) => Cell::of(number::NOTHING),
    }
}
