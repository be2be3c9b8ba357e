//! `gpreempt suspend`: a process off its GPUs for a while.

use std::time::{Duration, Instant};

use gpreempt_device::act;
use gpreempt_device::journal::{Entry, Journal};
use gpreempt_device::keeper::{self, Keeper, monotonic_ns};
use gpreempt_device::nvidia::act::stops;
use gpreempt_device::nvidia::node::Node;
use gpreempt_device::nvidia::survey;
use serde_json::json;

use crate::args::SuspendArgs;
use crate::driver_gate;
use crate::failure::Failure;
use crate::output;

/// How often it is looked whether somebody else resumed the process.
const CHECK: Duration = Duration::from_millis(50);

pub(crate) fn main(args: &SuspendArgs) -> Result<(), Failure> {
    driver_gate::for_changes(args.driver)?;
    let process = survey::look(args.pid).map_err(Failure::input)?;
    if let Err(problem) = &process.clients {
        return Err(Failure::input(problem));
    }
    if process.nodes.iter().any(|held| held.node == Node::Modeset) {
        let pid = args.pid;
        return Err(Failure::input(format_args!(
            "process {pid} drives a display; stopping it would freeze the screen"
        )));
    }
    let acts = stops(&process);
    if acts.is_empty() {
        let pid = args.pid;
        return Err(Failure::input(format_args!("process {pid} has no GPU work to stop yet")));
    }
    let journal = Journal::open().map_err(Failure::run)?;
    keeper::clean_up(&journal, &mut act::undo).map_err(Failure::run)?;
    if journal.touches(process.info.key) {
        let pid = args.pid;
        return Err(Failure::input(format_args!(
            "process {pid} is attached or suspended by another command; end that one first"
        )));
    }
    let session = journal.begin().map_err(Failure::run)?;
    let mut keeper = Keeper::start(&session).map_err(Failure::run)?;
    let until_ns = args.time.map(|time| {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        monotonic_ns().saturating_add(nanos)
    });
    let entry = Entry { process: process.info.key, acts, until_ns };
    session.write(&entry).map_err(Failure::run)?;
    for act in &entry.acts {
        // On failure the keeper sees us go and undoes what was done.
        act::perform(entry.process, act, false).map_err(Failure::run)?;
    }
    let until = args.time.map(|time| Instant::now() + time);
    let length = args.time.map_or_else(|| "until Ctrl-C".into(), |time| format!("for {time:?}"));
    let (pid, name) = (args.pid, &process.info.name);
    if args.json {
        let line = json!({ "line": "stopped", "pid": pid, "time_ns": monotonic_ns() });
        output::print(&format!("{line}\n"))?;
    } else {
        output::print(&format!("{pid} ({name}) is stopped {length}\n"))?;
    }
    // Somebody may resume it from elsewhere: then the journal no longer has it.
    let is_ours = || session.entries().is_ok_and(|entries| !entries.is_empty());
    while is_ours() && process.info.key.check().is_ok() && !keeper.has_died() {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => break,
            Some(left) => std::thread::sleep(left.min(CHECK)),
            None => std::thread::sleep(CHECK),
        }
    }
    if is_ours() {
        act::undo(&entry).map_err(Failure::run)?;
        session.forget(entry.process).map_err(Failure::run)?;
    }
    drop(keeper);
    if args.json {
        let line = json!({ "line": "resumed", "pid": pid, "time_ns": monotonic_ns() });
        return output::print(&format!("{line}\n"));
    }
    output::print(&format!("{pid} runs again\n"))
}
