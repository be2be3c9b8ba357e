//! Where the numbers come from, and where all of them are.

use super::super::html::Escaped;
use super::super::table;
use crate::results::Results;

/// The whole section.
pub(super) fn section(results: &Results, raw: &str) -> String {
    let link = format!(
        "<p class=\"note\">All numbers: <a href=\"./{}\">{}</a></p>\n",
        address(raw),
        Escaped(raw)
    );
    let text = results.suite.text.as_deref().map_or_else(String::new, |text| {
        let head = "<summary>The text of the suite</summary>";
        format!("<details>\n{head}\n<pre><code>{}</code></pre>\n</details>\n", Escaped(text))
    });
    table::environment(&rows(results), &results.command, &(link + &text))
}

fn rows(results: &Results) -> Vec<(String, String)> {
    let environment = &results.environment;
    let form = if results.short { "short" } else { "whole" };
    let unknown = || "unknown".to_owned();
    let mut rows = vec![
        ("Suite", format!("{} ({form} form)", results.suite.name)),
        ("Backend", results.backend.clone()),
        ("Devices", environment.devices.join(", ")),
        ("Driver", environment.driver.clone().unwrap_or_else(|| "none".to_owned())),
        ("Kernel", environment.kernel.clone()),
        ("Processor", format!("{} ({} threads)", environment.processor, environment.cores)),
        ("Repetitions", results.repetitions.to_string()),
        ("Commit", results.commit.clone().unwrap_or_else(unknown)),
        ("Started", results.started.clone()),
        ("Finished", results.finished.clone().unwrap_or_else(|| "interrupted".to_owned())),
    ];
    let versions = environment.versions.iter();
    rows.extend(versions.map(|each| (each.program.as_str(), each.version.clone())));
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A file name as part of an address: whatever could mean something else is written as a number.
fn address(name: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let part = |byte: u8| {
        if safe(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    name.bytes().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_files_beside() {
        assert_eq!(address("result.json"), "result.json");
        assert_eq!(address("a b\"é/.."), "a%20b%22%C3%A9%2F..");
        assert_eq!(address("javascript:x"), "javascript%3Ax");
    }
}
