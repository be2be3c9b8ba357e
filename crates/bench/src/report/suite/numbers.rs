//! What else was measured: a table for each case, a column for each mode.

use super::super::grid::{Cell, Row, table};
use super::super::number;
use super::folded;
use crate::results::{CaseInfo, Estimate, Number, Results};

/// The whole section; nothing if there is nothing else.
pub(super) fn section(results: &Results) -> String {
    let tables = results.cases.iter().filter_map(|case| Some((case, of_case(results, case)?)));
    let tables = tables.collect::<Vec<_>>();
    if tables.is_empty() {
        return String::new();
    }
    format!(
        "<section class=\"dense\">\n<h2>Further numbers</h2>\n<p class=\"note\">Medians over the \
         repetitions.</p>\n{}</section>\n",
        folded(tables)
    )
}

fn of_case(results: &Results, case: &CaseInfo) -> Option<String> {
    let measured = results.measurements.iter().filter(|each| each.case == case.name);
    let mut kinds: Vec<&Number> = Vec::new();
    for number in measured.flat_map(|each| &each.numbers) {
        if kinds.iter().all(|known| known.name != number.name) {
            kinds.push(number);
        }
    }
    let modes = results
        .modes
        .iter()
        .filter(|mode| results.of(&case.name, &mode.name).any(|each| !each.numbers.is_empty()));
    let modes = modes.collect::<Vec<_>>();
    if kinds.is_empty() || modes.is_empty() {
        return None;
    }
    let rows = kinds.iter().map(|kind| {
        let cells = modes.iter().map(|mode| {
            let worked = results.of(&case.name, &mode.name).filter(|each| each.is_ok());
            let values = worked.filter_map(|each| each.number(&kind.name)).collect::<Vec<_>>();
            let estimate = Estimate::of(&values);
            // So many numbers without their intervals: those are in the file of results.
            match estimate {
                Some(estimate) => Cell::of(number::quantity(estimate.median, &kind.unit)),
                None => Cell::of(number::NOTHING),
            }
        });
        Row { name: &kind.title, about: "", place: None, cells: Ok(cells.collect()) }
    });
    let columns = modes.iter().map(|mode| mode.name.clone()).collect::<Vec<_>>();
    Some(table("Number", &columns, &rows.collect::<Vec<_>>()))
}
