//! `gpreemptd --check`: the configuration in sentences, and what each process would get.
//!
//! It changes nothing and touches no device; the same functions decide here as in the service.

mod explain;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

use gpreempt_device::device_users::{DeviceUse, DeviceUsers};
use gpreempt_device::process::{ProcessInfo, all_pids};
use gpreempt_device::registry::Selection;
use serde::Serialize;

use crate::accounts::Accounts;
use crate::assignment::{Assignment, Outcome, SettingSource, Sourced};
use crate::config::{Config, Unmanaged};
use crate::process_attributes::{Gpu, ProcessAttributes};
use crate::rule::{Action, Rule};
use crate::service::exemption_of;

/// Longer lines are broken.
const COLUMNS: usize = 80;
/// Digits of a container's id that are shown.
const ID_SHOWN: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// Its position, from 1.
    pub number: usize,
    pub name: Option<String>,
    pub line: usize,
    pub when: String,
    pub then: String,
}

/// An attribute and its source, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub value: u64,
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    pub pid: u32,
    pub name: String,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub container: Option<String>,
    pub pod: Option<String>,
    pub slurm_job: Option<u32>,
    pub scheduled: bool,
    pub priority: Option<Setting>,
    pub weight: Option<Setting>,
    pub deadline_us: Option<Setting>,
    pub latency_budget_percent: Option<Setting>,
    /// The attributes in one sentence.
    #[serde(rename = "verdict")]
    pub summary: String,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub file: String,
    pub settings: Vec<String>,
    pub rules: Vec<RuleReport>,
    /// Valid settings that may be mistakes.
    pub warnings: Vec<String>,
    pub processes: Vec<ProcessReport>,
}

