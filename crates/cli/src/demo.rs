//! `gpreempt demo`: online inference beside offline training, before and after.
//!
//! Runs the built-in suite `demo` on the simulator, writes the page of its results and prints a
//! table of them, or the results as JSON. With `--live`, [real processes](demo_live) run instead.

use std::path::Path;

use gpreempt_bench::demonstration::Demonstration;
use gpreempt_bench::engine::{self, RunObserver};
use gpreempt_bench::report;
use gpreempt_bench::results::{ModeInfo, Results};
use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::write_file::{probe, write_whole};
use crate::{demo_live, output, sim, text_table};

pub(crate) fn main(args: &DemoArgs) -> Result<(), Failure> {
    if args.live {
        return demo_live::main(args);
    }
    let device = sim::load_model(&args.device)?;
    probe(&args.out).map_err(Failure::input)?;
    let command = format!(
        "gpreempt demo --device {} --seconds {} --seed {}",
        args.device, args.seconds, args.seed
    );
    let demo = Demonstration::demo(device.clone(), args.seconds, args.seed);
    let results = demo.run(command, &mut ProgressBar::new("demo")).map_err(Failure::run)?;
    write_whole(&args.out, report::page(&results, None).as_bytes()).map_err(Failure::input)?;
    if args.json {
        return output::print(&results.to_text());
    }
    let path = std::fs::canonicalize(&args.out).unwrap_or_else(|_| args.out.clone());
    output::print(&text(&device, &results, &path))
}

/// Shows the progress of a demonstration on a terminal; its results are kept in memory.
pub(crate) struct ProgressBar(Progress);

impl ProgressBar {
    pub(crate) fn new(label: &str) -> Self {
        Self(Progress::new(label))
    }
}

impl RunObserver for ProgressBar {
    fn begins(&mut self, progress: &engine::Progress<'_>) {
        self.0.update(progress.done as u64, progress.total as u64);
    }

    fn keep(&mut self, _: &Results) -> Result<(), String> {
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

fn text(device: &DeviceModel, results: &Results, page: &Path) -> String {
    let provenance = if device.measured {
        "calibrated to measured hardware"
    } else {
        "from documents, not measured"
    };
    let heads = [
        "mode",
        "online p50",
        "p99",
        "max",
        "p99 vs alone",
        "offline kept",
        "preemptions",
        "re-executed",
        "lost",
        "exact",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(results.modes.iter().map(|mode| cells(results, mode)));
    let mut text = format!(
        "Online inference beside offline training on an emulated {} ({provenance}).\n\n{}\n",
        device.name,
        text_table::render(&rows)
    );
    for mode in &results.modes {
        text.push_str(&format!("{:<6} {}\n", mode.name, mode.title));
    }
    if device.machine != MachineKind::Tsg {
        text.push_str("\nOn this device online work announces its requests (a hint).\n");
    }
    let conclusion = results.conclusion.as_deref().unwrap_or_default();
    text.push_str(&format!("\n{conclusion}\nPicture: {}\n", page.display()));
    text
}

fn cells(results: &Results, mode: &ModeInfo) -> Vec<String> {
    let dash = || "-".to_owned();
    let case = results.cases.first().map_or("", |case| &case.name);
    let measured = results.of(case, &mode.name).next();
    let latency = measured.and_then(|each| each.lc.as_ref()).map(|lc| &lc.latency);
    let time = |ns: Option<u64>| ns.map_or_else(dash, |ns| Duration::from_nanos(ns).to_string());
    let row = results.row(case, &mode.name);
    let ratio = row.and_then(|row| row.p99_ratio);
    let kept = row.and_then(|row| row.be_kept);
    let be = measured.and_then(|each| each.be.as_ref());
    let mut cells = vec![
        mode.name.clone(),
        time(latency.map(|latency| latency.p50_ns)),
        time(latency.map(|latency| latency.p99_ns)),
        time(latency.map(|latency| latency.max_ns)),
        ratio.map_or_else(dash, |ratio| format!("{:.2}x", ratio.median)),
        kept.map_or_else(dash, |kept| format!("{:.1} %", kept.median * 100.0)),
    ];
    cells.extend(["preemptions", "reexecuted", "lost"].map(|name| {
        results.number(case, &mode.name, name).map_or(0.0, |count| count.median).to_string()
    }));
    cells.push(exact(be.and_then(|be| be.exact)));
    cells
}

/// Whether every kernel ran exactly once; true where no kernel was preempted.
pub(crate) fn exact(exact: Option<bool>) -> String {
    if exact.unwrap_or(true) { "yes" } else { "NO" }.to_owned()
}
