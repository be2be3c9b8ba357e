//! The costs of the calls that control a process: stop, resume, preempt, and holds.
//!
//! For holds the runner is the controlling program, so it has a keeper: if the runner is killed or
//! stopped (Ctrl-Z) in the middle of a hold, the keeper releases the hold and restores everything.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_device::change;
use gpreempt_device::hold_pages::HoldPages;
use gpreempt_device::journal::{GpuChange, Journal};
use gpreempt_device::keeper::{self, Keeper, monotonic_ns};
use gpreempt_device::nvidia::change::{NvidiaChange, preempt, stops};
use gpreempt_device::nvidia::hold::{self, HoldChannel, HoldSite};
use gpreempt_device::nvidia::import_client::ImportClient;
use gpreempt_device::nvidia::process_discovery::{GpuProcess, inspect_process};
use gpreempt_device::process::ProcessKey;
use gpreempt_device::undo_log::UndoLog;

use super::slice_changes::{refuse_other_sessions, slice_changes};
use crate::results::Number;

/// How often each call is made.
const ROUNDS: u32 = 200;
/// How long a device may take to run a hold.
const HOLD_MAX: Duration = Duration::from_millis(500);
/// How long a hold lasts: longer than the poll that sees it.
const HELD: Duration = Duration::from_micros(100);
/// The pause between two rounds, in which the other processes run.
const PAUSE: Duration = Duration::from_millis(2);
/// The time slices of the held process and of the others, as gpreempt sets them.
const HOLDER_US: u64 = 1_000_000;
const OTHERS_US: u64 = 1;
/// How long a preempted process may take to be off the device.
const OFF_MAX: Duration = Duration::from_millis(100);

/// The costs of stopping, resuming and preempting a process beside work that fills the device.
///
/// The process is a load of the runner and ends by itself, so a stop that is never undone is
/// harmless.
///
/// # Errors
/// If the process cannot be inspected, or the driver refuses.
pub(super) fn control_numbers(pid: u32, stop: &AtomicBool) -> Result<Vec<Number>, String> {
    let process = inspect_process(pid).map_err(|error| error.to_string())?;
    let clients = process.clients.as_ref().map_err(ToString::to_string)?;
    let acts = stops(&process);
    let mut groups = Vec::new();
    for client in clients {
        for group in client.devices.iter().flat_map(|device| &device.groups) {
            groups.push((client.handle, group.handle));
        }
    }
    let key = process.info.key;
    let (mut stop_times, mut resumes, mut preempts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // ORDERING: an independent flag.
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        stop_times
            .push(timed(|| acts.iter().try_for_each(|act| act.on_device().perform(key, false)))?);
        resumes.push(timed(|| acts.iter().try_for_each(|act| act.on_device().perform(key, true)))?);
        std::thread::sleep(PAUSE);
        preempts.push(timed(|| {
            groups
                .iter()
                .try_for_each(|(client, group)| preempt(key, *client, *group, Some(OFF_MAX)))
        })?);
        std::thread::sleep(PAUSE);
    }
    Ok(Number::of_times([
        ("call_stop", "stop a process", stop_times),
        ("call_resume", "resume it", resumes),
        ("call_preempt", "preempt it once, and wait until it is off", preempts),
    ]))
}

/// How many nanoseconds a successful call took.
fn timed<E: ToString>(call: impl FnOnce() -> Result<(), E>) -> Result<u64, String> {
    let begin = Instant::now();
    call().map_err(|error| error.to_string())?;
    Ok(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The costs of beginning and ending a hold for one process, beside others that are busy.
///
/// # Errors
/// If a call is refused, or a hold never begins. All settings are then restored.
pub(super) fn hold_numbers(
    holder: u32,
    others: &[u32],
    stop: &AtomicBool,
) -> Result<Vec<Number>, String> {
    let said = |error: &dyn ToString| error.to_string();
    let journal = Journal::open().map_err(|error| said(&error))?;
    let lock = journal.lock().map_err(|error| said(&error))?;
    keeper::clean_up(&journal, change::undo).map_err(|error| said(&error))?;
    refuse_other_sessions(&journal)?;
    let process = inspect_process(holder).map_err(|error| said(&error))?;
    let changes = slice_changes(&process, HOLDER_US)?;
    let mut acts: Vec<_> = changes.into_iter().map(|act| (process.info.key, act)).collect();
    for other in others {
        let other = inspect_process(*other).map_err(|error| said(&error))?;
        let changes = slice_changes(&other, OTHERS_US)?;
        acts.extend(changes.into_iter().map(|act| (other.info.key, act)));
    }
    let session = journal.begin().map_err(|error| said(&error))?;
    let holds = HoldPages::new().map_err(|error| said(&error))?;
    let mut keeper = Keeper::start_with(&session, Some(&holds)).map_err(|error| said(&error))?;
    let undo_log = UndoLog::new(session).with_holds(Some(holds));
    for (process, _) in &acts {
        undo_log.claim(*process).map_err(|error| said(&error))?;
    }
    drop(lock);
    let times = held(&process, &acts, &undo_log, &mut keeper, stop);
    // In any case, and before the keeper ends.
    let undone = undo_log.undo_all(|_| true);
    drop(keeper);
    undone.map_err(|error| error.to_string())?;
    Ok(times?.numbers())
}

/// Sets the time slices, adds a hold channel, and uses it.
fn held(
    process: &GpuProcess,
    acts: &[(ProcessKey, GpuChange)],
    undo_log: &UndoLog,
    keeper: &mut Keeper,
    stop: &AtomicBool,
) -> Result<Times, String> {
    for (process, act) in acts {
        undo_log.perform(*process, act, false).map_err(|error| error.to_string())?;
    }
    let slot = undo_log.holds().and_then(HoldPages::take).ok_or("every hold slot is in use")?;
    let (uuid, site) =
        site(process, slot.index()).ok_or("the process has no context that can be held")?;
    let own = Mutex::new(ImportClient::open(&uuid).map_err(|error| error.to_string())?);
    let key = process.info.key;
    undo_log.record(key, &NvidiaChange::Hold(site).into()).map_err(|error| error.to_string())?;
    let channel = hold::attach(key, &site, slot, &own);
    let channel = channel.map_err(|(slot, error)| {
        slot.abandon();
        error.to_string()
    })?;
    let mut kept = KeptChannel { channel, keeper };
    let times = time_all(&mut kept, stop);
    kept.channel.end();
    // The channel is removed before its memory is used for anything else.
    let removed = undo_log.perform(key, &NvidiaChange::Hold(site).into(), true);
    let slot = kept.channel.into_slot();
    if removed.is_err() {
        slot.abandon();
    }
    removed.map_err(|error| error.to_string())?;
    times
}

/// A hold channel, or a fake one in tests.
trait Holder {
    /// Submits a hold; false if too many are pending.
    fn begin(&mut self) -> bool;
    /// Whether the device runs the hold. Sends the heartbeats of keeper and channel.
    fn is_held(&mut self) -> Result<bool, String>;
    fn end(&mut self);
}

struct KeptChannel<'k> {
    channel: HoldChannel,
    keeper: &'k mut Keeper,
}

impl Holder for KeptChannel<'_> {
    fn begin(&mut self) -> bool {
        self.channel.begin(monotonic_ns())
    }

    fn is_held(&mut self) -> Result<bool, String> {
        self.keeper.beat();
        self.channel.beat(monotonic_ns());
        if self.keeper.has_died() {
            return Err("the keeper died, so the hold was released".to_owned());
        }
        Ok(self.channel.is_loaded())
    }

    fn end(&mut self) {
        self.channel.end();
    }
}

