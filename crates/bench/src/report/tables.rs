//! The tables of the page: overview, summary of each case, further numbers, loads; and the sentence
//! about noise of the host.

use super::grid::{Cell, Row, table};
use super::{Escaped, folded, number};
use crate::results::{
    CaseInfo, Estimate, HostNoise, LcResult, LoadResult, Measurement, ModeInfo, Number, Results,
    SummaryRow,
};

/// The mark of a tail latency that host noise may have caused.
pub const DISTURBED: &str = "disturbed";

pub(super) const DISTURBED_MEANING: &str = "The p99 is of a repetition in which host noise may \
    have caused the tail: the wake-up latency of a sleeping thread was above 0.2 ms and above a \
    tenth of a request (p50 alone) at p99. The value counts like all others.";

/// The columns of the summary and what they mean.
pub(super) const COLUMNS: [(&str, &str); 6] = [
    (
        "p50",
        "Half of the requests were answered within this time, counted from when they were due.",
    ),
    ("p99", "99 of 100 requests were answered within this time."),
    (
        "p50 vs alone",
        "p50 divided by the p50 of the same repetition without best-effort work. 1.00× means that \
         best-effort work does not delay requests.",
    ),
    ("p99 vs alone", "The same for p99."),
    (
        "BE kept",
        "Best-effort work done, as a part of what it can do in the time that requests leave idle.",
    ),
    ("Runs", "Successful repetitions. The others are listed with their reasons."),
];

/// A row for each case and a column for each mode; nothing if there is nothing to compare.
pub(super) fn overview(results: &Results) -> String {
    // The ratio of a baseline is 1.00 everywhere.
    let modes = results.modes.iter().filter(|mode| mode.alone.is_some()).collect::<Vec<_>>();
    if results.cases.len() < 2 || modes.is_empty() {
        return String::new();
    }
    let rows = results.cases.iter().map(|case| {
        let cells = modes.iter().map(|mode| overview_cell(results.row(&case.name, &mode.name)));
        Row { about: &case.name, ..Row::of(&case.title, cells) }
    });
    format!(
        "<section class=\"dense\">\n<h2>At a glance</h2>\n<p class=\"note\">p99 of requests, as a \
         multiple of the p99 alone; below it the part of the remaining time that best-effort work \
         used.</p>\n{}</section>\n",
        table("Case", &names(&modes), &rows.collect::<Vec<_>>())
    )
}

fn overview_cell(row: Option<&SummaryRow>) -> Cell {
    let Some(row) = row else { return Cell::of(number::NOTHING) };
    if row.ok == 0 {
        return if row.skipped { Cell::of("skipped") } else { Cell::wrong("failed") };
    }
    let kept = row.be_kept.map(|kept| number::percent(Some(kept.median)));
    let ratio = match row.overloaded {
        true => Some(number::OVERLOADED.to_owned()),
        false => row.p99_ratio.map(|ratio| number::times(ratio.median)),
    };
    let mark = (row.disturbed && !row.overloaded && ratio.is_some()).then_some(DISTURBED);
    let cell = Cell::of(ratio.unwrap_or_else(|| number::NOTHING.to_owned())).marked(mark);
    match kept {
        Some(kept) => cell.with(kept),
        None => cell,
    }
}

fn names(modes: &[&ModeInfo]) -> Vec<String> {
    modes.iter().map(|mode| mode.name.clone()).collect()
}

/// A table for each case, a row for each mode.
pub(super) fn summary(results: &Results) -> String {
    let columns = COLUMNS.map(|(name, _)| name.to_owned());
    let tables = results.cases.iter().map(|case| {
        let rows = results.modes.iter().enumerate();
        let rows = rows.filter_map(|(place, mode)| summary_row(results, case, place, mode));
        let rows = rows.collect::<Vec<_>>();
        let loads = case.loads.join("; ");
        let loads = if loads.is_empty() { String::new() } else { note("note", &loads) };
        let noise = host_noise(results, &case.name);
        let noise = noise.map_or_else(String::new, |text| note("note machine", &text));
        (case, loads + &table("Mode", &columns, &rows) + &noise)
    });
    format!("<section>\n<h2>Summary</h2>\n{}</section>\n", folded(tables.collect()))
}

fn note(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", Escaped(text))
}

fn summary_row<'r>(
    results: &'r Results,
    case: &CaseInfo,
    place: usize,
    mode: &'r ModeInfo,
) -> Option<Row<'r>> {
    let cells = match results.row(&case.name, &mode.name) {
        Some(row) if row.ok == 0 => Err(reason(row)),
        Some(row) => Ok(summary_cells(row, results.repetitions)),
        // The case does not run in this mode, unless the run was interrupted.
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

fn summary_cells(row: &SummaryRow, repetitions: u32) -> Vec<Cell> {
    // Where requests queue up, a ratio depends on the length of the measurement.
    let ratio = |ratio: &Option<Estimate>| match row.overloaded {
        true => Cell::of(number::OVERLOADED),
        false => Cell::estimate(ratio.as_ref(), number::times),
    };
    let runs = if row.failure.is_some() {
        Cell::wrong(format!("{} of {repetitions}", row.ok))
    } else {
        Cell::of(row.ok.to_string())
    };
    let mark = (row.disturbed && !row.overloaded).then_some(DISTURBED);
    vec![
        Cell::estimate(row.p50_ns.as_ref(), number::nanoseconds),
        Cell::estimate(row.p99_ns.as_ref(), number::nanoseconds),
        ratio(&row.p50_ratio),
        ratio(&row.p99_ratio).marked(mark),
        Cell::estimate(row.be_kept.as_ref(), |share| number::percent(Some(share))),
        runs,
    ]
}

/// A section with a table for each case that has one; nothing without tables.
fn per_case(
    results: &Results,
    head: &str,
    of_case: fn(&Results, &CaseInfo) -> Option<String>,
) -> String {
    let tables = results.cases.iter().filter_map(|case| Some((case, of_case(results, case)?)));
    let tables = tables.collect::<Vec<_>>();
    if tables.is_empty() {
        return String::new();
    }
    format!("{head}{}</section>\n", folded(tables))
}

/// The modes in which a case has what `has` looks for.
fn modes_with<'r>(
    results: &'r Results,
    case: &CaseInfo,
    has: impl Fn(&Measurement) -> bool,
) -> Vec<&'r ModeInfo> {
    let modes = results.modes.iter();
    modes.filter(|mode| results.of(&case.name, &mode.name).any(&has)).collect()
}

