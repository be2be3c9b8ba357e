//! Configuration in the documents: blocks of TOML are read by the programs, and settings in the
//! text are keys that docs/reference/configuration.md lists. A test of the daemon compares that
//! page with the code.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::Problems;
use super::page::{Block, Page};
use crate::process::capture;

/// The page with every key of the daemon.
const MANUAL: &str = "docs/reference/configuration.md";

/// What reads a block, by a table in it.
const READERS: &[(&str, &[&str])] = &[
    ("[[kernel]]", &["gpreempt", "sim"]),
    ("[[case]]", &["gpreempt", "bench", "--dry-run"]),
    ("[scheduler]", &["gpreemptd", "--no-nvidia", "--no-amd", "--check", "--config"]),
    ("[scheduler.aging]", &["gpreemptd", "--no-nvidia", "--no-amd", "--check", "--config"]),
    ("[[rule]]", &["gpreemptd", "--no-nvidia", "--no-amd", "--check", "--config"]),
    ("[metrics]", &["gpreemptd", "--no-nvidia", "--no-amd", "--check", "--config"]),
    ("[daemon]", &["gpreemptd", "--no-nvidia", "--no-amd", "--check", "--config"]),
];

/// Tables of formats that no program here reads by itself: of cargo, and of device models, which a
/// test of the simulator reads.
const OTHERS: &[&str] = &["[dependencies]", "base ="];

pub(super) fn check(pages: &[Page], programs: &Path) -> anyhow::Result<Problems> {
    let folder = gpreempt_stage::WorkFolder::new("configuration")?;
    let keys: BTreeSet<&str> = pages
        .iter()
        .filter(|page| page.path == MANUAL)
        .flat_map(|page| &page.spans)
        .map(|(_, span)| span.as_str())
        .collect();
    let mut problems = Problems::new();
    for page in pages {
        for block in page.blocks.iter().filter(|block| block.language == "toml") {
            problems.extend(check_block(page, block, folder.root(), programs)?);
        }
        let settings = page.spans.iter().filter(|_| super::is_followed(&page.path));
        for (line, span) in settings {
            if let Some(key) = key_of(span).filter(|key| !keys.contains(key)) {
                problems.push(format!("{}: {MANUAL} has no key {key}", page.at(*line)));
            }
        }
    }
    Ok(problems)
}

fn check_block(
    page: &Page,
    block: &Block,
    folder: &Path,
    programs: &Path,
) -> anyhow::Result<Option<String>> {
    let has = |start: &str| block.text.lines().any(|line| line.starts_with(start));
    if OTHERS.iter().any(|start| has(start)) {
        return Ok(None);
    }
    let at = page.at(block.line);
    let Some((_, words)) = READERS.iter().find(|(table, _)| has(table)) else {
        return Ok(Some(format!("{at}: it is not known which program reads this block")));
    };
    let file = folder.join("block.toml");
    std::fs::write(&file, &block.text)?;
    let mut command = Command::new(programs.join(words[0]));
    let result = capture(command.args(&words[1..]).arg(&file).current_dir(folder));
    Ok(result.err().map(|error| format!("{at}: {error}")))
}

/// The key of a setting such as `unmanaged = "ignore"`.
fn key_of(span: &str) -> Option<&str> {
    let (key, _) = span.split_once(" = ")?;
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    (!key.is_empty() && key.chars().all(is_part)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_from_other_code() {
        assert_eq!(key_of("unmanaged = \"ignore\""), Some("unmanaged"));
        assert_eq!(key_of("aging = { share_percent = 5 }"), Some("aging"));
        for other in ["PATH=x", "gpreempt ps", "T = R", "a.b = 1", "x == y"] {
            assert_eq!(key_of(other), None, "{other}");
        }
    }
}
