//! `gpreempt suspend`: a process off its GPUs for a while.

mod amd;
mod everything;
mod lease;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_device::act;
use gpreempt_device::journal::{Entry, Journal, Session};
use gpreempt_device::keeper::{self, Keeper, monotonic_ns};
use gpreempt_device::nvidia::act::stops;
use gpreempt_device::nvidia::node::Node;
use gpreempt_device::nvidia::survey::{self, GpuProcess};
use gpreempt_device::process::ProcessKey;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::SuspendArgs;
use crate::failure::Failure;
use crate::{daemon, driver_gate, output};

/// How often it is looked whether somebody else resumed the process.
const CHECK: Duration = Duration::from_millis(50);
/// How often it is looked whether the process has made something new.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn main(args: &SuspendArgs) -> Result<(), Failure> {
    let Some(pid) = args.pid else { return everything::main(args) };
    if let Some(client) = daemon::find()? {
        return lease::main(client, args, pid);
    }
    if crate::amd::is_user(pid) {
        return amd::main(args, pid, &crate::amd::require()?);
    }
    driver_gate::for_changes(args.driver)
        .map_err(|failure| crate::amd::explain_stranger(pid, failure))?;
    let journal = Journal::open().map_err(Failure::run)?;
    let lock = journal.lock().map_err(Failure::run)?;
    // What was left behind has to be undone before we look at anything.
    keeper::clean_up(&journal, act::undo).map_err(Failure::run)?;
    let process = look(pid)?;
    let acts = stops(&process);
    if acts.is_empty() {
        return Err(Failure::input(format_args!("process {pid} has no GPU work to stop yet")));
    }
    refuse_touched(&journal, process.info.key)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(Failure::run)?;
    }
    let session = journal.begin().map_err(Failure::run)?;
    let mut keeper = Keeper::start(&session).map_err(Failure::run)?;
    let mut entry = Entry { process: process.info.key, acts, until_ns: until_ns(args) };
    let stopped = stop_all(&session, &entry);
    drop(lock);
    let result = stopped.and_then(|()| {
        say_stopped(args, &format!("{pid} ({})", process.info.name), None)?;
        wait(args, &session, &mut entry, &mut keeper, &stop)
    });
    // Somebody may have resumed it from elsewhere: then the journal no longer has it. A keeper that
    // is gone may have undone things before we did the last of them.
    if is_in(&session) || keeper.has_died() {
        act::undo(&entry).map_err(Failure::run)?;
        session.forget(entry.process).map_err(Failure::run)?;
    }
    drop(keeper);
    result?;
    say_resumed(args)
}

/// When it has to be over, on the clock of leases.
fn until_ns(args: &SuspendArgs) -> Option<u64> {
    args.time.map(|time| {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        monotonic_ns().saturating_add(nanos)
    })
}

/// Refuses what another command has already.
fn refuse_touched(journal: &Journal, process: ProcessKey) -> Result<(), Failure> {
    let touched = |journal: &Journal| journal.touches(process);
    if journal.with_others().iter().any(touched) {
        return Err(Failure::input(format_args!(
            "process {process} is attached or suspended by another command; end that one first"
        )));
    }
    Ok(())
}

/// A process that may be stopped.
fn look(pid: u32) -> Result<GpuProcess, Failure> {
    let process = survey::look(pid).map_err(Failure::input)?;
    if let Err(problem) = &process.clients {
        return Err(Failure::input(problem));
    }
    if process.nodes.iter().any(|held| held.node == Node::Modeset) {
        return Err(Failure::input(format_args!(
            "process {pid} drives a display; stopping it would freeze the screen"
        )));
    }
    Ok(process)
}

/// Writes down what is going to be stopped, and stops it.
fn stop_all(session: &Session, entry: &Entry) -> Result<(), Failure> {
    session.write(entry).map_err(Failure::run)?;
    for act in &entry.acts {
        act.on_device().perform(entry.process, false).map_err(Failure::run)?;
    }
    Ok(())
}

/// Waits until it is over. What the process makes meanwhile is stopped as well.
fn wait(
    args: &SuspendArgs,
    session: &Session,
    entry: &mut Entry,
    keeper: &mut Keeper,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let until = args.time.map(|time| Instant::now() + time);
    let mut looked = Instant::now();
    while is_in(session) && entry.process.check().is_ok() && !stop.load(Ordering::Relaxed) {
        if keeper.has_died() {
            break;
        }
        keeper.beat();
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            let found = survey::look(entry.process.pid).map(|process| stops(&process));
            let known = entry.acts.clone();
            entry.join(found.unwrap_or_default());
            if entry.acts != known {
                stop_all(session, entry)?;
            }
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => break,
            Some(left) => std::thread::sleep(left.min(CHECK)),
            None => std::thread::sleep(CHECK),
        }
    }
    Ok(())
}

fn is_in(session: &Session) -> bool {
    session.entries().is_ok_and(|entries| !entries.is_empty())
}

/// Says that it is stopped, and whose suspension this one replaces, if any: what was left of that.
fn say_stopped(args: &SuspendArgs, who: &str, replaced: Option<Duration>) -> Result<(), Failure> {
    if args.json {
        let mut line = json!({ "line": "stopped", "pid": args.pid, "time_ns": monotonic_ns() });
        if let Some(left) = replaced {
            line["replaced_ms"] = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).into();
        }
        return output::print(&format!("{line}\n"));
    }
    if let Some(left) = replaced {
        output::print(&format!(
            "{who} was suspended already, for another {left:?}; this lease replaces that one\n"
        ))?;
    }
    let length = args.time.map_or_else(|| "until Ctrl-C".into(), |time| format!("for {time:?}"));
    output::print(&format!("{who} is stopped {length}\n"))
}

fn say_resumed(args: &SuspendArgs) -> Result<(), Failure> {
    let pid = args.pid;
    if args.json {
        let line = json!({ "line": "resumed", "pid": pid, "time_ns": monotonic_ns() });
        return output::print(&format!("{line}\n"));
    }
    output::print(&format!("{} runs again\n", pid.unwrap_or_default()))
}
