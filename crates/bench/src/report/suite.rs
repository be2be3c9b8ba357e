//! The page of a file of results.
//!
//! What failed is shown as failed, what was not measured as not measured, and an interrupted run
//! as one. Everything in the file may come from somebody else, so all text is escaped.

mod checks;
mod curves;
mod failures;
mod lines;
mod loads;
mod numbers;
mod origin;
mod overview;
#[cfg(test)]
mod sample;
mod spread;
mod summary;
#[cfg(test)]
mod tests;
mod verdict;

use super::html::Escaped;
use super::page;
use crate::results::{CaseInfo, Results};

/// The page, complete. `raw` is the name of the file of results, which lies beside it.
pub fn page(results: &Results, raw: &str) -> String {
    let body = [
        checks::section(results),
        overview::section(results),
        summary::section(results),
        failures::section(results),
        lines::section(results),
        curves::section(results),
        spread::section(results),
        numbers::section(results),
        loads::section(results),
        origin::section(results, raw),
        summary::glossary(results),
    ]
    .concat();
    page::document(&results.suite.title, &verdict::sentence(results), &body)
}

/// An invented file of results.
#[cfg(test)]
pub(super) fn sample() -> Results {
    sample::results()
}

/// One part for each case; those after the first are folded, so that a page stays readable.
fn folded(parts: Vec<(&CaseInfo, String)>) -> String {
    const OPEN: usize = 1;
    let parts = parts.into_iter().enumerate().map(|(index, (case, part))| {
        let open = if index < OPEN { " open=\"open\"" } else { "" };
        let title = Escaped(&case.title);
        format!("<details{open}>\n<summary>{title}</summary>\n{part}</details>\n")
    });
    parts.collect()
}
