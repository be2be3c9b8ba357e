//! The page that shows what a demonstration did.
//!
//! One file without scripts that loads nothing from anywhere: it can be mailed, archived and
//! opened years later. [`model`] is what is shown; everything else is how.

mod cdf;
mod cells;
mod html;
mod marks;
pub(crate) mod model;
mod number;
#[cfg(test)]
mod sample;
mod svg;
mod table;
#[cfg(test)]
mod tests;
mod ticks;
mod timeline;

use html::Escaped;
use model::Report;

/// Colours, sizes and the two themes.
const STYLE: &str = include_str!("report/style.css");

/// The page, complete.
pub(crate) fn render(report: &Report) -> String {
    let title = Escaped(&report.title);
    let verdict = Escaped(&report.verdict);
    let body = [
        table::summary(report),
        timeline::section(report),
        cdf::section(report),
        table::environment(report),
        table::glossary(),
    ]
    .concat();
    // The policy makes the browser itself refuse scripts and anything from elsewhere; the empty
    // icon keeps it from asking a server for one.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; \
         style-src &#39;unsafe-inline&#39;; img-src data:\"/>\n\
         <link rel=\"icon\" href=\"data:,\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>{title}</h1>\n<p class=\"verdict\">{verdict}</p>\n</header>\n\
         {body}</main>\n</body>\n</html>\n"
    )
}
