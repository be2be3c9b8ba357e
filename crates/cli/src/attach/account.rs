//! What a running attach says: sentences for people, lines of JSON for programs.

use std::cell::Cell;
use std::io::Write;

use gpreempt_core::priority::Priority;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::event::Event;
use gpreempt_wire::process::Process;
use gpreempt_wire::state::{HoldSnapshot, TaskSnapshot};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;

/// How many different problems are said.
const PROBLEMS_MAX: usize = 100;

/// How it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// Sentences.
    Text,
    /// Lines of JSON.
    Json,
    /// Problems only: the output belongs to the program that was started.
    Quiet,
}

/// Where it is said, and what was said already.
pub(crate) struct Account {
    voice: Voice,
    problems: Vec<String>,
    /// Lines that the reader of the output had no room for.
    left_out: Cell<u64>,
}

impl Account {
    pub(crate) fn new(voice: Voice) -> Self {
        Self { voice, problems: Vec::new(), left_out: Cell::new(0) }
    }

    /// A process has its priority. On AMD its contexts are listed later, so none are counted.
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
        let later = if contexts == Some(0) { "; it has nothing on a GPU yet" } else { "" };
        self.say(line, || format!("attached {pid} ({name}) with priority {priority}{later}"))
    }

    pub(super) fn appeared(&self, pid: u32, name: &str) -> Result<(), Failure> {
        let line = json!({ "line": "appeared", "pid": pid, "name": name });
        self.say(line, || format!("{pid} ({name}) began to use a GPU; it is not attached"))
    }

    pub(super) fn ended(&self, task: u64) -> Result<(), Failure> {
        let line = json!({ "line": "ended", "task": task });
        self.say(line, || "an attached process ended".to_owned())
    }

    pub(super) fn regrouped(
        &self,
        task: u64,
        appeared: usize,
        vanished: usize,
    ) -> Result<(), Failure> {
        let line = json!({ "line": "regrouped", "task": task,
                           "appeared": appeared, "vanished": vanished });
        self.say(line, || {
            format!("an attached process has {appeared} new contexts and lost {vanished}")
        })
    }

    pub(super) fn decision(&self, event: &Event) -> Result<(), Failure> {
        if self.voice != Voice::Json {
            return Ok(());
        }
        let line = json!({ "line": "decision", "at_ns": event.at_ns,
                           "pid": event.process.map(Process::pid),
                           "reason": event.reason.as_str() });
        self.say(line, String::new)
    }

    /// Another command changed a priority.
    pub(super) fn set(&self, pid: u32, priority: Priority) -> Result<(), Failure> {
        let request = json!({ "set": { "pid": pid, "priority": priority.level() } });
        let line = json!({ "line": "request", "request": request });
        self.say(line, || format!("{pid} has priority {priority} now"))
    }

    /// Another command detached a process.
    pub(super) fn detached(&self, pid: u32) -> Result<(), Failure> {
        let line = json!({ "line": "request", "request": { "detach": { "pid": pid } } });
        self.say(line, || format!("{pid} was detached"))
    }

    /// How often the device was held for a process.
    pub(super) fn held(&self, pid: u32, hold: &HoldSnapshot) -> Result<(), Failure> {
        let HoldSnapshot { placed, expired, longest_us, quiet_us, late_looks, blind_us, .. } = hold;
        let line = json!({ "line": "holds", "pid": pid, "placed": placed, "expired": expired,
                           "longest_us": longest_us, "quiet_us": quiet_us,
                           "late_looks": late_looks, "blind_us": blind_us });
        self.say(line, || {
            format!("the GPU was held for {pid} {placed} times, for {longest_us} us at the most")
        })
    }

    pub(super) fn over(&self) -> Result<(), Failure> {
        self.say(json!({ "line": "over" }), || "everything is as it was".to_owned())
    }

    /// Problems are said once each, and not without end.
    pub(crate) fn problem(&mut self, problem: &str) -> Result<(), Failure> {
        if self.problems.len() >= PROBLEMS_MAX || self.problems.iter().any(|said| said == problem) {
            return Ok(());
        }
        self.problems.push(problem.to_owned());
        if self.voice == Voice::Json {
            return self.say(json!({ "line": "problem", "problem": problem }), String::new);
        }
        let _ = writeln!(std::io::stderr(), "gpreempt: {problem}");
        Ok(())
    }

    /// Prints a line. One that its reader has no room for is left out: signals and the end of the
    /// time must not wait for a reader.
    fn say(&self, line: Value, sentence: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.voice == Voice::Quiet {
            return Ok(());
        }
        if !output::is_writable() {
            self.left_out.set(self.left_out.get() + 1);
            return Ok(());
        }
        let left_out = self.left_out.take();
        if left_out > 0 {
            let gap = json!({ "line": "left_out", "lines": left_out });
            self.write(gap, || format!("{left_out} lines were left out: they were not read"))?;
        }
        self.write(line, sentence)
    }

    fn write(&self, mut line: Value, sentence: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.voice == Voice::Text {
            return output::print(&format!("{}\n", sentence()));
        }
        line["time_ns"] = monotonic_ns().into();
        output::print(&format!("{line}\n"))
    }
}

fn name_of(pid: u32) -> Option<String> {
    ProcessInfo::read(pid).ok().map(|info| info.name)
}
