//! The demo's results in words and as JSON.

use std::path::Path;

use serde::Serialize;

use super::measure::{Measured, ModeNumbers};
use super::provenance;
use super::workload::{Mode, Workload};
use crate::args::DemoArgs;
use crate::output::micros;
use crate::text_table;

#[derive(Serialize)]
pub(crate) struct Json {
    command: String,
    version: &'static str,
    device: String,
    device_source: String,
    device_measured: bool,
    machine: &'static str,
    seed: u64,
    seconds: u64,
    modes: Vec<ModeJson>,
    report: String,
}

#[derive(Serialize)]
struct ModeJson {
    name: &'static str,
    online: OnlineJson,
    offline: OfflineJson,
    preemptions: u64,
    reexecuted: u64,
    lost: u64,
    exact: bool,
}

#[derive(Serialize)]
struct OnlineJson {
    requests: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    p99_ratio_to_alone: f64,
}

#[derive(Serialize)]
struct OfflineJson {
    kernels: u64,
    kept: f64,
}

/// The command that makes the same results again.
pub(crate) fn command(args: &DemoArgs) -> String {
    format!(
        "gpreempt demo --device {} --seconds {} --seed {}",
        args.device, args.seconds, args.seed
    )
}

pub(crate) fn json(
    args: &DemoArgs,
    workload: &Workload,
    measured: &Measured,
    report: &Path,
) -> Json {
    let latency = |numbers: &ModeNumbers, permille| {
        numbers.latency(permille).map_or(0.0, |latency| micros(latency.as_nanos()))
    };
    let mode = |numbers: &ModeNumbers| ModeJson {
        name: numbers.mode.name(),
        online: OnlineJson {
            requests: numbers.latencies.len(),
            p50_us: latency(numbers, 500),
            p99_us: latency(numbers, 990),
            max_us: latency(numbers, 1000),
            p99_ratio_to_alone: measured.ratio(numbers.mode).unwrap_or(0.0),
        },
        offline: OfflineJson { kernels: numbers.offline_kernels, kept: numbers.kept },
        preemptions: numbers.preemptions,
        reexecuted: numbers.reexecuted,
        lost: numbers.lost,
        exact: numbers.exact,
    };
    Json {
        command: command(args),
        version: env!("CARGO_PKG_VERSION"),
        device: workload.model.name.clone(),
        device_source: workload.model.source.clone(),
        device_measured: workload.model.measured,
        machine: workload.model.machine.name(),
        seed: args.seed,
        seconds: args.seconds,
        modes: measured.modes.iter().map(mode).collect(),
        report: report.display().to_string(),
    }
}

pub(crate) fn text(workload: &Workload, measured: &Measured, report: &Path) -> String {
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
    for numbers in &measured.modes {
        let latency = |permille| {
            numbers.latency(permille).map_or_else(|| "-".to_owned(), |latency| latency.to_string())
        };
        let ratio = measured.ratio(numbers.mode);
        let kept = if numbers.mode == Mode::Alone {
            "-".to_owned()
        } else {
            format!("{:.1} %", numbers.kept * 100.0)
        };
        rows.push(vec![
            numbers.mode.name().to_owned(),
            latency(500),
            latency(990),
            latency(1000),
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
            kept,
            numbers.preemptions.to_string(),
            numbers.reexecuted.to_string(),
            numbers.lost.to_string(),
            if numbers.exact { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    let mut text = format!(
        "Online inference beside offline training on an emulated {} ({}).\n\n",
        workload.model.name,
        provenance(&workload.model)
    );
    text.push_str(&text_table::render(&rows));
    text.push('\n');
    for mode in Mode::ALL {
        text.push_str(&format!("{:<6} {}\n", mode.name(), mode.explanation()));
    }
    if workload.announces(Mode::Ours) {
        text.push_str("\nOn this device online work announces its requests (a hint).\n");
    }
    text.push_str(&format!("\n{}\nPicture: {}\n", verdict(measured), report.display()));
    text
}

/// What came out, in one sentence.
pub(crate) fn verdict(measured: &Measured) -> String {
    let ratio = |mode| measured.ratio(mode).unwrap_or(0.0);
    let kept = measured.of(Mode::Ours).map_or(0.0, |numbers| numbers.kept * 100.0);
    format!(
        "The slowest 1 % of online requests take {:.1} times as long as alone by default and \
         {:.2} times with gpreempt; offline work keeps {kept:.0} % of the time that is left, and \
         loses nothing.",
        ratio(Mode::None),
        ratio(Mode::Ours)
    )
}
