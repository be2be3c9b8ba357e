//! Slices only, as in GPreempt: 1 s for whoever is latency-critical, 1 us for best effort.
//!
//! The hardware then preempts by itself, but several best-effort processes starve each other and a
//! latency-critical one loses the device in every gap. The changes go the way of all changes to
//! other processes: written down first, undone by the keeper if we cannot.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use gpreempt_device::change;
use gpreempt_device::journal::{GpuChange, Journal};
use gpreempt_device::keeper::{self, Keeper};
use gpreempt_device::nvidia::change::NvidiaChange;
use gpreempt_device::nvidia::process_discovery::inspect_process;
use gpreempt_device::nvidia::rm_objects::Engine;
use gpreempt_device::process::ProcessKey;
use gpreempt_device::undo_log::UndoLog;
use serde::Serialize;

use super::writable_driver;
use crate::args::SlicesArgs;
use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;
use crate::output::Output;
use crate::stop::{Bound, Stop};

/// The slice of a latency-critical process.
const LC_US: u64 = 1_000_000;
/// The slice of a best-effort process: the shortest the hardware has.
const BE_US: u64 = 1;
/// How often it is looked whether it is over.
const LOOK: Duration = Duration::from_millis(20);
/// Everything that is not the time asked for: finding processes, changing them, undoing it.
const OVERHEAD: Duration = Duration::from_secs(60);

/// One process and what becomes of its slices.
struct Target {
    process: ProcessKey,
    name: String,
    acts: Vec<GpuChange>,
}

/// A group as far as its slice is concerned.
#[derive(Clone, Copy, Debug)]
struct Sliced {
    client: u32,
    group: u32,
    slice_us: Option<u64>,
}

/// Printed when all slices are set.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "slices")]
struct Set {
    /// When, by `CLOCK_MONOTONIC`.
    at_ns: u64,
    processes: Vec<SetProcess>,
}

#[derive(Clone, Debug, Serialize)]
struct SetProcess {
    pid: u32,
    name: String,
    groups: usize,
    original_us: Vec<u64>,
    set_us: u64,
}

/// The last line.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
struct Final {
    /// By `CLOCK_MONOTONIC`.
    until_ns: u64,
    ended: Ended,
    /// Whether everything is as it was.
    undone: bool,
}

/// Why it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
    Time,
    Signal,
    /// All processes are gone.
    Processes,
    /// The keeper was killed, so nobody would undo it after us.
    Keeper,
}

/// Sets the slices, waits, and puts them back.
pub(super) fn main(args: &SlicesArgs) -> Result<(), Failure> {
    each_once(args)?;
    writable_driver()?;
    let _bound = Bound::after(OVERHEAD + Duration::from_secs(args.seconds));
    let stop = Stop::on_signals()?;
    let journal = Journal::open().map_err(Failure::run)?;
    // What was left behind has to be undone before we look, or it would be taken for the original.
    let lock = journal.lock().map_err(Failure::run)?;
    keeper::clean_up(&journal, change::undo).map_err(Failure::run)?;
    refuse_rivals(&journal)?;
    let mut targets = Vec::new();
    for (pids, slice_us) in [(&args.lc, LC_US), (&args.be, BE_US)] {
        for &pid in pids {
            targets.push(Target::find(pid, slice_us)?);
        }
    }
    refuse_rivals(&journal)?;
    let session = journal.begin().map_err(Failure::run)?;
    let mut keeper = Keeper::start(&session).map_err(Failure::run)?;
    let undo_log = UndoLog::new(session);
    for target in &targets {
        undo_log.claim(target.process).map_err(Failure::run)?;
    }
    drop(lock);
    let output = Output { json: args.json };
    let ended = hold(args, output, &targets, &undo_log, &mut keeper, &stop);
    // In any case, and before the keeper goes.
    let undone = undo_log.undo_all(|_| true);
    drop(keeper);
    let ended = ended?;
    output.line(&Final { until_ns: Monotonic.now_ns(), ended, undone: undone.is_ok() })?;
    undone.map_err(Failure::run)?;
    if ended == Ended::Keeper {
        return Err(Failure::run("the keeper was killed; everything was undone"));
    }
    Ok(())
}

