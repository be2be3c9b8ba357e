//! What it takes to begin and to end a hold, beside work that fills the device.
//!
//! This program holds by itself here, so it has a keeper: if it is killed, or stands still (Ctrl-Z)
//! in the middle of a hold, the keeper ends the hold and puts everything back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpreempt_device::change;
use gpreempt_device::hold_pages::HoldPages;
use gpreempt_device::journal::{GpuChange, Journal};
use gpreempt_device::keeper::{self, Keeper, monotonic_ns};
use gpreempt_device::nvidia::change::NvidiaChange;
use gpreempt_device::nvidia::hold::{self, HoldChannel, HoldSite};
use gpreempt_device::nvidia::import_client::ImportClient;
use gpreempt_device::nvidia::process_discovery::{GpuProcess, inspect_process};
use gpreempt_device::nvidia::rm_objects::{Engine, parse_uuid};
use gpreempt_device::process::ProcessKey;
use gpreempt_device::undo_log::UndoLog;

use crate::results::{Distribution, Number};

/// How often a hold is begun and ended.
const ROUNDS: u32 = 200;
/// How long a device has to come to a hold.
const WAIT: Duration = Duration::from_millis(500);
/// How long it is held: longer than it takes to see that it is.
const HELD: Duration = Duration::from_micros(100);
/// What others may do between two holds.
const PAUSE: Duration = Duration::from_millis(2);
/// The slices of whoever is held for and of the others, as ours are.
const HOLDER_US: u64 = 1_000_000;
const OTHERS_US: u64 = 1;

/// Begins and ends a hold again and again for one process, beside others that are busy.
///
/// # Errors
/// If something is refused, or a hold never begins. Everything is then as it was.
pub(super) fn numbers(
    holder: u32,
    others: &[u32],
    stop: &AtomicBool,
) -> Result<Vec<Number>, String> {
    let said = |error: &dyn ToString| error.to_string();
    let journal = Journal::open().map_err(|error| said(&error))?;
    let lock = journal.lock().map_err(|error| said(&error))?;
    keeper::clean_up(&journal, change::undo).map_err(|error| said(&error))?;
    refuse_rivals(&journal)?;
    let process = inspect_process(holder).map_err(|error| said(&error))?;
    let mut acts = slices(&process, HOLDER_US)?;
    for other in others {
        acts.extend(slices(&inspect_process(*other).map_err(|error| said(&error))?, OTHERS_US)?);
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
    // In any case, and before the keeper goes.
    let undone = undo_log.undo_all(|_| true);
    drop(keeper);
    undone.map_err(|error| error.to_string())?;
    Ok(times?.numbers())
}

/// Sets the slices, adds a channel of ours, and uses it.
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
    let slot = undo_log.holds().and_then(HoldPages::take).ok_or("there is no place for a hold")?;
    let (uuid, site) = site(process, slot.index()).ok_or("its context cannot be held")?;
    let own = Mutex::new(ImportClient::open(&uuid).map_err(|error| error.to_string())?);
    let key = process.info.key;
    undo_log.record(key, &NvidiaChange::Hold(site).into()).map_err(|error| error.to_string())?;
    let channel = hold::attach(key, &site, slot, &own);
    let channel = channel.map_err(|(slot, error)| {
        slot.abandon();
        error.to_string()
    })?;
    let mut hand = Hand { channel, keeper };
    let times = time_all(&mut hand, stop);
    hand.channel.end();
    // Taken out of the context before its memory is used for anything else.
    let removed = undo_log.perform(key, &NvidiaChange::Hold(site).into(), true);
    let slot = hand.channel.into_slot();
    if removed.is_err() {
        slot.abandon();
    }
    removed.map_err(|error| error.to_string())?;
    times
}

/// What is held with.
trait Holder {
    /// Asks for a hold; false if too many are waiting.
    fn begin(&mut self) -> bool;
    /// Whether the device is held by now. Says that somebody looks after it.
    fn is_held(&mut self) -> Result<bool, String>;
    /// Ends it.
    fn end(&mut self);
}

struct Hand<'k> {
    channel: HoldChannel,
    keeper: &'k mut Keeper,
}

impl Holder for Hand<'_> {
    fn begin(&mut self) -> bool {
        self.channel.begin(monotonic_ns())
    }

    fn is_held(&mut self) -> Result<bool, String> {
        self.keeper.beat();
        self.channel.beat(monotonic_ns());
        if self.keeper.has_died() {
            return Err("the keeper is gone, so nothing is held any more".to_owned());
        }
        Ok(self.channel.is_loaded())
    }

    fn end(&mut self) {
        self.channel.end();
    }
}

