//! `gpreempt compare`: the documents' tables and time lines, run instead of estimated.

mod page;
mod run;
mod time_line;
mod workload;

use serde::Serialize;

use crate::args::CompareArgs;
use crate::failure::Failure;
use crate::write_file::{probe, write_whole};
use crate::{output, text_table};
use run::{ResumeRow, Row};
use workload::Design;

#[derive(Serialize)]
struct Json {
    command: String,
    version: &'static str,
    rows: Vec<Row>,
    resume: Vec<ResumeRow>,
}

pub(crate) fn main(args: &CompareArgs) -> Result<(), Failure> {
    if let Some(path) = &args.report {
        probe(path).map_err(Failure::input)?;
    }
    let mut progress = crate::progress::Progress::new("compare");
    let total = (Design::ALL.len() * (1 + workload::PENDING.len())) as u64;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress.update(done, total);
    };
    let (mut rows, mut modes, mut resume) = (Vec::new(), Vec::new(), Vec::new());
    for design in Design::ALL {
        let (row, mode) = run::row(design, args.interval_us)?;
        rows.push(row);
        modes.push(mode);
        step();
        for pending in workload::PENDING {
            if design.preempts() && !design.announces_only() {
                resume.push(run::resume_row(design, pending)?);
            }
            step();
        }
    }
    drop(progress);
    if let Some(path) = &args.report {
        let page = page::study(args, &rows, &resume, modes);
        let page = gpreempt_bench::report::render_study(&page);
        write_whole(path, page.as_bytes()).map_err(Failure::input)?;
    }
    if args.json {
        let (command, version) = (command(args), env!("CARGO_PKG_VERSION"));
        output::print_json(&Json { command, version, rows, resume })
    } else {
        output::print(&text(args, &rows, &resume))
    }
}

/// What gives the same numbers again.
fn command(args: &CompareArgs) -> String {
    format!("gpreempt compare --interval-us {}", args.interval_us)
}

fn text(args: &CompareArgs, rows: &[Row], resume: &[ResumeRow]) -> String {
    let mut text = format!(
        "100 offline kernels of 8 ms; in the 25th, a request of 20 ms arrives. The scheduler\n\
         reads the rings every {} us, last half an interval ago. Times in us of virtual time.\n\n",
        args.interval_us
    );
    let cells = std::iter::once(heads()).chain(rows.iter().map(row_cells));
    text.push_str(&text_table::render(&cells.collect::<Vec<_>>()));
    text.push('\n');
    for design in Design::ALL {
        text.push_str(&format!("{:<12} {}\n", design.name(), design.explanation()));
    }
    text.push_str("\nResume cost against kernels pending, from the decision to running (us):\n\n");
    let (heads, cells) = resume_cells(resume);
    let table = std::iter::once(heads).chain(cells).collect::<Vec<_>>();
    text.push_str(&text_table::render(&table));
    text.push_str("\nTime lines, counted from the arrival of the request:\n");
    for row in rows {
        text.push_str(&format!("\n{}\n", row.mode));
        for event in &row.time_line {
            text.push_str(&format!("{:>15}  {}\n", milliseconds(event.at_us), event.what));
        }
    }
    text.push_str(DOCUMENTS);
    text
}

/// The columns of the first table.
fn heads() -> Vec<String> {
    let heads = [
        "mode",
        "detect",
        "preempt",
        "execute",
        "resume",
        "online",
        "offline +",
        "preemptions",
        "re-executed",
        "lost",
        "exact",
    ];
    heads.map(str::to_owned).to_vec()
}

/// A row of the first table.
fn row_cells(row: &Row) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |us| format!("{us:.1}"));
    vec![
        row.mode.to_owned(),
        number(row.detect_us),
        number(row.preempt_us),
        number(row.execute_us),
        number(row.resume_us),
        number(Some(row.online.p50_us)),
        number(Some(row.offline.delay_us)),
        row.preemptions.to_string(),
        row.reexecuted.to_string(),
        row.lost.to_string(),
        if row.exact { "yes" } else { "NO" }.to_owned(),
    ]
}

/// The columns and rows of the second table.
fn resume_cells(resume: &[ResumeRow]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut heads = vec!["mode".to_owned()];
    heads.extend(workload::PENDING.iter().map(ToString::to_string));
    let rows = Design::ALL.into_iter().filter_map(|design| {
        let of_design = resume.iter().filter(|row| row.mode == design.name());
        let cells = of_design.map(|row| format!("{:.1}", row.resume_us)).collect::<Vec<_>>();
        let first = std::iter::once(design.name().to_owned());
        (!cells.is_empty()).then(|| first.chain(cells).collect())
    });
    (heads, rows.collect())
}

/// A moment of a time line.
fn milliseconds(us: f64) -> String {
    format!("{:+.3} ms", us / 1e3)
}

/// What the design documents estimate for the same scenario, for comparison.
const DOCUMENTS: &str = "
The documents estimate for the same request: reset 100 us to detect, 300 us to preempt, 8.5 us to
resume 75 kernels, 2-3 of them run twice; cwsr up to one interval to detect, 5 us to preempt and to
resume, nothing runs twice. (Their kernels are 200 us long. Those are so short that an AMD device
lets the request in between two of them by itself; so the kernels here are longer.)
";
