//! The tables: what came out, what it depends on, and what the columns mean.

use super::html::Escaped;
use super::legend::CURVES;
use super::model::{Mode, Report};
use super::number;

/// A column of the summary: its name and what it means.
struct Column {
    name: &'static str,
    meaning: &'static str,
}

/// All columns after the mode's name, in order.
const COLUMNS: [Column; 9] = [
    Column {
        name: "p50",
        meaning: "Half of the online requests were answered within this time, counted from \
                  their arrival.",
    },
    Column { name: "p99", meaning: "99 of 100 online requests were answered within this time." },
    Column { name: "max", meaning: "The slowest online request." },
    Column {
        name: "p99 vs alone",
        meaning: "p99 divided by the p99 of mode “alone”, where nothing else uses the device. \
                  1.00× means that the offline work is not noticed.",
    },
    Column {
        name: "Offline kept",
        meaning: "Offline work finished, as a share of what fits into the time that online work \
                  alone leaves.",
    },
    Column { name: "Preemptions", meaning: "How often running work was taken off the device." },
    Column { name: "Re-executed", meaning: "Kernels whose execution was begun more than once." },
    Column { name: "Lost", meaning: "Kernels that were submitted and never finished." },
    Column {
        name: "Exact",
        meaning: "Whether every result is, bit for bit, that of an undisturbed run.",
    },
];

/// One row for every mode.
pub(crate) fn summary(report: &Report) -> String {
    let baseline = report.baseline().and_then(|mode| mode.latency_ns(990));
    let heads = COLUMNS
        .iter()
        .map(|column| format!("<th scope=\"col\" role=\"columnheader\">{}</th>\n", column.name))
        .collect::<String>();
    let rows = report
        .modes
        .iter()
        .enumerate()
        .map(|(index, mode)| row(index, mode, baseline))
        .collect::<String>();
    format!(
        "<section>\n<h2>Summary</h2>\n\
         <table class=\"summary\" role=\"table\">\n<thead role=\"rowgroup\">\n<tr role=\"row\">\n\
         <th scope=\"col\" role=\"columnheader\">Mode</th>\n{heads}</tr>\n</thead>\n\
         <tbody role=\"rowgroup\">\n{rows}</tbody>\n</table>\n</section>\n"
    )
}

fn row(index: usize, mode: &Mode, baseline: Option<u64>) -> String {
    let p99 = mode.latency_ns(990);
    let exact = if mode.exact { "yes" } else { "no" };
    let numbers = [
        number::duration_or_dash(mode.latency_ns(500)),
        number::duration_or_dash(p99),
        number::duration_or_dash(mode.latency_ns(1000)),
        number::ratio(p99, baseline),
        number::percent(mode.kept),
        number::count(mode.preemptions),
        number::count(mode.reexecuted),
        number::count(mode.lost),
        exact.to_owned(),
    ];
    // What must never happen stands out when it does.
    let wrong = [mode.reexecuted > 0, mode.lost > 0, !mode.exact];
    let wrong = [false; 6].into_iter().chain(wrong);
    let cells = COLUMNS.iter().zip(numbers).zip(wrong).map(|((column, number), wrong)| {
        let class = if wrong { " class=\"wrong\"" } else { "" };
        format!("<td role=\"cell\" data-label=\"{}\"{class}>{number}</td>\n", column.name)
    });
    format!(
        "<tr role=\"row\">\n<th scope=\"row\" role=\"rowheader\">\
         <span class=\"dot c{}\"></span>{}</th>\n{}</tr>\n",
        index % CURVES,
        Escaped(&mode.name),
        cells.collect::<String>()
    )
}

/// What the numbers depend on, and how to get them again.
///
/// `after` is markup that ends the section.
pub(crate) fn environment(rows: &[(String, String)], command: &str, after: &str) -> String {
    let rows = rows
        .iter()
        .map(|(name, value)| {
            let (name, value) = (Escaped(name), Escaped(value));
            format!("<tr>\n<th scope=\"row\">{name}</th>\n<td>{value}</td>\n</tr>\n")
        })
        .collect::<String>();
    format!(
        "<section>\n<h2>Where the numbers come from</h2>\n\
         <table class=\"environment\">\n<tbody>\n{rows}</tbody>\n</table>\n\
         <p class=\"note\">The same numbers again:</p>\n\
         <pre><code>{}</code></pre>\n{after}</section>\n",
        Escaped(command)
    )
}

/// What each column means.
pub(crate) fn glossary() -> String {
    let entries = COLUMNS
        .iter()
        .map(|Column { name, meaning }| format!("<dt>{name}</dt>\n<dd>{meaning}</dd>\n"))
        .collect::<String>();
    format!("<section>\n<h2>What the columns mean</h2>\n<dl>\n{entries}</dl>\n</section>\n")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_mode_has_a_row_with_every_column() {
        let report = sample::report();
        let html = summary(&report);
        let cells = COLUMNS.len() * report.modes.len();
        assert_eq!(html.matches("<td ").count(), cells);
        assert_eq!(html.matches("<tr ").count(), report.modes.len() + 1);
        assert_eq!(glossary().matches("<dt>").count(), COLUMNS.len());
    }

    #[test]
    fn the_ratio_needs_a_mode_to_compare_with() {
        let mut report = sample::report();
        report.modes[0].online_ns = vec![1_000_000];
        report.modes[1].online_ns = vec![2_500_000];
        assert!(summary(&report).contains(">2.50×<"));
        report.modes[0].name = "another".to_owned();
        assert!(!summary(&report).contains('×'));
    }

    #[test]
    fn what_must_not_happen_stands_out() {
        let mut mode = sample::mode("m");
        assert!(!row(0, &mode, None).contains("wrong"));
        mode.lost = 3;
        mode.exact = false;
        let html = row(0, &mode, None);
        assert!(html.contains("data-label=\"Lost\" class=\"wrong\">3<"));
        assert!(html.contains("data-label=\"Exact\" class=\"wrong\">no<"));
        assert!(html.contains("data-label=\"Re-executed\">0<"));
    }
}
