//! Results files: `gpreempt bench report`, `compare` and `predict`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpreempt_bench::comparison::{Assessment, ComparedRow, Comparison, Metric};
use gpreempt_bench::predict::{self, Prediction, TOLERANCE};
use gpreempt_bench::report;
use gpreempt_bench::results::{Estimate, Results};
use gpreempt_bench::suite::{built_in, read_suite};

use super::plan::read_suite_file;
use crate::args::{BenchCompareArgs, BenchPredictArgs, BenchReportArgs};
use crate::failure::Failure;
use crate::write_file::{probe, write_whole};
use crate::{output, text_table};

/// The name of the page, in the folder of the results file.
const PAGE: &str = "report.html";

fn read(path: &Path) -> Result<Results, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format_args!("cannot read {name}: {error}")))?;
    Results::read(&name, &text).map_err(Failure::input)
}

/// Writes the page of a results file.
pub(super) fn report(args: &BenchReportArgs) -> Result<(), Failure> {
    let results = read(&args.file)?;
    let out = args.out.clone().unwrap_or_else(|| args.file.with_file_name(PAGE));
    probe(&out).map_err(Failure::input)?;
    if is_same(&args.file, &out) {
        return Err(Failure::input(format_args!(
            "{} is the results file, which the page would overwrite; name another file with -o",
            out.display()
        )));
    }
    write_page(&results, &args.file, &out)?;
    if args.json {
        return output::print_json(&serde_json::json!({ "page": out.display().to_string() }));
    }
    output::print(&format!("The page is {}.\n", out.display()))
}

/// Whether two paths name one file, also through links.
fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    of(one).is_some_and(|file| Some(file) == of(other))
}

/// Writes the page into the folder of the results file and returns its path.
pub(super) fn write_page_beside(results: &Results, file: &Path) -> Result<PathBuf, Failure> {
    let out = file.with_file_name(PAGE);
    write_page(results, file, &out)?;
    Ok(out)
}

fn write_page(results: &Results, file: &Path, out: &Path) -> Result<(), Failure> {
    let raw = file.file_name().unwrap_or_default().to_string_lossy();
    write_whole(out, report::page(results, Some(&raw)).as_bytes()).map_err(Failure::input)
}

/// Prints what got better and what got worse between two results files.
pub(super) fn compare(args: &BenchCompareArgs) -> Result<(), Failure> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let comparison = Comparison::of(&before, &after).map_err(Failure::input)?;
    if args.json {
        output::print_json(&comparison)?;
    } else {
        output::print(&compared_text(&comparison))?;
    }
    if args.check && comparison.is_worse() {
        return Err(Failure::run("something got worse"));
    }
    Ok(())
}

fn compared_text(comparison: &Comparison) -> String {
    let heads = ["case, mode", "what", "before", "after", "change", ""];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(comparison.rows.iter().map(compared_cells));
    let mut text = text_table::render(&rows);
    for remark in &comparison.remarks {
        text.push_str(&format!("note: {remark}\n"));
    }
    // The most important first.
    let counts = [
        Assessment::Fails,
        Assessment::FailsInPart,
        Assessment::Worse,
        Assessment::PerhapsWorse,
        Assessment::Better,
        Assessment::PerhapsBetter,
        Assessment::Works,
        Assessment::New,
        Assessment::Gone,
        Assessment::Same,
    ]
    .into_iter()
    .filter_map(|assessment| {
        let count = comparison.count(assessment);
        (count > 0).then(|| format!("{count} {}", assessment.name()))
    });
    text.push_str(&format!("{}\n", counts.collect::<Vec<_>>().join(", ")));
    text
}

fn compared_cells(row: &ComparedRow) -> Vec<String> {
    let show = |estimate: &Option<Estimate>| {
        estimate.map_or_else(|| "-".to_owned(), |estimate| interval(row.metric, &estimate))
    };
    let change = row.change.map_or_else(String::new, |change| format!("{:+.1} %", change * 100.0));
    vec![
        format!("{}, {}", row.case, row.mode),
        row.metric.name().to_owned(),
        show(&row.before),
        show(&row.after),
        change,
        row.assessment.name().to_owned(),
    ]
}

fn interval(metric: Metric, estimate: &Estimate) -> String {
    let Estimate { median, low, high, .. } = *estimate;
    let (median, low, high) = (metric.show(median), metric.show(low), metric.show(high));
    if low == high { median } else { format!("{median} ({low} - {high})") }
}

/// Prints the medians that the simulator predicts beside those measured on a GPU.
pub(super) fn predict(args: &BenchPredictArgs) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    let results = read(&args.file)?;
    if results.backend == "emulated" {
        let why = "contains results of the simulator; name a file of results from a GPU";
        return Err(Failure::input(format_args!("{name} {why}")));
    }
    let suite = match (&args.suite, &results.suite.text) {
        (Some(path), _) => read_suite_file(path)?,
        (None, Some(text)) => read_suite(&name, text).map_err(Failure::input)?,
        // Older files do not contain their suite.
        (None, None) => built_in(&results.suite.name).ok_or_else(|| {
            let suite = &results.suite.name;
            let what = "is not a built-in suite; name its file with --suite";
            Failure::input(format_args!("{suite} {what}"))
        })?,
    };
    let predictions = predict::predict(&suite, &results).map_err(Failure::input)?;
    if predictions.is_empty() {
        return Err(Failure::input(format_args!(
            "{name}: there is nothing to predict; the simulator can predict requests of kernels in \
             the modes that it has (gpreempt bench list)"
        )));
    }
    if args.json {
        output::print_json(&predictions)?;
    } else {
        output::print(&text_table::render(&predicted_rows(&predictions)))?;
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

fn predicted_rows(predictions: &[Prediction]) -> Vec<Vec<String>> {
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
