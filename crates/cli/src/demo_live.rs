//! `gpreempt demo --live`: real processes on the emulated GPU, without and with gpreempt.

use std::path::Path;

use gpreempt_bench::live::{LiveDemo, LiveResults, Phase};
use gpreempt_core::time::Duration;

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::output::Progress;
use crate::stop::Stop;
use crate::{output, sim, text_table};

pub(crate) fn main(args: &DemoArgs) -> Result<(), Failure> {
    // The emulator reads the model again; here its mistakes are found before anything starts.
    sim::load_model(&args.device)?;
    let model = match args.device.ends_with(".toml") {
        true => std::path::absolute(Path::new(&args.device)).map_err(Failure::input)?,
        false => (&args.device).into(),
    };
    let stop = Stop::on_signals()?;
    let demo = LiveDemo::new(stop.flag()).map_err(Failure::run)?;
    let missing = demo.missing();
    if !missing.is_empty() {
        return Err(Failure::input(format_args!(
            "{}; install the package of gpreempt, or build every program with `cargo build \
             --release --workspace` and run target/release/gpreempt demo --live",
            missing.join("; ")
        )));
    }
    let results = {
        let mut progress = Progress::new("");
        let mut tell = |what: &str, done: u64| progress.relabel(what, done, 1_000);
        demo.run(&model.display().to_string(), args.seconds, &mut tell).map_err(Failure::run)?
    };
    match args.json {
        true => output::print_json(&results)?,
        false => output::print(&text(&results))?,
    }
    match results.exact {
        true => Ok(()),
        false => Err(Failure::run("a kernel did not run exactly once")),
    }
}

fn text(results: &LiveResults) -> String {
    let heads = ["gpreempt", "online p50", "p99", "max", "offline kernels/s", "saved mid-kernel"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(results.phases.iter().map(cells));
    let mut text = format!(
        "An online and an offline program on an emulated GPU ({}) in real time, {} s each way.\n\n\
         {}\n",
        results.device,
        results.seconds,
        text_table::render(&rows)
    );
    for Phase { name, title, .. } in &results.phases {
        text.push_str(&format!("{name:<8} {title}\n"));
    }
    text + &conclusion(results)
}

fn cells(phase: &Phase) -> Vec<String> {
    let offline = phase.offline;
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        phase.name.to_owned(),
        time(phase.online.p50_us),
        time(phase.online.p99_us),
        time(phase.online.max_us),
        known(offline.map(|offline| format!("{:.1}", offline.kernels_per_s))),
        known(offline.map(|offline| offline.preemptions.to_string())),
    ]
}

fn time(us: f64) -> String {
    // CAST: a latency is positive and far below what an integer holds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a latency in nanoseconds"
    )]
    let ns = (us * 1e3) as u64;
    Duration::from_nanos(ns).to_string()
}

fn conclusion(results: &LiveResults) -> String {
    let [alone, without, with] = results.phases.as_slice() else { return String::new() };
    let ratio = |phase: &Phase| phase.online.p50_us / alone.online.p50_us;
    let preempted = with.offline.map_or_else(String::new, |offline| {
        let times = output::counted(
            usize::try_from(offline.preemptions).unwrap_or(usize::MAX),
            "time",
            "times",
        );
        format!(
            "The offline program (process {}) was preempted {times} in the middle of a kernel for \
             it;\nevery kernel of both programs ran {}.\n",
            offline.pid,
            if results.exact { "exactly once" } else { "NOT exactly once" }
        )
    });
    format!(
        "\nAn online request takes {:.1} times as long as alone without gpreempt, and {:.1} times \
         with it (p50).\n{preempted}",
        ratio(without),
        ratio(with),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_bench::live::{Latency, Offline};

    #[test]
    fn the_conclusion_compares_with_the_online_program_alone() {
        let phase = |name, p50_us: f64, preemptions: Option<u64>| Phase {
            name,
            title: "t",
            online: Latency { p50_us, p99_us: 2.0 * p50_us, max_us: 3.0 * p50_us },
            offline: preemptions.map(|preemptions| Offline {
                pid: 7,
                kernels_per_s: 9.0,
                preemptions,
            }),
        };
        let phases = vec![
            phase("alone", 1_500.0, None),
            phase("without", 12_000.0, Some(90)),
            phase("with", 1_650.0, Some(1)),
        ];
        let results = LiveResults { device: "h200".into(), seconds: 5, phases, exact: true };
        let text = text(&results);
        assert!(
            text.contains("8.0 times as long as alone without gpreempt, and 1.1 times"),
            "{text}"
        );
        assert!(text.contains("(process 7) was preempted 1 time in the middle of a kernel"));
        assert!(text.contains("without       12.0ms  24.0ms  36.0ms"), "{text}");
    }
}