/// Durations in nanoseconds.
#[derive(Debug, Default)]
struct Times {
    begins: Vec<u64>,
    held: Vec<u64>,
    ends: Vec<u64>,
}

impl Times {
    fn numbers(self) -> Vec<Number> {
        Number::of_times([
            ("call_hold_begin", "ask for a hold", self.begins),
            ("hold_begin", "from that until the device is held", self.held),
            ("call_hold_end", "end a hold", self.ends),
        ])
    }
}

fn time_all(holder: &mut impl Holder, stop: &AtomicBool) -> Result<Times, String> {
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        // ORDERING: an independent flag.
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        let begin = monotonic_ns();
        if !holder.begin() {
            return Err("too many holds are pending".to_owned());
        }
        let asked = monotonic_ns();
        let held = wait(holder, begin);
        if held.is_ok() {
            std::thread::sleep(HELD);
        }
        let ending = monotonic_ns();
        holder.end();
        let ended = monotonic_ns();
        times.begins.push(asked - begin);
        times.held.push(held? - begin);
        times.ends.push(ended - ending);
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

/// Waits until the device runs the hold; returns when that was seen.
fn wait(holder: &mut impl Holder, begin_ns: u64) -> Result<u64, String> {
    loop {
        let is_held = holder.is_held()?;
        let now = monotonic_ns();
        if is_held {
            return Ok(now);
        }
        if u128::from(now - begin_ns) > HOLD_MAX.as_nanos() {
            return Err(format!("the device was not held within {} ms", HOLD_MAX.as_millis()));
        }
    }
}

/// Where the hold channel is added: the first context of the process.
fn site(process: &GpuProcess, slot: usize) -> Option<(String, HoldSite)> {
    let clients = process.clients.as_deref().ok()?;
    clients.iter().find_map(|client| {
        client.devices.iter().find_map(|device| {
            let (context, uuid) = (device.contexts().next()?, device.uuid.clone()?);
            let handles = (client.handle, device.handle);
            let site = HoldSite::of(handles, context.compute, &uuid, slot)?;
            Some((uuid, site))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that runs every hold but one.
    #[derive(Default)]
    struct FakeHolder {
        begun: u32,
        ended: u32,
        never: Option<u32>,
    }

    impl Holder for FakeHolder {
        fn begin(&mut self) -> bool {
            self.begun += 1;
            true
        }

        fn is_held(&mut self) -> Result<bool, String> {
            Ok(self.never != Some(self.begun))
        }

        fn end(&mut self) {
            self.ended += 1;
        }
    }

    #[test]
    fn every_hold_is_timed_and_ended() {
        let mut device = FakeHolder::default();
        let times = time_all(&mut device, &AtomicBool::new(false)).unwrap();
        assert_eq!((device.begun, device.ended), (ROUNDS, ROUNDS));
        let numbers = times.numbers();
        for name in ["call_hold_begin_p50", "hold_begin_p99", "call_hold_end_p50"] {
            assert!(numbers.iter().any(|number| number.name == name), "{name}: {numbers:?}");
        }
    }

    #[test]
    fn a_hold_that_never_begins_is_ended_and_reported() {
        let mut device = FakeHolder { never: Some(3), ..FakeHolder::default() };
        let error = time_all(&mut device, &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error, "the device was not held within 500 ms");
        assert_eq!((device.begun, device.ended), (3, 3));
        let error = time_all(&mut device, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error, "stopped");
    }
}
