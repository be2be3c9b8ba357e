//! The manual says what the program does: every key, no other, and examples that work.

use std::collections::BTreeSet;

use gpreempt_daemon::config::{Config, keys};

const MANUAL: &str = include_str!("../../../docs/reference/configuration.md");

/// The part of the manual below a heading.
fn section(heading: &str) -> &str {
    let start = MANUAL.find(heading).expect("a section of that name");
    let rest = &MANUAL[start + heading.len()..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

/// The first cells of the table that begins with this head.
fn first_cells(section: &str) -> BTreeSet<&str> {
    let head = "| key | type | allowed | default | meaning |\n|---|---|---|---|---|\n";
    let start = section.find(head).expect("a table of keys") + head.len();
    let rows = section[start..].lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).expect("a key in backquotes")).collect()
}

#[test]
fn every_key_is_in_the_manual_and_no_other() {
    for (table, keys) in keys() {
        let heading = match table {
            "rule" => "\n## `[[rule]]`\n".to_owned(),
            _ => format!("\n## `[{table}]`\n"),
        };
        let known: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(first_cells(section(&heading)), known, "{table}");
    }
}

#[test]
fn the_examples_in_the_manual_work() {
    let blocks: Vec<&str> = MANUAL.split("\n```toml\n").skip(1).collect();
    assert!(blocks.len() >= 4, "{} examples", blocks.len());
    for block in blocks {
        let text = &block[..block.find("```").expect("an end")];
        let config = Config::parse("example", text).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(config, Config::default(), "{text}");
    }
}

#[test]
fn the_defaults_in_the_manual_are_true() {
    // Each row's default, written into a file, must change nothing.
    for table in ["scheduler", "metrics", "daemon"] {
        for row in section(&format!("\n## `[{table}]`\n")).lines() {
            let cells: Vec<&str> = row.split(" | ").collect();
            let [key, kind, _, default, _] = cells[..] else { continue };
            let key = key.trim_start_matches("| ").trim_matches('`');
            let value = default.trim_matches('`');
            let value = match (kind, value) {
                ("type", _) | (_, "off" | "none") => continue,
                ("string", value) => format!("\"{value}\""),
                (_, value) => value.to_owned(),
            };
            let text = format!("[{table}]\n{key} = {value}\n");
            assert_eq!(Config::parse("f", &text), Ok(Config::default()), "{text}");
        }
    }
}