/// The numbers beyond the summary: a row for each number, a column for each mode.
pub(super) fn further_numbers(results: &Results) -> String {
    let head = "<section class=\"dense\">\n<h2>Further numbers</h2>\n<p class=\"note\">Medians \
                over the repetitions.</p>\n";
    per_case(results, head, |results, case| {
        let measured = results.measurements.iter().filter(|each| each.case == case.name);
        let mut kinds: Vec<&Number> = Vec::new();
        for number in measured.flat_map(|each| &each.numbers) {
            if kinds.iter().all(|known| known.name != number.name) {
                kinds.push(number);
            }
        }
        let modes = modes_with(results, case, |each| !each.numbers.is_empty());
        if kinds.is_empty() || modes.is_empty() {
            return None;
        }
        let rows = kinds.iter().map(|kind| {
            // The intervals are in the results file; here they would crowd the table.
            let cells = modes.iter().map(|mode| {
                let estimate = results.number(&case.name, &mode.name, &kind.name);
                Cell::of(estimate.map_or_else(
                    || number::NOTHING.to_owned(),
                    |estimate| number::quantity(estimate.median, &kind.unit),
                ))
            });
            Row::of(&kind.title, cells)
        });
        Some(table("Number", &names(&modes), &rows.collect::<Vec<_>>()))
    })
}

/// Every load of cases with many: a row for each load, a column for each mode.
pub(super) fn each_load(results: &Results) -> String {
    let head = "<section>\n<h2>Each load by itself</h2>\n<p class=\"note\">p99 of requests, or \
                work per second; the median over the repetitions.</p>\n";
    per_case(results, head, |results, case| {
        let loads = results.many_loads(&case.name)?;
        let modes = modes_with(results, case, |each| !each.loads.is_empty());
        let rows = loads.iter().map(|load| {
            let cells = modes.iter().map(|mode| load_cell(results, &case.name, &mode.name, load));
            Row::of(&load.name, cells)
        });
        Some(table("Load", &names(&modes), &rows.collect::<Vec<_>>()))
    })
}

fn load_cell(results: &Results, case: &str, mode: &str, load: &LoadResult) -> Cell {
    let p99 = |lc: &LcResult| lc.latency.p99_ns;
    if let Some(estimate) = results.latency_of_load(case, mode, &load.name, p99) {
        return Cell::estimate(Some(&estimate), number::nanoseconds);
    }
    let rates = results.of_load(case, mode, &load.name);
    let rates = rates.filter_map(|each| Some(each.be.as_ref()?.per_second));
    let estimate = Estimate::of(&rates.collect::<Vec<_>>());
    let unit = load.be.as_ref().map_or("", |be| &be.unit);
    Cell::estimate(estimate.as_ref(), |rate| number::quantity(rate, &format!("{unit}/s")))
}

/// A sentence about host noise: the worst measurement of a case, and the modes with disturbed
/// repetitions. None where it was not measured.
pub fn host_noise(results: &Results, case: &str) -> Option<String> {
    let of_case = results.measurements.iter().filter(|each| each.case == case);
    let known = of_case.filter_map(|each| Some((each, HostNoise::of(each)?)));
    let (each, noise) = known.max_by(|a, b| a.1.late_p99_ns.total_cmp(&b.1.late_p99_ns))?;
    let stolen = noise.stolen.map_or_else(String::new, |part| {
        format!(", and the hypervisor stole {} of a processor", number::percent(Some(part)))
    });
    let worst = format!(
        "Host noise at its worst ({}, repetition {}): wake-up latency of a sleeping thread {} at \
         p99 and {} at most{stolen}.",
        each.mode,
        each.repetition.saturating_add(1),
        number::nanoseconds(noise.late_p99_ns),
        number::nanoseconds(noise.late_max_ns),
    );
    let disturbed = results.modes.iter().filter_map(|mode| {
        let measured: Vec<&Measurement> =
            results.of(case, &mode.name).filter(|each| each.is_ok()).collect();
        let count = measured.iter().filter(|each| results.is_disturbed(each)).count();
        (count > 0).then(|| format!("{} {count} of {}", mode.name, measured.len()))
    });
    let disturbed = disturbed.collect::<Vec<_>>();
    if disturbed.is_empty() {
        return Some(worst);
    }
    Some(format!("{worst} Disturbed repetitions: {}.", disturbed.join(", ")))
}
