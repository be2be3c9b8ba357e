//! Pages that show what was measured.
//!
//! Each is one file without scripts that loads nothing from anywhere: it can be mailed, archived
//! and opened years later. [`model`] is what a demonstration shows, [`suite`] shows a file of
//! results; everything else is how.

mod cdf;
mod cells;
mod grid;
mod html;
mod legend;
pub mod machine;
mod marks;
pub mod model;
pub(crate) mod number;
mod page;
mod plot;
#[cfg(test)]
mod sample;
mod study;
pub mod suite;
mod svg;
mod table;
#[cfg(test)]
mod tests;
mod ticks;
mod timeline;
#[cfg(test)]
mod well_formed;

use model::{Report, Study};

/// An invented file of results.
#[cfg(test)]
pub(crate) fn suite_sample() -> crate::results::Results {
    suite::sample()
}

/// The page of a demonstration, complete.
pub fn render(report: &Report) -> String {
    let body = [
        table::summary(report),
        timeline::section(&report.modes, &report.window),
        cdf::section(report),
        table::environment(&report.environment, &report.command, ""),
        table::glossary(),
    ]
    .concat();
    page::document(&report.title, &report.verdict, &body)
}

/// The page of a study, complete.
pub fn render_study(study: &Study) -> String {
    study::render(study)
}
