//! Time slices and nothing else, as in GPreempt, to compare with (`peer slices`): 1 s for
//! latency-critical processes, 1 us for best-effort ones.
//!
//! The hardware then preempts by itself, but several best-effort processes starve each other, and a
//! latency-critical one loses the device in every gap. Changes of other processes are recorded
//! first, as everywhere, and the keeper reverts them if this program cannot.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use gpreempt_bench::nvidia::{refuse_other_sessions, slice_changes};
use gpreempt_device::change;
use gpreempt_device::journal::{GpuChange, Journal};
use gpreempt_device::keeper::{self, Keeper};
use gpreempt_device::nvidia::change::NvidiaChange;
use gpreempt_device::nvidia::driver::{Driver, DriverError};
use gpreempt_device::nvidia::process_discovery::inspect_process;
use gpreempt_device::process::ProcessKey;
use gpreempt_device::undo_log::UndoLog;
use serde::Serialize;

use crate::args::SlicesArgs;
use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;
use crate::lines::Output;
use crate::stop::{Stop, TimeLimit};

/// The slice of a latency-critical process.
const LC_US: u64 = 1_000_000;
/// The slice of a best-effort process: the shortest the hardware has.
const BE_US: u64 = 1;
/// How often the end is checked.
const POLL: Duration = Duration::from_millis(20);
/// Time for everything but --seconds: finding processes, changing and restoring them.
const OVERHEAD: Duration = Duration::from_secs(60);

/// A process and the changes of its time slices.
struct Target {
    process: ProcessKey,
    name: String,
    acts: Vec<GpuChange>,
}

/// Printed when all slices are set.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "slices")]
struct Set {
    /// By `CLOCK_MONOTONIC`.
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
    /// Whether every time slice was restored.
    undone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
    Time,
    Signal,
    /// All processes have ended.
    Processes,
    /// The keeper died, so a crash of this program could not be reverted.
    Keeper,
}

/// Sets the time slices, waits, and restores them.
pub(crate) fn main(args: &SlicesArgs) -> Result<(), Failure> {
    each_once(args)?;
    writable_driver()?;
    let _limit = TimeLimit::after(OVERHEAD + Duration::from_secs(args.seconds));
    let stop = Stop::on_signals()?;
    let journal = Journal::open().map_err(Failure::run)?;
    // Changes of crashed programs are reverted first, or they would be recorded as the original.
    let lock = journal.lock().map_err(Failure::run)?;
    keeper::clean_up(&journal, change::undo).map_err(Failure::run)?;
    refuse_other_sessions(&journal).map_err(Failure::input)?;
    let mut targets = Vec::new();
    for (pids, slice_us) in [(&args.lc, LC_US), (&args.be, BE_US)] {
        for &pid in pids {
            targets.push(Target::find(pid, slice_us)?);
        }
    }
    refuse_other_sessions(&journal).map_err(Failure::input)?;
    let session = journal.begin().map_err(Failure::run)?;
    let mut keeper = Keeper::start(&session).map_err(Failure::run)?;
    let undo_log = UndoLog::new(session);
    for target in &targets {
        undo_log.claim(target.process).map_err(Failure::run)?;
    }
    drop(lock);
    let output = Output { json: args.json };
    let ended = hold(args, output, &targets, &undo_log, &mut keeper, &stop);
    // In any case, and before the keeper ends.
    let undone = undo_log.undo_all(|_| true);
    drop(keeper);
    let ended = ended?;
    output.line(&Final { until_ns: Monotonic.now_ns(), ended, undone: undone.is_ok() })?;
    undone.map_err(Failure::run)?;
    if ended == Ended::Keeper {
        return Err(Failure::run("the keeper died; all time slices were restored"));
    }
    Ok(())
}

/// Sets all time slices and waits for the end.
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
        std::thread::sleep(left.min(POLL));
    }
}

impl Target {
    fn find(pid: u32, slice_us: u64) -> Result<Self, Failure> {
        let found = inspect_process(pid).map_err(Failure::input)?;
        let acts = slice_changes(&found, slice_us).map_err(Failure::input)?;
        Ok(Self { process: found.info.key, name: found.info.name.clone(), acts })
    }
}

/// Refuses a process that is named twice.
fn each_once(args: &SlicesArgs) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    match args.lc.iter().chain(&args.be).find(|&pid| !seen.insert(pid)) {
        Some(pid) => Err(Failure::input(format_args!("process {pid} is named twice"))),
        None => Ok(()),
    }
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
            Ended::Processes => "all processes have ended",
            Ended::Keeper => "the keeper died",
        };
        let how =
            if self.undone { "all time slices restored" } else { "NOT all time slices restored" };
        write!(f, "{why}, {how}")
    }
}

/// Refuses drivers with which gpreempt's calls were never tested.
pub(crate) fn writable_driver() -> Result<(), Failure> {
    let driver = Driver::find().map_err(|error| match error {
        DriverError::Absent | DriverError::NoNode(_) => Failure::Skipped(error.to_string()),
        DriverError::Unknown(_) => Failure::input(error),
    })?;
    match driver.branch {
        Some(branch) if branch.was_run() => Ok(()),
        Some(_) => Err(Failure::input(format_args!(
            "gpreempt was never tested with NVIDIA driver {}, so it changes nothing",
            driver.version
        ))),
        None => Err(Failure::input(DriverError::Unknown(driver.version))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(lc: &[u32], be: &[u32]) -> SlicesArgs {
        SlicesArgs { lc: lc.to_vec(), be: be.to_vec(), seconds: 1, json: false }
    }

    #[test]
    fn a_process_is_named_once() {
        assert!(each_once(&args(&[1, 2], &[3])).is_ok());
        assert!(each_once(&args(&[1], &[1])).is_err());
        assert!(each_once(&args(&[1], &[2, 2])).is_err());
    }

    #[test]
    fn lines_are_text_or_json() {
        let target = Target {
            process: ProcessKey { pid: 7, start_ticks: 1 },
            name: "train".into(),
            acts: vec![
                NvidiaChange::Slice { client: 1, group: 10, original_us: 2048, set_us: 1 }.into(),
            ],
        };
        let line = Set { at_ns: 5, processes: vec![SetProcess::of(&target)] };
        assert_eq!(line.to_string(), "slices: 7 (train) 1 groups [2048] -> 1 us");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"slices\",\"at_ns\":5,\"processes\":[{\"pid\":7,\"name\":\"train\",\
             \"groups\":1,\"original_us\":[2048],\"set_us\":1}]}"
        );
        let line = Final { until_ns: 9, ended: Ended::Signal, undone: true };
        assert_eq!(line.to_string(), "asked to stop, all time slices restored");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"final\",\"until_ns\":9,\"ended\":\"signal\",\"undone\":true}"
        );
    }
}
