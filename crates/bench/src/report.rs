//! The HTML page of a results file: tables, curves, distributions and time lines.
//!
//! The page is one file without scripts that loads nothing, so it can be mailed, archived and
//! opened years later. Failed measurements are shown as failed, missing ones as missing. Every text
//! of the results may come from an untrusted file and is escaped.

mod curves;
mod grid;
mod number;
mod plot;
mod sections;
mod tables;
#[cfg(test)]
mod test_sample;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt;

use crate::results::{CaseInfo, Results};

pub(crate) use number::{nanoseconds, percent, times};
pub use tables::{DISTURBED, host_noise};
#[cfg(test)]
pub(crate) use test_sample::results as sample_results;

/// Colours of the two themes, which the daemon's live page has too, and sizes.
const STYLE: &str =
    concat!(include_str!("report/colours.css"), "\n", include_str!("report/style.css"));

/// The whole page. `raw` is the name of the results file in the same folder, for a link.
pub fn page(results: &Results, raw: Option<&str>) -> String {
    let body = [
        sections::checks(results),
        tables::overview(results),
        tables::summary(results),
        sections::failures(results),
        timeline::section(results),
        curves::against_axis(results),
        curves::distributions(results),
        tables::further_numbers(results),
        tables::each_load(results),
        sections::origin(results, raw),
        sections::glossary(results),
    ]
    .concat();
    let (title, conclusion) = (Escaped(&results.suite.title), sections::conclusion(results));
    let conclusion = Escaped(&conclusion);
    // The policy makes the browser refuse scripts and remote content; the empty icon prevents a
    // request for one.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; \
         style-src &#39;unsafe-inline&#39;; img-src data:\"/>\n\
         <link rel=\"icon\" href=\"data:,\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>{title}</h1>\n<p class=\"verdict\">{conclusion}</p>\n</header>\n\
         {body}</main>\n</body>\n</html>\n"
    )
}

/// One part for each case; all but the first are collapsed.
fn folded(parts: Vec<(&CaseInfo, String)>) -> String {
    let parts = parts.into_iter().enumerate().map(|(index, (case, part))| {
        let open = if index == 0 { " open=\"open\"" } else { "" };
        let title = Escaped(&case.title);
        format!("<details{open}>\n<summary>{title}</summary>\n{part}</details>\n")
    });
    parts.collect()
}

/// Text that can be neither markup nor the end of an attribute.
#[derive(Clone, Copy, Debug)]
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => write!(f, "{character}")?,
                // HTML does not allow control characters even as entities, and characters that
                // change the direction of text would let a name rearrange the words around it.
                control if control.is_control() || changes_direction(control) => {
                    f.write_str("\u{fffd}")?;
                }
                harmless => write!(f, "{harmless}")?,
            }
        }
        Ok(())
    }
}

fn changes_direction(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
