//! What a running attach says: sentences for people, lines of JSON for programs.

use std::io::Write;

use gpreempt_core::decision::Decision;
use gpreempt_core::priority::Priority;
use gpreempt_device::controller::HoldFigures;
use gpreempt_device::controller::Note;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use serde_json::{Value, json};

use crate::control::Request;
use crate::failure::Failure;
use crate::output;

/// How often the same problem is said.
const PROBLEMS_MAX: usize = 100;

/// How it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// Sentences.
    Text,
    /// Lines of JSON.
    Json,
    /// Problems only: the output is somebody else's.
    Quiet,
}

/// Where it is said, and what was said already.
pub(crate) struct Account {
    voice: Voice,
    problems: Vec<String>,
}

impl Account {
    pub(crate) fn new(voice: Voice) -> Self {
        Self { voice, problems: Vec::new() }
    }

    pub(crate) fn attached(
        &self,
        process: &ProcessInfo,
        priority: Priority,
        contexts: Option<usize>,
    ) -> Result<(), Failure> {
        let (pid, name) = (process.key.pid, &process.name);
        let line = json!({ "line": "attached", "pid": pid, "name": name,
                           "priority": priority.level(), "contexts": contexts });
        let later = if contexts == Some(0) { "; it has nothing on a GPU yet" } else { "" };
        self.say(line, || format!("attached {pid} ({name}) with priority {priority}{later}"))
    }

    pub(crate) fn note(&mut self, note: &Note) -> Result<(), Failure> {
        match note {
            Note::Problem(problem) => self.problem(problem),
            // Whoever read of it before reads what comes next.
            Note::Solved(_) => Ok(()),
            Note::Appeared(process) => {
                let pid = process.pid;
                let name = ProcessInfo::read(pid).map(|info| info.name).unwrap_or_default();
                let line = json!({ "line": "appeared", "pid": pid, "name": name });
                self.say(line, || format!("{pid} ({name}) began to use a GPU; it is not attached"))
            }
            Note::Ended(task) => {
                let line = json!({ "line": "ended", "task": task.0 });
                self.say(line, || "an attached process ended".to_owned())
            }
            Note::Regrouped { task, appeared, vanished } => {
                let line = json!({ "line": "regrouped", "task": task.0,
                                   "appeared": appeared, "vanished": vanished });
                self.say(line, || {
                    format!("an attached process has {appeared} new contexts and lost {vanished}")
                })
            }
        }
    }

    pub(crate) fn decision(
        &self,
        process: Option<ProcessKey>,
        decision: &Decision,
    ) -> Result<(), Failure> {
        if self.voice != Voice::Json {
            return Ok(());
        }
        let line = json!({ "line": "decision", "at_ns": decision.at.as_nanos(),
                           "pid": process.map(|process| process.pid),
                           "reason": decision.reason.to_string() });
        self.say(line, String::new)
    }

    pub(crate) fn request(&self, request: &Request) -> Result<(), Failure> {
        let line = json!({ "line": "request", "request": request });
        self.say(line, || match request {
            Request::Set { pid, priority } => format!("{pid} has priority {priority} now"),
            Request::Detach { pid } => format!("{pid} was detached"),
        })
    }

    /// How often the device was held for a process.
    pub(crate) fn held(&self, pid: u32, figures: HoldFigures) -> Result<(), Failure> {
        let HoldFigures { placed, expired, longest_us, quiet_us, late_looks, blind_us, .. } =
            figures;
        let line = json!({ "line": "holds", "pid": pid, "placed": placed, "expired": expired,
                           "longest_us": longest_us, "quiet_us": quiet_us,
                           "late_looks": late_looks, "blind_us": blind_us });
        self.say(line, || {
            format!("the GPU was held for {pid} {placed} times, for {longest_us} us at the most")
        })
    }

    pub(crate) fn over(&self) -> Result<(), Failure> {
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

    fn say(&self, mut line: Value, sentence: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.voice {
            Voice::Quiet => Ok(()),
            Voice::Text => output::print(&format!("{}\n", sentence())),
            Voice::Json => {
                line["time_ns"] = monotonic_ns().into();
                output::print(&format!("{line}\n"))
            }
        }
    }
}
