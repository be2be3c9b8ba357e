//! `gpreempt bench compare`: before and after.

use gpreempt_bench::comparison::{ComparedRow, Comparison, Quantity, Verdict};
use gpreempt_bench::results::Estimate;

use super::page::read;
use crate::args::BenchCompareArgs;
use crate::failure::Failure;
use crate::{output, text_table};

pub(super) fn main(args: &BenchCompareArgs) -> Result<(), Failure> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let comparison = Comparison::of(&before, &after).map_err(Failure::input)?;
    if args.json {
        output::print_json(&comparison)?;
    } else {
        output::print(&text(&comparison))?;
    }
    if args.check && comparison.is_worse() {
        return Err(Failure::run("something got worse"));
    }
    Ok(())
}

fn text(comparison: &Comparison) -> String {
    let heads = ["case, mode", "what", "before", "after", "change", ""];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(comparison.rows.iter().map(cells));
    let mut text = text_table::render(&rows);
    for remark in &comparison.remarks {
        text.push_str(&format!("note: {remark}\n"));
    }
    text.push_str(&summary(comparison));
    text
}

fn cells(row: &ComparedRow) -> Vec<String> {
    let show = |estimate: &Option<Estimate>| {
        estimate.map_or_else(|| "-".to_owned(), |estimate| interval(row.quantity, &estimate))
    };
    let change = row.change.map_or_else(String::new, |change| format!("{:+.1} %", change * 100.0));
    vec![
        format!("{}, {}", row.case, row.mode),
        row.quantity.name().to_owned(),
        show(&row.before),
        show(&row.after),
        change,
        row.verdict.name().to_owned(),
    ]
}

fn interval(quantity: Quantity, estimate: &Estimate) -> String {
    let Estimate { median, low, high, .. } = *estimate;
    let (median, low, high) = (quantity.show(median), quantity.show(low), quantity.show(high));
    if low == high { median } else { format!("{median} ({low} - {high})") }
}

/// How many of which, those that matter most first.
fn summary(comparison: &Comparison) -> String {
    let verdicts = [
        Verdict::Fails,
        Verdict::FailsInPart,
        Verdict::Worse,
        Verdict::PerhapsWorse,
        Verdict::Better,
        Verdict::PerhapsBetter,
        Verdict::Works,
        Verdict::New,
        Verdict::Gone,
        Verdict::Same,
    ];
    let counts = verdicts.into_iter().filter_map(|verdict| {
        let count = comparison.count(verdict);
        (count > 0).then(|| format!("{count} {}", verdict.name()))
    });
    format!("{}\n", counts.collect::<Vec<_>>().join(", "))
}
