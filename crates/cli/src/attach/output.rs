//! The output of a running attach: sentences for people, lines of JSON for programs.

use std::cell::Cell;
use std::collections::BTreeMap;

use gpreempt_core::priority::Priority;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::event::Event;
use gpreempt_wire::process::Process;
use gpreempt_wire::statistics::{HoldSnapshot, QueueSnapshot, TaskSnapshot};
use serde_json::{Value, json};

use crate::effect::Effect;
use crate::failure::Failure;
use crate::output;

/// How many different problems are printed.
const PROBLEMS_MAX: usize = 100;

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// Sentences.
    Text,
    /// Lines of JSON.
    Json,
    /// Problems only: the output belongs to the program that was started.
    ProblemsOnly,
}

/// Prints what happens, and remembers which problems were printed.
pub(crate) struct AttachOutput {
    format: OutputFormat,
    problems: Vec<String>,
    /// Lines that were omitted because the reader had no room.
    left_out: Cell<u64>,
}

impl AttachOutput {
    pub(crate) fn new(format: OutputFormat) -> Self {
        Self { format, problems: Vec::new(), left_out: Cell::new(0) }
    }

    /// A process has its priority. On AMD its contexts are listed later, so they are not counted.
    pub(super) fn attached(
        &self,
        pid: u32,
        task: Option<&TaskSnapshot>,
        priority: Priority,
    ) -> Result<(), Failure> {
        let name = task.map(|task| task.name.clone()).or_else(|| name_of(pid)).unwrap_or_default();
        let is_listed_later = task.is_some_and(|task| task.way.is_some());
        let contexts = task.map_or(0, |task| task.queues.len());
        let contexts = (!is_listed_later).then_some(contexts);
        let line = json!({ "line": "attached", "pid": pid, "name": name,
                           "priority": priority.level(), "contexts": contexts });
        let later = if contexts == Some(0) { "; it has no GPU context yet" } else { "" };
        self.print(line, || format!("attached {pid} ({name}) with priority {priority}{later}"))
    }

    /// What the priority does to other processes.
    pub(super) fn effect(&self, effect: &Effect) -> Result<(), Failure> {
        let mut line = serde_json::to_value(effect).map_err(Failure::run)?;
        line["line"] = "effect".into();
        self.print(line, || effect.effect.clone())
    }

    pub(super) fn appeared(&self, pid: u32, name: &str) -> Result<(), Failure> {
        let line = json!({ "line": "appeared", "pid": pid, "name": name });
        self.print(line, || format!("{pid} ({name}) began to use a GPU and is not attached"))
    }

    pub(super) fn ended(&self, task: u64) -> Result<(), Failure> {
        let line = json!({ "line": "ended", "task": task });
        self.print(line, || "an attached process ended".to_owned())
    }

    pub(super) fn regrouped(
        &self,
        task: u64,
        appeared: usize,
        vanished: usize,
    ) -> Result<(), Failure> {
        let line = json!({ "line": "regrouped", "task": task,
                           "appeared": appeared, "vanished": vanished });
        self.print(line, || {
            format!("an attached process has {appeared} new contexts and lost {vanished}")
        })
    }

    pub(super) fn decision(&self, event: &Event) -> Result<(), Failure> {
        if self.format != OutputFormat::Json {
            return Ok(());
        }
        let line = json!({ "line": "decision", "at_ns": event.at_ns,
                           "pid": event.process.map(Process::pid),
                           "reason": event.reason.as_str() });
        self.print(line, String::new)
    }

    /// Another command changed a priority.
    pub(super) fn set(&self, pid: u32, priority: Priority) -> Result<(), Failure> {
        let request = json!({ "set": { "pid": pid, "priority": priority.level() } });
        let line = json!({ "line": "request", "request": request });
        self.print(line, || format!("{pid} has priority {priority} now"))
    }

    /// Another command detached a process.
    pub(super) fn detached(&self, pid: u32) -> Result<(), Failure> {
        let line = json!({ "line": "request", "request": { "detach": { "pid": pid } } });
        self.print(line, || format!("{pid} was detached"))
    }

