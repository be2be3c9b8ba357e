//! `gpreempt compare`: the documents' tables, run instead of estimated.

mod run;
mod workload;

use serde::Serialize;

use crate::args::CompareArgs;
use crate::failure::Failure;
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
    let mut progress = crate::progress::Progress::new("compare");
    let total = (Design::ALL.len() * (1 + workload::PENDING.len())) as u64;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress.update(done, total);
    };
    let mut rows = Vec::new();
    let mut resume = Vec::new();
    for design in Design::ALL {
        rows.push(run::row(design, args.interval_us)?);
        step();
        for pending in workload::PENDING {
            if design.preempts() && !design.announces_only() {
                resume.push(run::resume_row(design, pending)?);
            }
            step();
        }
    }
    drop(progress);
    if args.json {
        let command = format!("gpreempt compare --interval-us {}", args.interval_us);
        let version = env!("CARGO_PKG_VERSION");
        output::print_json(&Json { command, version, rows, resume })
    } else {
        output::print(&text(args, &rows, &resume))
    }
}

fn text(args: &CompareArgs, rows: &[Row], resume: &[ResumeRow]) -> String {
    let mut text = format!(
        "100 offline kernels of 8 ms; in the 25th, a request of 20 ms arrives. The scheduler\n\
         reads the rings every {} us, last half an interval ago. Times in us of virtual time.\n\n",
        args.interval_us
    );
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
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |us| format!("{us:.1}"));
    for row in rows {
        table.push(vec![
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
        ]);
    }
    text.push_str(&text_table::render(&table));
    text.push('\n');
    for design in Design::ALL {
        text.push_str(&format!("{:<12} {}\n", design.name(), design.explanation()));
    }
    text.push_str("\nResume cost against kernels pending, from the decision to running (us):\n\n");
    let mut heads = vec!["mode".to_owned()];
    heads.extend(workload::PENDING.iter().map(ToString::to_string));
    let mut table = vec![heads];
    for design in Design::ALL {
        let cells: Vec<String> = resume
            .iter()
            .filter(|row| row.mode == design.name())
            .map(|row| format!("{:.1}", row.resume_us))
            .collect();
        if !cells.is_empty() {
            table.push(std::iter::once(design.name().to_owned()).chain(cells).collect());
        }
    }
    text.push_str(&text_table::render(&table));
    text.push_str(DOCUMENTS);
    text
}

/// What the design documents estimate for the same scenario, for comparison.
const DOCUMENTS: &str = "
The documents estimate for the same request: reset 100 us to detect, 300 us to preempt, 8.5 us to
resume 75 kernels, 2-3 of them run twice; cwsr up to one interval to detect, 5 us to preempt and to
resume, nothing runs twice. (Their kernels are 200 us long. Those are so short that an AMD device
lets the request in between two of them by itself; so the kernels here are longer.)
";
