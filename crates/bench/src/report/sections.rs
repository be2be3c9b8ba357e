//! The sections of the page that are lists and sentences: conclusion, checks, failures, origin and
//! glossary.

use std::collections::BTreeSet;

use super::tables::{COLUMNS, DISTURBED, DISTURBED_MEANING};
use super::{Escaped, number};
use crate::results::{Check, Measurement, Results, Status};

/// The result in a few sentences.
pub(super) fn conclusion(results: &Results) -> String {
    let mut parts: Vec<String> = results.conclusion.iter().cloned().collect();
    parts.push(extent(results));
    parts.extend(criteria(results));
    parts.extend(failed_modes(results));
    if results.finished.is_none() {
        parts.push("The run was interrupted; this page shows what it measured.".to_owned());
    }
    parts.join(" ")
}

fn extent(results: &Results) -> String {
    let cases = counted(results.cases.len(), "case");
    let modes = counted(results.modes.len(), "mode");
    let repetitions = match results.repetitions {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    };
    // The section about the origin has the rest of a device's description.
    let devices = results.environment.devices.iter();
    let names = devices.map(|device| device.split(" (").next().unwrap_or(device));
    let devices = names.collect::<Vec<_>>().join(" and ");
    let place = if devices.is_empty() { results.backend.as_str() } else { devices.as_str() };
    let kind = if results.backend == "emulated" { " (emulated)" } else { "" };
    format!("{cases} in {modes}, each {repetitions}, on {place}{kind}.")
}

fn criteria(results: &Results) -> Option<String> {
    let (all, passed) = (results.checks.len(), results.checks.iter().filter(|c| c.passed).count());
    match (all, passed) {
        (0, _) => None,
        (1, 1) => Some("The check of the suite passes.".to_owned()),
        _ if all == passed => Some(format!("All {all} checks of the suite pass.")),
        _ => Some(format!("{} of {all} checks of the suite fail.", all - passed)),
    }
}

fn failed_modes(results: &Results) -> Option<String> {
    let failed = results.measurements.iter().filter(|each| match each.status {
        Status::Failed { .. } => true,
        Status::Ok | Status::Skipped { .. } => false,
    });
    let modes: BTreeSet<&str> = failed.map(|each| each.mode.as_str()).collect();
    let names = modes.into_iter().collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| format!("Measurements failed in: {names}."))
}

/// `1 case`, `2 cases`.
fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The criteria of the suite, failed ones first.
pub(super) fn checks(results: &Results) -> String {
    let (passed, failed): (Vec<_>, Vec<_>) = results.checks.iter().partition(|check| check.passed);
    let line = |check: &Check| {
        let (class, word) = if check.passed { ("good", "pass") } else { ("wrong", "FAIL") };
        let place = [&check.case, &check.mode].into_iter().flatten().cloned().collect::<Vec<_>>();
        let place =
            if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) };
        list_item(class, word, &check.name, &format!("{place}: {}", check.text))
    };
    list_section("Checks", failed.into_iter().chain(passed).map(line).collect())
}

/// A section with a list; nothing without lines.
fn list_section(title: &str, lines: String) -> String {
    if lines.is_empty() {
        return lines;
    }
    format!("<section>\n<h2>{title}</h2>\n<ul class=\"checks\">\n{lines}</ul>\n</section>\n")
}

fn list_item(class: &str, word: &str, name: &str, meaning: &str) -> String {
    format!(
        "<li><b class=\"{class}\">{word}</b> <span>{}<span class=\"meaning\">{}</span></span>\
         </li>\n",
        Escaped(name),
        Escaped(meaning)
    )
}

/// Failed measurements with the same reason in the same mode.
struct FailureGroup<'r> {
    mode: &'r str,
    status: &'r Status,
    /// The cases, each once, and the number of measurements.
    cases: Vec<&'r str>,
    count: usize,
}

