//! Each load by itself, where there are so many that their sums hide something.

use super::super::grid::{Cell, Row, table};
use super::super::number;
use super::folded;
use crate::results::{CaseInfo, Estimate, LoadResult, Results};

/// Fewer loads than this are told apart by the summary.
const LOADS_MIN: usize = 3;

/// The whole section; nothing if no case has many loads.
pub(super) fn section(results: &Results) -> String {
    let tables = results.cases.iter().filter_map(|case| Some((case, of_case(results, case)?)));
    let tables = tables.collect::<Vec<_>>();
    if tables.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>Each load by itself</h2>\n<p class=\"note\">p99 of requests, or work done \
         in a second; the median over the repetitions.</p>\n{}</section>\n",
        folded(tables)
    )
}

fn of_case(results: &Results, case: &CaseInfo) -> Option<String> {
    let measured = results.measurements.iter().filter(|each| each.case == case.name);
    let loads = measured.map(|each| &each.loads).max_by_key(|loads| loads.len())?;
    if loads.len() < LOADS_MIN {
        return None;
    }
    let modes = results
        .modes
        .iter()
        .filter(|mode| results.of(&case.name, &mode.name).any(|each| !each.loads.is_empty()));
    let modes = modes.collect::<Vec<_>>();
    let rows = loads.iter().map(|load| {
        let cells = modes.iter().map(|mode| cell(results, &case.name, &mode.name, load));
        Row { name: &load.name, about: "", place: None, cells: Ok(cells.collect()) }
    });
    let columns = modes.iter().map(|mode| mode.name.clone()).collect::<Vec<_>>();
    Some(table("Load", &columns, &rows.collect::<Vec<_>>()))
}

fn cell(results: &Results, case: &str, mode: &str, load: &LoadResult) -> Cell {
    let worked = results.of(case, mode).filter(|each| each.is_ok());
    let found = worked.flat_map(|each| &each.loads).filter(|each| each.name == load.name);
    let found = found.collect::<Vec<_>>();
    // CAST: latencies are far below what a float counts exactly.
    let p99 = found.iter().filter_map(|each| Some(each.lc.as_ref()?.latency.p99_ns as f64));
    if let Some(estimate) = Estimate::of(&p99.collect::<Vec<_>>()) {
        return Cell::estimate(Some(&estimate), number::nanoseconds);
    }
    let rates = found.iter().filter_map(|each| Some(each.be.as_ref()?.per_second));
    let estimate = Estimate::of(&rates.collect::<Vec<_>>());
    let unit = load.be.as_ref().map_or("", |be| &be.unit);
    Cell::estimate(estimate.as_ref(), |rate| number::quantity(rate, &format!("{unit}/s")))
}
