//! Whatever a file contains and whatever a process is, there is an answer and never a panic.

use gpreempt_daemon::accounts::Accounts;
use gpreempt_daemon::cgroup::Cgroup;
use gpreempt_daemon::check::Report;
use gpreempt_daemon::config::Config;
use gpreempt_daemon::fields::{ReadError, decode_utf8};
use gpreempt_daemon::process_attributes::{Environment, Gpu, ProcessAttributes};
use gpreempt_device::process::ProcessKey;
use proptest::prelude::*;

const DEFAULT: &str = include_str!("../../../deploy/config.toml");
const RULES: &str = r#"
[scheduler]
policy = "edf"
aging = { after_ms = 100, grant_ms = 5 }
default_priority = 4
[metrics]
listen = "127.0.0.1:9464"
[[rule]]
name = "serving"
user = "alice"
executable = "/usr/bin/python3*"
priority = 12
[[rule]]
command = "a*b?c"
cgroup = "/kubepods*"
container = "3f2a"
env = ["ROLE=serve*", "TIER=prod"]
gpu = "GPU-7f"
weight = 3
deadline_us = 500
trust_env = false
[[rule]]
gpu = 0
ignore = true
"#;

/// What a mutation writes over something: things that are special somewhere in the format.
const PIECES: [&str; 26] = [
    "0",
    "-1",
    "1e9",
    "9223372036854775808",
    "\"\"",
    "\"\u{2028}\"",
    "\"*\"",
    "\"A=\"",
    "\"=\"",
    "\"é\"",
    "[]",
    "{}",
    "[[",
    "]]",
    "\n",
    "\n\n[[rule]]\n",
    "[scheduler.aging]\n",
    "[daemon]\n",
    "share_percent = 7\n",
    "priority = 3\n",
    "true",
    "#",
    "\"\"\"",
    "\r",
    "\u{feff}",
    "1979-05-27",
];

/// One edit: at a place (in thousandths of the text), so many bytes out, a piece in.
type Edit = (usize, usize, usize);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec((0..1_000_usize, 0..20_usize, 0..PIECES.len() + 1), 1..6)
}

/// The text after the edits; cut at the boundaries of characters.
fn edited(text: &str, edits: &[Edit]) -> String {
    let mut text = text.to_owned();
    for (place, removed, piece) in edits {
        let start = text.floor_char_boundary(text.len() * place / 1_000);
        let end = text.ceil_char_boundary((start + removed).min(text.len()));
        // The last number is no piece at all: a plain removal.
        text.replace_range(start..end, PIECES.get(*piece).unwrap_or(&""));
    }
    text
}

/// An error must be one line, of a line that the file has, about a field.
fn check_error(text: &[u8], error: &ReadError) -> Result<(), TestCaseError> {
    let ends = text.iter().filter(|byte| **byte == b'\n').count();
    let lines = ends + usize::from(!text.ends_with(b"\n"));
    prop_assert!((1..=lines).contains(&error.line), "{error} in a file of {lines} lines");
    prop_assert!(!error.field.is_empty(), "{error}");
    let shown = error.to_string();
    prop_assert!(!shown.contains(['\n', '\r', '\u{2028}']), "{shown:?}");
    prop_assert!(shown.len() < 2_000, "{shown}");
    Ok(())
}

/// What was accepted must hold together, and must assign attributes to any process.
fn check_config(config: &Config, attributes: &ProcessAttributes) -> Result<(), TestCaseError> {
    prop_assert_eq!(config.scheduler.core.check(), Ok(()));
    for (index, rule) in config.rules.iter().enumerate() {
        prop_assert_eq!(rule.label.number, index + 1);
        prop_assert!(!rule.conditions.is_empty());
    }
    let is_local = config.metrics.listen.is_none_or(|address| address.ip().is_loopback());
    prop_assert!(is_local || config.metrics.allow_remote);
    let accounts = Accounts::parse(b"alice:x:1000:1000:::\n", b"");
    let assignment = config.assign(attributes, &accounts);
    prop_assert!(assignment.attr().is_none_or(|attr| attr.weight > 0));
    // An administrator writes default and rules; an environment alone never raises above 7.
    let matched = config.rules.iter().any(|rule| rule.matches(attributes, &accounts));
    if attributes.uid != Some(0) && !matched && config.scheduler.default_priority.is_none() {
        prop_assert!(assignment.attr().is_none_or(|attr| attr.priority.level() <= 7));
    }
    let text = Report::new(
        "f",
        config,
        &config.service.socket,
        (&accounts, std::slice::from_ref(attributes)),
    )
    .text();
    prop_assert!(!text.contains(['\r', '\u{1b}', '\u{2028}']), "{text:?}");
    Ok(())
}

prop_compose! {
    fn processes()(
        uid in prop::option::of(prop::sample::select(vec![0, 1000, u32::MAX])),
        name in any::<String>(),
        executable in prop::option::of(any::<String>()),
        command in prop::option::of("[abc*?]{0,20}|\\PC{0,50}"),
        value in prop::option::of("[0-9]{0,3}|\\PC{0,10}"),
        cgroup in prop::option::of("0::/kubepods[a-z0-9/-]{0,60}\n|\\PC{0,80}"),
        index in prop::option::of(0..3_u32),
    ) -> ProcessAttributes {
        let environment = value.map(|value| -> Environment {
            let names = ["GPREEMPT_PRIORITY", "GPREEMPT_WEIGHT", "ROLE"];
            names.iter().map(|name| (*name, value.as_str())).collect()
        });
        let cgroup = cgroup.map(|text| Cgroup::parse(text.as_bytes()));
        let gpus = vec![Gpu { index, uuid: Some("GPU-7f1c".to_owned()), pci: None }];
        let unknown = ProcessAttributes::unknown(ProcessKey { pid: 1, start_ticks: 1 });
        ProcessAttributes { uid, name, executable, command, environment, cgroup, gpus, ..unknown }
    }
}

fn check_text(text: &str, attributes: &ProcessAttributes) -> Result<(), TestCaseError> {
    match Config::parse("file.toml", text) {
        Ok(config) => check_config(&config, attributes),
        Err(error) => check_error(text.as_bytes(), &error),
    }
}

proptest! {
    #[test]
    fn any_text_is_read(text in any::<String>(), attributes in processes()) {
        check_text(&text, &attributes)?;
    }

    #[test]
    fn a_damaged_file_is_read(edits in edits(), rules: bool, attributes in processes()) {
        check_text(&edited(if rules { RULES } else { DEFAULT }, &edits), &attributes)?;
    }

    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>) {
        if let Err(error) = decode_utf8("file.toml", bytes.clone()) {
            check_error(&bytes, &error)?;
        }
    }

    #[test]
    fn matching_is_total(attributes in processes()) {
        check_text(RULES, &attributes)?;
        check_text(DEFAULT, &attributes)?;
    }
}
