//! A suite from TOML.

use gpreempt_fields::{Fields, ReadError, quoted, with_root};

use super::{Case, Criterion, Suite, case, criterion, numbers};

pub(super) const KEYS: &[&str] = &[
    "name",
    "title",
    "repetitions",
    "repetitions_short",
    "emulated_modes",
    "nvidia_modes",
    "nvidia_modes_short",
    "case",
    "check",
];

pub(super) const CASES_MAX: usize = 256;
pub(super) const CRITERIA_MAX: usize = 256;
pub(super) const NAMES_MAX: usize = 256;
const REPETITIONS_MAX: u32 = 1_000;

/// Reads a suite. `file` is what errors call it.
///
/// # Errors
/// The first thing that is wrong with the text.
pub fn read_suite(file: &str, text: &str) -> Result<Suite, ReadError> {
    with_root(file, text, KEYS, |fields| suite(fields, text))
}

fn suite(fields: &Fields<'_>, text: &str) -> Result<Suite, ReadError> {
    let tables = fields.tables("case", CASES_MAX, case::KEYS)?;
    if tables.is_empty() {
        return Err(fields.missing("case", "at least one `[[case]]`"));
    }
    let mut cases: Vec<Case> = Vec::new();
    for table in &tables {
        let case = Case::read(table)?;
        if cases.iter().any(|other| other.name == case.name) {
            let message = format!("{} is already the name of a case", quoted(&case.name));
            return Err(table.error_at("name", message));
        }
        cases.push(case);
    }
    let mut criteria = Vec::new();
    for table in fields.tables("check", CRITERIA_MAX, criterion::KEYS)? {
        let criterion = Criterion::read(&table)?;
        let unknown = criterion.cases.iter().find(|name| cases.iter().all(|c| c.name != **name));
        if let Some(name) = unknown {
            return Err(table.error_at("cases", format!("no case is called {}", quoted(name))));
        }
        if let Some((key, problem)) = numbers::problem(&criterion, &cases) {
            return Err(table.error_at(key, problem));
        }
        criteria.push(criterion);
    }
    Ok(Suite {
        name: folder_name(fields)?,
        title: fields.name("title")?,
        text: text.to_owned(),
        digest: digest(text),
        repetitions: fields.u32("repetitions", 1..=REPETITIONS_MAX, 5)?,
        repetitions_short: fields.u32("repetitions_short", 1..=REPETITIONS_MAX, 3)?,
        emulated_modes: names(fields, "emulated_modes")?,
        nvidia_modes: names(fields, "nvidia_modes")?,
        nvidia_modes_short: names(fields, "nvidia_modes_short")?,
        cases,
        criteria,
    })
}

/// The suite's name, which is also part of a folder's.
fn folder_name(fields: &Fields<'_>) -> Result<String, ReadError> {
    let name = fields.name("name")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.starts_with('.') || !name.chars().all(is_plain) {
        let allowed = "letters, digits, `-`, `_` and `.`, and not begin with `.`";
        let message =
            format!("is {}; must be of {allowed}: a folder is named after it", quoted(&name));
        return Err(fields.error_at("name", message));
    }
    Ok(name)
}

/// An array of names; empty if it is not there.
pub(super) fn names(fields: &Fields<'_>, key: &'static str) -> Result<Vec<String>, ReadError> {
    let Some(field) = fields.optional(key) else { return Ok(Vec::new()) };
    field.items("names", NAMES_MAX)?.iter().map(gpreempt_fields::Field::name).collect()
}

/// FNV-1a: enough to notice that a text is another one.
fn digest(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}