/// Sets all slices and waits until it is over.
fn hold(
    args: &SlicesArgs,
    output: Output,
    targets: &[Target],
    undo_log: &UndoLog,
    keeper: &mut Keeper,
    stop: &Stop,
) -> Result<Ended, Failure> {
    for target in targets {
        for act in &target.acts {
            undo_log.perform(target.process, act, false).map_err(Failure::run)?;
        }
    }
    let begin = Monotonic.now_ns();
    let processes = targets.iter().map(SetProcess::of).collect();
    output.line(&Set { at_ns: begin, processes })?;
    let end = begin + args.seconds * 1_000_000_000;
    loop {
        if stop.is_asked() {
            return Ok(Ended::Signal);
        }
        if keeper.has_died() {
            return Ok(Ended::Keeper);
        }
        if targets.iter().all(|target| target.process.check().is_err()) {
            return Ok(Ended::Processes);
        }
        let left = Duration::from_nanos(end.saturating_sub(Monotonic.now_ns()));
        if left.is_zero() {
            return Ok(Ended::Time);
        }
        std::thread::sleep(left.min(LOOK));
    }
}

impl Target {
    fn find(pid: u32, slice_us: u64) -> Result<Self, Failure> {
        let found = inspect_process(pid).map_err(Failure::input)?;
        let clients = found.clients.as_ref().map_err(Failure::input)?;
        let mut groups = Vec::new();
        for client in clients {
            let all = client.devices.iter().flat_map(|device| &device.groups);
            groups.extend(all.filter(|group| group.engine == Engine::Compute).map(|group| {
                let (client, group, slice_us) = (client.handle, group.handle, group.slice_us);
                Sliced { client, group, slice_us }
            }));
        }
        let acts = acts(pid, &groups, slice_us).map_err(Failure::input)?;
        Ok(Self { process: found.info.key, name: found.info.name.clone(), acts })
    }
}

/// What has to be done to a process. A slice that cannot be read could not be put back.
fn acts(pid: u32, groups: &[Sliced], set_us: u64) -> Result<Vec<GpuChange>, String> {
    if groups.is_empty() {
        return Err(format!("process {pid} has no GPU work that could be scheduled yet"));
    }
    let act = |sliced: &Sliced| {
        let Sliced { client, group, slice_us } = *sliced;
        let original_us = slice_us.ok_or_else(|| {
            format!("the slice of group {group:#x} of process {pid} cannot be read, so not changed")
        })?;
        Ok(NvidiaChange::Slice { client, group, original_us, set_us }.into())
    };
    groups.iter().map(act).collect()
}

/// Nobody is both, and nobody twice.
fn each_once(args: &SlicesArgs) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    match args.lc.iter().chain(&args.be).find(|&pid| !seen.insert(pid)) {
        Some(pid) => Err(Failure::input(format_args!("process {pid} is named twice"))),
        None => Ok(()),
    }
}

/// What another command changes must not be taken for the original, nor mixed with this.
fn refuse_rivals(journal: &Journal) -> Result<(), Failure> {
    for session in journal.sessions().map_err(Failure::run)? {
        for entry in session.entries().unwrap_or_default() {
            if entry.process.check().is_ok() {
                return Err(Failure::input(format_args!(
                    "process {} is attached or suspended by another command; end that one first",
                    entry.process
                )));
            }
        }
    }
    Ok(())
}

impl SetProcess {
    fn of(target: &Target) -> Self {
        let mut original = Vec::new();
        let mut set = 0;
        for act in &target.acts {
            if let GpuChange::Nvidia(NvidiaChange::Slice { original_us, set_us, .. }) = act {
                original.push(*original_us);
                set = *set_us;
            }
        }
        Self {
            pid: target.process.pid,
            name: target.name.clone(),
            groups: original.len(),
            original_us: original,
            set_us: set,
        }
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slices:")?;
        for (index, process) in self.processes.iter().enumerate() {
            let SetProcess { pid, name, groups, original_us, set_us } = process;
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {pid} ({name}) {groups} groups {original_us:?} -> {set_us} us")?;
        }
        Ok(())
    }
}

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.ended {
            Ended::Time => "the time is over",
            Ended::Signal => "asked to stop",
            Ended::Processes => "all processes are gone",
            Ended::Keeper => "the keeper was killed",
        };
        let how = if self.undone { "everything is as it was" } else { "NOT everything is undone" };
        write!(f, "{why}, {how}")
    }
}

#[cfg(test)]
mod tests;
