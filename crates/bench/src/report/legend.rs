//! Which line is whose.

use super::html::Escaped;

/// Colours and line styles there are before they repeat.
pub(crate) const CURVES: usize = 10;

/// A line as it is drawn, whose it is, and something about it.
pub(crate) fn entry(place: usize, name: &str, about: &str) -> String {
    let class = place % CURVES;
    let (name, about) = (Escaped(name), Escaped(about));
    format!(
        "<li><svg class=\"key\" aria-hidden=\"true\" width=\"28\" height=\"10\">\
         <line class=\"curve c{class}\" x1=\"0\" x2=\"28\" y1=\"5\" y2=\"5\"/></svg>\
         <b>{name}</b> <span class=\"meaning\">{about}</span></li>\n"
    )
}

/// All entries.
pub(crate) fn list(entries: impl Iterator<Item = String>) -> String {
    format!("<ul class=\"legend\">\n{}</ul>\n", entries.collect::<String>())
}
