//! `gpreempt bench predict`: the simulator beside what was measured.

use gpreempt_bench::predict::{Prediction, TOLERANCE, predict};

use crate::args::BenchPredictArgs;
use crate::failure::Failure;
use crate::{output, text_table};

pub(super) fn main(args: &BenchPredictArgs) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    let results = super::page::read(&args.file)?;
    let suite = match &args.suite {
        Some(path) => super::read(path)?,
        None => super::find(&results.suite.name)?,
    };
    let predictions = predict(&suite, &results).map_err(Failure::input)?;
    if predictions.is_empty() {
        return Err(Failure::input(format_args!("{name}: the simulator knows none of its modes")));
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
