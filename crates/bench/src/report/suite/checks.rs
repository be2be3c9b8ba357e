//! What the suite asks for, line by line.

use super::super::html::Escaped;
use crate::results::{Check, Results};

/// The whole section; nothing if the suite asks for nothing.
pub(super) fn section(results: &Results) -> String {
    if results.checks.is_empty() {
        return String::new();
    }
    // What does not hold comes first: it is what one looks for.
    let (held, broken): (Vec<_>, Vec<_>) = results.checks.iter().partition(|check| check.passed);
    let lines = broken.into_iter().chain(held).map(line).collect::<String>();
    format!("<section>\n<h2>Checks</h2>\n<ul class=\"checks\">\n{lines}</ul>\n</section>\n")
}

fn line(check: &Check) -> String {
    let (class, word) = if check.passed { ("good", "pass") } else { ("wrong", "FAIL") };
    let place = [&check.case, &check.mode].into_iter().flatten().cloned().collect::<Vec<_>>();
    let place = if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) };
    format!(
        "<li><b class=\"{class}\">{word}</b> <span>{}<span class=\"meaning\">{}: {}</span></span>\
         </li>\n",
        Escaped(&check.name),
        Escaped(&place),
        Escaped(&check.text)
    )
}
