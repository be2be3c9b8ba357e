//! `gpreempt bench predict`: the simulator beside what was measured.

use gpreempt_bench::predict::{Prediction, TOLERANCE, predict};

use gpreempt_bench::suite::{built_in, read_suite};

use crate::args::BenchPredictArgs;
use crate::failure::Failure;
use crate::{output, text_table};

pub(super) fn main(args: &BenchPredictArgs) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    let results = super::page::read(&args.file)?;
    if results.backend == "emulated" {
        let why = "is of the simulator itself; predict what was measured on a GPU";
        return Err(Failure::input(format_args!("{name} {why}")));
    }
    let suite = match (&args.suite, &results.suite.text) {
        (Some(path), _) => super::read(path)?,
        (None, Some(text)) => read_suite(&name, text).map_err(Failure::input)?,
        // Older files do not contain their suite.
        (None, None) => built_in(&results.suite.name).ok_or_else(|| {
            let suite = &results.suite.name;
            let what = "is none of our suites; name its file with --suite";
            Failure::input(format_args!("{suite} {what}"))
        })?,
    };
    let predictions = predict(&suite, &results).map_err(Failure::input)?;
    if predictions.is_empty() {
        return Err(Failure::input(format_args!(
            "{name}: there is nothing to predict; requests of kernels in modes that the simulator \
             knows too can be (gpreempt bench list)"
        )));
    }
    if args.json {
        output::print_json(&predictions)?;
    } else {
        output::print(&text_table::render(&table(&predictions)))?;
    }
    let far = predictions.iter().filter(|prediction| !prediction.is_close).count();
    if far > 0 {
        return Err(Failure::run(format_args!(
            "{far} of {} medians are off by more than {:.0} %",
            predictions.len(),
            TOLERANCE * 100.0
        )));
    }
    Ok(())
}

fn table(predictions: &[Prediction]) -> Vec<Vec<String>> {
    let heads = ["case, mode", "measured us", "predicted us", "of it host", "off", ""];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(predictions.iter().map(|prediction| {
        vec![
            format!("{}, {}", prediction.case, prediction.mode),
            format!("{:.1}", prediction.measured_ns / 1e3),
            format!("{:.1}", prediction.predicted_ns / 1e3),
            format!("{:.1}", prediction.host_ns / 1e3),
            format!("{:+.1} %", prediction.off * 100.0),
            if prediction.is_close { "" } else { "too far" }.to_owned(),
        ]
    }));
    rows
}