impl Report {
    /// Explains a configuration for a service that listens at `socket`, and what these processes
    /// would get.
    pub fn new(
        file: &str,
        config: &Config,
        socket: &Path,
        (accounts, processes): (&Accounts, &[ProcessAttributes]),
    ) -> Self {
        let assigned = |attributes: &ProcessAttributes| {
            let assignment = config.assign(attributes, accounts);
            let mut report = ProcessReport::new(attributes, accounts, &assignment);
            report.summary.push_str(&of_normal(attributes, &assignment));
            report
        };
        Self {
            file: file.to_owned(),
            settings: explain::settings(config, socket),
            rules: config.rules.iter().map(RuleReport::new).collect(),
            warnings: explain::warnings(config, accounts),
            processes: processes.iter().map(assigned).collect(),
        }
    }

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
            Action::Ignore => parts.push("not scheduled".to_owned()),
            Action::Give(settings) => {
                parts.extend(settings.priority.map(|priority| format!("priority {priority}")));
                parts.extend(settings.weight.map(|weight| format!("weight {weight}")));
                parts.extend(settings.deadline.map(|deadline| format!("deadline {deadline}")));
                parts.extend(
                    settings.latency_budget.map(|budget| format!("latency budget {budget}")),
                );
                parts.extend(rule.unmanaged.map(|unmanaged| match unmanaged {
                    Unmanaged::Yield => "normal where nothing else names it".to_owned(),
                    Unmanaged::Ignore => "not scheduled where nothing else names it".to_owned(),
                }));
                if !rule.trust_env {
                    parts.push("its environment is ignored".to_owned());
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

impl ProcessReport {
    fn new(attributes: &ProcessAttributes, accounts: &Accounts, assignment: &Assignment) -> Self {
        let placement = attributes.cgroup.as_ref().map(|cgroup| cgroup.placement.clone());
        let placement = placement.unwrap_or_default();
        let (priority, weight, deadline_us, latency_budget_percent) = match &assignment.outcome {
            Outcome::Scheduled { priority, weight, deadline, latency_budget } => (
                Some(setting(priority, |priority| u64::from(priority.level()))),
                Some(setting(weight, |weight| u64::from(*weight))),
                deadline.as_ref().map(|given| setting(given, |deadline| deadline.as_micros())),
                latency_budget
                    .as_ref()
                    .map(|given| setting(given, |budget| u64::from(budget.percent()))),
            ),
            Outcome::Ignored(_) | Outcome::Unknown => (None, None, None, None),
        };
        Self {
            pid: attributes.key.pid,
            name: attributes.name.clone(),
            uid: attributes.uid,
            user: attributes.uid.and_then(|uid| accounts.name(uid)).map(str::to_owned),
            container: placement.container,
            pod: placement.pod,
            slurm_job: placement.slurm_job,
            scheduled: priority.is_some(),
            priority,
            weight,
            deadline_us,
            latency_budget_percent,
            summary: assignment.to_string(),
            notes: assignment.notes.clone(),
        }
    }

    fn line(&self) -> String {
        let mut about = Vec::new();
        about.extend(self.user.clone().or_else(|| Some(format!("uid {}", self.uid?))));
        about.extend(self.container.as_ref().map(|id| format!("container {}", short(id))));
        about.extend(self.pod.as_ref().map(|id| format!("pod {}", short(id))));
        about.extend(self.slurm_job.map(|job| format!("Slurm job {job}")));
        let about = if about.is_empty() { "unknown user".to_owned() } else { about.join(", ") };
        format!("{} {} ({about}): {}", self.pid, self.name, self.summary)
    }
}

/// What happens to a process that is normal.
fn of_normal(attributes: &ProcessAttributes, assignment: &Assignment) -> String {
    if (&assignment.outcome, assignment.unmanaged) != (&Outcome::Unknown, Unmanaged::Yield) {
        return String::new();
    }
    let gpus = attributes.gpus.iter().filter_map(|gpu| gpu.uuid.clone()).collect();
    match exemption_of(attributes.key, &gpus) {
        Some(exemption) => format!(": never preempted ({exemption})"),
        None => ": preempted while a process with priority 8 to 15 is active on its GPU".to_owned(),
    }
}

fn setting<T>(given: &Sourced<T>, number: impl FnOnce(&T) -> u64) -> Setting {
    Setting { value: number(&given.value), source: given.source.to_string() }
}

fn short(id: &str) -> &str {
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { &id[..ID_SHOWN] } else { id }
}

/// The processes that the daemon would adopt, because they use a selected device, and those that a
/// rule or their environment names. Adds the places that could not be read to `problems`.
///
/// # Errors
/// If /proc cannot be read.
pub fn processes(
    config: &Config,
    accounts: &Accounts,
    selection: &Selection,
    problems: &mut Vec<String>,
) -> io::Result<Vec<ProcessAttributes>> {
    let names = config.environment_names();
    let mut on_devices = DeviceUsers::find(selection);
    problems.append(&mut on_devices.problems);
    let mut found = Vec::new();
    for pid in all_pids()? {
        // A process may end meanwhile.
        let Ok(info) = ProcessInfo::read(pid) else { continue };
        let DeviceUse { uuids, is_adoptable } =
            on_devices.users.remove(&info.key).unwrap_or_default();
        // The other names of a GPU have to be read from the machine.
        let gpus = if uuids.is_empty() { Vec::new() } else { Gpu::named(uuids) };
        let Ok(attributes) = ProcessAttributes::read(info.key, gpus, &names) else { continue };
        if is_adoptable || is_named(&config.assign(&attributes, accounts)) {
            found.push(attributes);
        }
    }
    Ok(found)
}

/// Whether a rule or the environment has a setting for the process.
fn is_named(assignment: &Assignment) -> bool {
    use SettingSource::{Environment, Rule};
    let is_named = |source: &SettingSource| matches!(source, Rule(_) | Environment);
    match &assignment.outcome {
        Outcome::Ignored(_) => true,
        Outcome::Unknown => false,
        Outcome::Scheduled { priority, weight, deadline, latency_budget } => {
            is_named(&priority.source)
                || is_named(&weight.source)
                || deadline.as_ref().is_some_and(|given| is_named(&given.source))
                || latency_budget.as_ref().is_some_and(|given| is_named(&given.source))
                || assignment.memory.as_ref().is_some_and(|given| is_named(&given.source))
                || assignment.evictable.as_ref().is_some_and(|given| is_named(&given.source))
        }
    }
}

/// Adds a line, broken at [`COLUMNS`].
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

/// Escapes characters that could end a line or control a terminal: processes choose their names.
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