/// How long everything took, in nanoseconds.
#[derive(Debug, Default)]
struct Times {
    begins: Vec<u64>,
    held: Vec<u64>,
    ends: Vec<u64>,
}

impl Times {
    fn numbers(self) -> Vec<Number> {
        [
            ("call_hold_begin", "ask for a hold", self.begins),
            ("hold_begin", "from that until the device is held", self.held),
            ("call_hold_end", "end a hold", self.ends),
        ]
        .into_iter()
        .filter_map(|(name, title, times)| Some((name, title, Distribution::of(times)?)))
        .flat_map(|(name, title, spread)| Number::percentiles(name, title, &spread))
        .collect()
    }
}

fn time_all(holder: &mut impl Holder, stop: &AtomicBool) -> Result<Times, String> {
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        // ORDERING: the flag stands for itself.
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        let begin = monotonic_ns();
        if !holder.begin() {
            return Err("too many holds are waiting".to_owned());
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

/// Waits until the device is held, and says when that was seen.
fn wait(holder: &mut impl Holder, begin_ns: u64) -> Result<u64, String> {
    loop {
        let is_held = holder.is_held()?;
        let now = monotonic_ns();
        if is_held {
            return Ok(now);
        }
        if u128::from(now - begin_ns) > WAIT.as_nanos() {
            return Err(format!("the device was not held within {} ms", WAIT.as_millis()));
        }
    }
}

/// What another command changes must not be mixed with this.
fn refuse_rivals(journal: &Journal) -> Result<(), String> {
    let sessions = journal.sessions().map_err(|error| error.to_string())?;
    let entries = sessions.iter().flat_map(|session| session.entries().unwrap_or_default());
    match entries.into_iter().find(|entry| entry.process.check().is_ok()) {
        Some(entry) => Err(format!("process {} is attached by another command", entry.process)),
        None => Ok(()),
    }
}

/// What gives all compute groups of a process that slice.
fn slices(process: &GpuProcess, set_us: u64) -> Result<Vec<(ProcessKey, GpuChange)>, String> {
    let clients = process.clients.as_ref().map_err(ToString::to_string)?;
    let mut acts = Vec::new();
    for client in clients {
        let groups = client.devices.iter().flat_map(|device| &device.groups);
        for group in groups.filter(|group| group.engine == Engine::Compute) {
            let original_us = group.slice_us.ok_or("a slice cannot be read, so not changed")?;
            let (client, group) = (client.handle, group.handle);
            let act = NvidiaChange::Slice { client, group, original_us, set_us };
            acts.push((process.info.key, act.into()));
        }
    }
    Ok(acts)
}

/// Where a channel of ours is added: the first context of the process.
fn site(process: &GpuProcess, slot: usize) -> Option<(String, HoldSite)> {
    let clients = process.clients.as_deref().ok()?;
    clients.iter().find_map(|client| {
        client.devices.iter().find_map(|device| {
            let (context, uuid) = (device.contexts().next()?, device.uuid.clone()?);
            let compute = context.compute;
            let site = HoldSite {
                client: client.handle,
                device: device.handle,
                group: compute.handle,
                context_share: compute.context_share?,
                compute_class: compute.compute_class?,
                channel_class: compute.generation?.channel(),
                uuid: parse_uuid(&uuid)?,
                slot,
            };
            Some((uuid, site))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that comes to every hold but one.
    #[derive(Default)]
    struct Pretended {
        begun: u32,
        ended: u32,
        never: Option<u32>,
    }

    impl Holder for Pretended {
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
        let mut device = Pretended::default();
        let times = time_all(&mut device, &AtomicBool::new(false)).unwrap();
        assert_eq!((device.begun, device.ended), (ROUNDS, ROUNDS));
        let numbers = times.numbers();
        for name in ["call_hold_begin_p50", "hold_begin_p99", "call_hold_end_p50"] {
            assert!(numbers.iter().any(|number| number.name == name), "{name}: {numbers:?}");
        }
    }

    #[test]
    fn a_hold_that_never_begins_is_ended_and_said() {
        let mut device = Pretended { never: Some(3), ..Pretended::default() };
        let error = time_all(&mut device, &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error, "the device was not held within 500 ms");
        assert_eq!((device.begun, device.ended), (3, 3));
        let error = time_all(&mut device, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error, "stopped");
    }
}