    /// How often the GPU was held for a process.
    pub(super) fn held(&self, pid: u32, hold: &HoldSnapshot) -> Result<(), Failure> {
        let HoldSnapshot { placed, expired, longest_us, quiet_us, .. } = hold;
        let HoldSnapshot { late_looks, blind_us, fenced, predicted_percent, .. } = hold;
        let line = json!({ "line": "holds", "pid": pid, "placed": placed, "expired": expired,
                           "longest_us": longest_us, "quiet_us": quiet_us,
                           "late_looks": late_looks, "blind_us": blind_us, "fenced": fenced,
                           "predicted_percent": predicted_percent });
        self.print(line, || {
            format!("the GPU was held for {pid} {placed} times, the longest time {longest_us} us")
        })
    }

    /// How much slower a process was because it had to wait for the GPU, and its budget.
    pub(super) fn slowdown(
        &self,
        (pid, budget): (u32, Option<u16>),
        queue: &QueueSnapshot,
    ) -> Result<(), Failure> {
        let QueueSnapshot { busy_us, off_us, lost_us, shared_us, .. } = queue;
        let line = json!({ "line": "slowdown", "pid": pid, "budget_percent": budget,
                           "busy_us": busy_us, "off_us": off_us, "lost_us": lost_us,
                           "shared_us": shared_us });
        self.print(line, || {
            let percent = lost_us * 100 / busy_us.saturating_sub(*lost_us).max(1);
            let of =
                budget.map_or_else(String::new, |budget| format!(" (its budget is {budget} %)"));
            format!("{pid} was {percent} % slower than alone, as far as the GPU was busy{of}")
        })
    }

    pub(super) fn over(&self) -> Result<(), Failure> {
        self.print(json!({ "line": "over" }), || "all GPU settings are restored".to_owned())
    }

    /// Prints each problem once, and a limited number of them.
    pub(crate) fn problem(&mut self, problem: &str) -> Result<(), Failure> {
        if self.problems.len() >= PROBLEMS_MAX || self.problems.iter().any(|known| known == problem)
        {
            return Ok(());
        }
        self.problems.push(problem.to_owned());
        if self.format == OutputFormat::Json {
            return self.print(json!({ "line": "problem", "problem": problem }), String::new);
        }
        output::note(problem);
        Ok(())
    }

    /// Prints a line, or omits it if its reader has no room: signals and the end of the time must
    /// not wait for a reader.
    fn print(&self, line: Value, sentence: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.format == OutputFormat::ProblemsOnly {
            return Ok(());
        }
        if !output::is_writable() {
            self.left_out.set(self.left_out.get() + 1);
            return Ok(());
        }
        let left_out = self.left_out.take();
        if left_out > 0 {
            let gap = json!({ "line": "left_out", "lines": left_out });
            self.write(gap, || {
                format!("{left_out} lines were omitted because they were not read")
            })?;
        }
        self.write(line, sentence)
    }

    fn write(&self, mut line: Value, sentence: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.format == OutputFormat::Text {
            return output::print(&format!("{}\n", sentence()));
        }
        line["time_ns"] = monotonic_ns().into();
        output::print(&format!("{line}\n"))
    }
}

fn name_of(pid: u32) -> Option<String> {
    ProcessInfo::read(pid).ok().map(|info| info.name)
}

/// Contexts that appeared and vanished, for each process, until they are printed.
#[derive(Debug, Default)]
pub(super) struct ContextChanges(BTreeMap<u32, (usize, usize)>);

impl ContextChanges {
    pub(super) fn appeared(&mut self, pid: u32) {
        self.0.entry(pid).or_default().0 += 1;
    }

    pub(super) fn vanished(&mut self, pid: u32) {
        self.0.entry(pid).or_default().1 += 1;
    }

    /// Removes a process that has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// The changes since the last call.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u32, usize, usize)> + use<> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(pid, (appeared, vanished))| (pid, appeared, vanished))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_together_and_returned_once() {
        let mut changes = ContextChanges::default();
        changes.appeared(7);
        changes.appeared(7);
        changes.vanished(7);
        changes.vanished(8);
        changes.forget(8);
        assert_eq!(changes.take().collect::<Vec<_>>(), [(7, 2, 1)]);
        assert_eq!(changes.take().count(), 0);
    }
}
