//! The same tables as a page, with time lines.

use gpreempt_bench::report::model::{Mode, Study, Table};
use gpreempt_core::time::{Duration, Instant};

use super::run::{ResumeRow, Row};
use super::{DOCUMENTS, heads, row_cells, workload};
use crate::args::CompareArgs;

/// What is drawn before the request arrives, and after.
const BEFORE: Duration = Duration::from_millis(4);
const AFTER: Duration = Duration::from_millis(46);

/// The page.
pub(super) fn study(
    args: &CompareArgs,
    rows: &[Row],
    resume: &[ResumeRow],
    modes: Vec<Mode>,
) -> Study {
    let arrival = workload::arrival(args.interval_us);
    let start = Instant::ZERO + arrival.saturating_sub(BEFORE);
    let end = Instant::ZERO + arrival + AFTER;
    Study {
        title: "One request among a hundred kernels".to_owned(),
        verdict: verdict(rows),
        command: super::command(args),
        environment: environment(rows, args),
        modes,
        window: start.as_nanos()..end.as_nanos(),
        tables: vec![summary(rows, args), costs(resume), time_lines(rows)],
    }
}

fn verdict(rows: &[Row]) -> String {
    let of = |name: &str| rows.iter().find(|row| row.mode == name);
    let (Some(none), Some(reset), Some(cwsr)) = (of("none"), of("reset"), of("cwsr-hint")) else {
        return String::new();
    };
    format!(
        "Without preemption a request of 20 ms takes {:.0} ms. The reset design answers it in \
         {:.1} ms and runs {} kernels twice; saving and restoring waves answers it in {:.1} ms and \
         runs none twice.",
        none.online.p50_us / 1e3,
        reset.online.p50_us / 1e3,
        reset.reexecuted,
        cwsr.online.p50_us / 1e3
    )
}

fn summary(rows: &[Row], args: &CompareArgs) -> Table {
    Table {
        title: "What the request meets with".to_owned(),
        note: format!(
            "100 offline kernels of 8 ms; in the 25th, a request of 20 ms arrives. The scheduler \
             reads the rings every {} us, last half an interval ago. Microseconds of virtual time.",
            args.interval_us
        ),
        heads: heads(),
        rows: rows.iter().map(row_cells).collect(),
    }
}

fn costs(resume: &[ResumeRow]) -> Table {
    let (heads, rows) = super::resume_cells(resume);
    let note = "From the decision to offline work running, in microseconds; the columns are \
                kernels that wait in the ring.";
    Table { title: "Resuming".to_owned(), note: note.to_owned(), heads, rows }
}

/// A row for each thing that happens and a column for each design.
fn time_lines(rows: &[Row]) -> Table {
    let mut events: Vec<&str> = Vec::new();
    for event in rows.iter().flat_map(|row| &row.time_line) {
        if !events.contains(&event.what) {
            events.push(event.what);
        }
    }
    // In the order in which they happen, on average over the designs that have them.
    let place = |what: &str| {
        let places = rows.iter().filter_map(|row| {
            let place = row.time_line.iter().position(|event| event.what == what)?;
            Some(place * 1_000 / row.time_line.len().max(1))
        });
        let places = places.collect::<Vec<_>>();
        places.iter().sum::<usize>() / places.len().max(1)
    };
    events.sort_by_key(|what| place(what));
    let cells = |what: &str| {
        let moment = |row: &Row| {
            let found = row.time_line.iter().find(|event| event.what == what);
            found.map_or_else(|| "-".to_owned(), |event| format!("{:.3}", event.at_us / 1e3))
        };
        let first = std::iter::once(what.to_owned());
        first.chain(rows.iter().map(moment)).collect()
    };
    let heads = std::iter::once("what").chain(rows.iter().map(|row| row.mode));
    Table {
        title: "Moment by moment".to_owned(),
        note: format!(
            "Milliseconds from the arrival of the request.{}",
            DOCUMENTS.replace('\n', " ")
        ),
        heads: heads.map(str::to_owned).collect(),
        rows: events.into_iter().map(cells).collect(),
    }
}

fn environment(rows: &[Row], args: &CompareArgs) -> Vec<(String, String)> {
    let mut devices: Vec<String> = Vec::new();
    for row in rows {
        let kind = if row.device_measured { "measured" } else { "from documents, not measured" };
        let device = format!("{} ({kind})", row.device);
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    [
        ("Devices", devices.join(", ")),
        ("Where", "the simulator, in virtual time: the same numbers on every machine".to_owned()),
        ("Rings are read", format!("every {} us", args.interval_us)),
        ("gpreempt", env!("CARGO_PKG_VERSION").to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}