impl<'r> FailureGroup<'r> {
    fn add(groups: &mut Vec<Self>, each: &'r Measurement) {
        let (mode, status, case) = (each.mode.as_str(), &each.status, each.case.as_str());
        let known = groups.iter_mut().find(|group| group.mode == mode && group.status == status);
        match known {
            Some(group) => {
                group.count += 1;
                if !group.cases.contains(&case) {
                    group.cases.push(case);
                }
            }
            None => groups.push(Self { mode, status, cases: vec![case], count: 1 }),
        }
    }

    fn line(&self) -> Option<String> {
        let (class, word, reason) = match self.status {
            Status::Ok => return None,
            Status::Failed { reason } => ("wrong", "failed", reason),
            Status::Skipped { reason } => ("meaning", "skipped", reason),
        };
        let count = counted(self.count, "measurement");
        let meaning = format!(", {count} in {}: {reason}", self.cases.join(", "));
        Some(list_item(class, word, self.mode, &meaning))
    }
}

/// Failed and skipped measurements with their reasons.
pub(super) fn failures(results: &Results) -> String {
    let mut groups = Vec::new();
    for each in results.measurements.iter().filter(|each| !each.is_ok()) {
        FailureGroup::add(&mut groups, each);
    }
    list_section("Failed measurements", groups.iter().filter_map(FailureGroup::line).collect())
}

/// The machine, the command and the suite.
pub(super) fn origin(results: &Results, raw: Option<&str>) -> String {
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
    let rows = rows.iter().map(|(name, value)| {
        let (name, value) = (Escaped(name), Escaped(value));
        format!("<tr>\n<th scope=\"row\">{name}</th>\n<td>{value}</td>\n</tr>\n")
    });
    let rows = rows.collect::<String>();
    let link = raw.map_or_else(String::new, |raw| {
        let (address, raw) = (address(raw), Escaped(raw));
        format!("<p class=\"note\">All numbers: <a href=\"./{address}\">{raw}</a></p>\n")
    });
    let text = results.suite.text.as_deref().map_or_else(String::new, |text| {
        let head = "<summary>The text of the suite</summary>";
        format!("<details>\n{head}\n<pre><code>{}</code></pre>\n</details>\n", Escaped(text))
    });
    format!(
        "<section>\n<h2>Where the numbers come from</h2>\n\
         <table class=\"environment\">\n<tbody>\n{rows}</tbody>\n</table>\n\
         <p class=\"note\">The command that reproduces them:</p>\n\
         <pre><code>{}</code></pre>\n{link}{text}</section>\n",
        Escaped(&results.command)
    )
}

/// A file name as a relative URL: all but harmless characters are percent-encoded.
fn address(name: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let part = |byte: u8| {
        if safe(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    name.bytes().map(part).collect()
}

/// What the columns of the summary and the intervals mean.
pub(super) fn glossary(results: &Results) -> String {
    let entry = |name: &str, meaning: &str| format!("<dt>{name}</dt>\n<dd>{meaning}</dd>\n");
    let mut entries =
        COLUMNS.iter().map(|(name, meaning)| entry(name, meaning)).collect::<String>();
    let estimates = results.summary.iter().flat_map(|row| {
        [row.p50_ns, row.p99_ns, row.p50_ratio, row.p99_ratio, row.be_kept].into_iter().flatten()
    });
    let least = estimates.map(|estimate| estimate.confidence).min_by(f64::total_cmp);
    if let Some(least) = least.filter(|least| *least > 0.0) {
        let meaning = format!(
            "The median over the repetitions is between these two values with a probability of {} \
             or more.",
            number::percent(Some(least))
        );
        entries += &entry("interval", &meaning);
    }
    if results.summary.iter().any(|row| row.disturbed) {
        entries += &entry(DISTURBED, DISTURBED_MEANING);
    }
    format!("<section>\n<h2>What the columns mean</h2>\n<dl>\n{entries}</dl>\n</section>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_files_in_the_same_folder() {
        assert_eq!(address("result.json"), "result.json");
        assert_eq!(address("a b\"é/.."), "a%20b%22%C3%A9%2F..");
        assert_eq!(address("javascript:x"), "javascript%3Ax");
    }
}
