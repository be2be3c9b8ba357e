//! `gpreemptd --check`: a configuration in words, and what each process would get.
//!
//! Nothing is changed and no device is touched; the same functions decide here as in the service.

mod process;
mod settings;
mod survey;
mod warning;

use std::path::Path;

use serde::Serialize;

pub use process::{ProcessReport, Setting};
pub use survey::processes;

use crate::accounts::Accounts;
use crate::config::Config;
use crate::facts::ProcessFacts;
use crate::rule::{Action, Rule};

/// Longer lines are broken.
const COLUMNS: usize = 80;

/// A rule in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// Its place among the rules, counted from 1.
    pub number: usize,
    /// What the operator calls it.
    pub name: Option<String>,
    /// Where in the file it is.
    pub line: usize,
    /// When it applies.
    pub when: String,
    /// What happens then.
    pub then: String,
}

/// All there is to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The file, or a word for the defaults.
    pub file: String,
    /// The settings: one sentence each.
    pub settings: Vec<String>,
    /// The rules, in order.
    pub rules: Vec<RuleReport>,
    /// What is allowed but may not be meant: one sentence each.
    pub warnings: Vec<String>,
    /// What each process would get.
    pub processes: Vec<ProcessReport>,
}

impl Report {
    /// What a configuration means for a service that listens at `socket`, in general and for these
    /// processes.
    pub fn new(
        file: &str,
        config: &Config,
        socket: &Path,
        (accounts, processes): (&Accounts, &[ProcessFacts]),
    ) -> Self {
        let judged = |facts: &ProcessFacts| {
            ProcessReport::new(facts, accounts, &config.judge(facts, accounts))
        };
        Self {
            file: file.to_owned(),
            settings: settings::sentences(config, socket),
            rules: config.rules.iter().map(RuleReport::new).collect(),
            warnings: warning::all(config, accounts),
            processes: processes.iter().map(judged).collect(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}: no mistakes.\n\n", printable(&self.file));
        for sentence in &self.settings {
            push_line(&mut text, "", sentence);
        }
        if !self.rules.is_empty() {
            text.push_str("\nRules; the first that matches a process counts:\n");
        }
        for rule in &self.rules {
            let name = rule.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
            let RuleReport { number, line, when, then, .. } = rule;
            push_line(&mut text, "  ", &format!("{number}{name} (line {line}): if {when}: {then}"));
        }
        if !self.warnings.is_empty() {
            text.push_str("\nWarnings:\n");
        }
        for warning in &self.warnings {
            push_line(&mut text, "  ", warning);
        }
        if !self.processes.is_empty() {
            text.push_str("\nProcesses:\n");
        }
        for process in &self.processes {
            push_line(&mut text, "  ", &process.line());
            for note in &process.notes {
                push_line(&mut text, "      ", note);
            }
        }
        text
    }

    /// For programs.
    ///
    /// # Errors
    /// Never in practice: nothing in a report is unfit for JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

impl RuleReport {
    fn new(rule: &Rule) -> Self {
        let mut parts = Vec::new();
        match rule.action {
            Action::Ignore => parts.push("left alone".to_owned()),
            Action::Give(wish) => {
                parts.extend(wish.priority.map(|priority| format!("priority {priority}")));
                parts.extend(wish.weight.map(|weight| format!("weight {weight}")));
                parts.extend(wish.deadline.map(|deadline| format!("deadline {deadline}")));
                if !rule.trust_env {
                    parts.push("its environment is not listened to".to_owned());
                }
            }
        }
        Self {
            number: rule.label.number,
            name: rule.label.name.clone(),
            line: rule.label.line,
            when: rule.conditions_text(),
            then: parts.join(", "),
        }
    }
}

/// Adds a line, or as many as it takes on a terminal.
fn push_line(text: &mut String, indent: &str, line: &str) {
    let mut columns = indent.chars().count();
    text.push_str(indent);
    for (index, word) in printable(line).split(' ').enumerate() {
        let length = word.chars().count();
        if index > 0 && columns + 1 + length > COLUMNS {
            text.push('\n');
            text.push_str(indent);
            text.push_str("  ");
            columns = indent.chars().count() + 2;
        } else if index > 0 {
            text.push(' ');
            columns += 1;
        }
        text.push_str(word);
        columns += length;
    }
    text.push('\n');
}

/// The text with everything escaped that could end a line or drive a terminal: processes choose
/// their own names.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for symbol in text.chars() {
        if symbol.is_control() || matches!(symbol, '\u{2028}' | '\u{2029}') {
            shown.extend(symbol.escape_default());
        } else {
            shown.push(symbol);
        }
    }
    shown
}

#[cfg(test)]
mod tests;
