//! Finds and resumes processes that a device has stopped although the daemon did not stop them.
//!
//! Devices may answer slowly, so threads do this:
//! - one for each `Resume` of a process that the daemon did not suspend: it undoes what a dead
//!   session left in the process, reads the devices, and resumes queues that are stopped without a
//!   reason. The client is answered when that is done;
//! - one that reads the emulated GPUs every two seconds, so that the snapshot shows such processes
//!   as stopped. Reading all AMD queues would cost too much, and NVIDIA's driver does not tell.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpreempt_device::change::{self, UndoError};
use gpreempt_device::controller::Waker;
use gpreempt_device::hardware::{DevicePlaces, ResumeOutcome};
use gpreempt_device::journal::{GpuChange, Journal};
use gpreempt_device::process::{ProcessKey, set_ordinary_thread_priority};
use gpreempt_device::registry::{self, Selection};
use gpreempt_device::undo_log::UndoLog;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;

use crate::service::Service;
use crate::service::clients::pending_answers::RequestRef;
use crate::service::clients::request_error::RequestError;
use crate::service::processes::Named;
use crate::service::telemetry::loop_latency::cpu_time;

/// Interval of the reads. One takes about a millisecond.
const EVERY: Duration = Duration::from_secs(2);
/// Clients that may wait for devices at once, each of which has a thread: all of ordinary users,
/// and those of one. Root and the user that runs the daemon have as many places for themselves.
const PENDING_MAX: usize = 16;
const PENDING_OF_USER_MAX: usize = 4;

#[derive(Debug)]
pub(crate) struct HardwareCheck {
    places: DevicePlaces,
    journal: Journal,
    undo_log: UndoLog,
    waker: Waker,
    unexplained_stops: Arc<Mutex<BTreeSet<ProcessKey>>>,
    done: Receiver<ResumeResult>,
    sender: Sender<ResumeResult>,
    pending: Pending,
    /// Dropping it ends the thread that reads every two seconds.
    _watch: Sender<()>,
}

/// The users whose clients wait for devices.
#[derive(Debug, Default)]
struct Pending {
    trusted: usize,
    others: Vec<u32>,
}

impl Pending {
    fn has_room(&self, uid: u32, is_trusted: bool) -> bool {
        if is_trusted {
            return self.trusted < PENDING_MAX;
        }
        let own = self.others.iter().filter(|other| **other == uid).count();
        self.others.len() < PENDING_MAX && own < PENDING_OF_USER_MAX
    }

    fn begin(&mut self, uid: u32, is_trusted: bool) {
        if is_trusted { self.trusted += 1 } else { self.others.push(uid) }
    }

    fn end(&mut self, uid: u32) {
        match self.others.iter().position(|other| *other == uid) {
            Some(at) => drop(self.others.swap_remove(at)),
            None => self.trusted = self.trusted.saturating_sub(1),
        }
    }
}

/// The result of one `Resume`.
#[derive(Debug)]
struct ResumeResult {
    request: RequestRef,
    uid: u32,
    key: ProcessKey,
    result: Result<(), ResumeError>,
    /// Processor time of the thread.
    took: gpreempt_core::time::Duration,
}

/// Why a process was not resumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error("{} is not suspended", Named(*.0))]
    NotSuspended(ProcessKey),
    #[error(
        "{} is not suspended; its GPU does not report whether it is stopped, so it was resumed \
         anyway",
        Named(*.0)
    )]
    Unknown(ProcessKey),
    #[error(
        "{} is not suspended by gpreemptd, but its GPU reports it as stopped; a debugger or \
         another program may have stopped it",
        Named(*.0)
    )]
    StillStopped(ProcessKey),
    #[error("{name} is stopped and could not be resumed: {1}", name = Named(*.0))]
    Refused(ProcessKey, String),
    #[error("too many clients of this user wait for GPUs to answer; try again")]
    Busy,
}

impl ResumeError {
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::NotSuspended(_) | Self::Unknown(_) => RefusalCode::NotControlled,
            Self::StillStopped(_) | Self::Refused(..) => RefusalCode::Failed,
            Self::Busy => RefusalCode::Busy,
        }
    }
}

/// The devices that a daemon can read.
pub(crate) fn device_places(devices: &Selection, kinds: &[&str]) -> DevicePlaces {
    DevicePlaces {
        emulated: devices.emulated.clone(),
        amd: registry::sites(devices),
        // Only where the daemon may change settings through the driver.
        use_nvidia: kinds.contains(&"nvidia"),
    }
}

impl HardwareCheck {
    pub(crate) fn start(
        places: DevicePlaces,
        journal: Journal,
        undo_log: UndoLog,
        waker: Waker,
    ) -> io::Result<Self> {
        let unexplained_stops = Arc::new(Mutex::new(BTreeSet::new()));
        let (watch, is_over) = channel();
        if !places.emulated.is_empty() {
            let places = DevicePlaces { emulated: places.emulated.clone(), ..Default::default() };
            let (undo_log, unexplained_stops) = (undo_log.clone(), Arc::clone(&unexplained_stops));
            let thread = std::thread::Builder::new().name("gpreempt-hardware".to_owned());
            thread.spawn(move || {
                while is_over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    let found = find_unexplained_stops(&places, &undo_log);
                    *unexplained_stops.lock().unwrap_or_else(PoisonError::into_inner) = found;
                }
            })?;
        }
        let (sender, done) = channel();
        let pending = Pending::default();
        Ok(Self {
            places,
            journal,
            undo_log,
            waker,
            unexplained_stops,
            done,
            sender,
            pending,
            _watch: watch,
        })
    }

    /// Processes that a device had stopped at the last read although the daemon neither preempted
    /// nor suspended them.
    pub(crate) fn unexplained_stops(&self) -> BTreeSet<ProcessKey> {
        self.unexplained_stops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts to resume a process that the daemon did not suspend, for the user who asks for it.
    pub(crate) fn begin(
        &mut self,
        request: RequestRef,
        (uid, is_trusted): (u32, bool),
        key: ProcessKey,
    ) -> Result<(), ResumeError> {
        if !self.pending.has_room(uid, is_trusted) {
            return Err(ResumeError::Busy);
        }
        let (places, journal, undo_log) =
            (self.places.clone(), self.journal.clone(), self.undo_log.clone());
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let thread = std::thread::Builder::new().name("gpreempt-resume".to_owned());
        let spawned = thread.spawn(move || {
            if !is_trusted {
                set_ordinary_thread_priority();
            }
            let result = resume(&journal, &undo_log, &places, key);
            let took = cpu_time();
            // A daemon that stops no longer receives.
            let _ = sender.send(ResumeResult { request, uid, key, result, took });
            waker.wake();
        });
        spawned.map_err(|_| ResumeError::Busy)?;
        self.pending.begin(uid, is_trusted);
        Ok(())
    }

    fn poll(&mut self) -> Option<ResumeResult> {
        let done = self.done.try_recv().ok()?;
        self.pending.end(done.uid);
        self.unexplained_stops.lock().unwrap_or_else(PoisonError::into_inner).remove(&done.key);
        Some(done)
    }
}

fn find_unexplained_stops(places: &DevicePlaces, undo_log: &UndoLog) -> BTreeSet<ProcessKey> {
    let mut stopped: BTreeMap<ProcessKey, Vec<GpuChange>> = BTreeMap::new();
    for (key, act) in places.stopped() {
        stopped.entry(key).or_default().push(act);
    }
    let is_unexplained = |(key, acts): (ProcessKey, Vec<GpuChange>)| {
        // Read again while no thread changes the process: the first reading may be outdated.
        let is_unexplained =
            undo_log.is_stray(key, || acts) && undo_log.is_stray(key, || places.read(key).stopped);
        is_unexplained.then_some(key)
    };
    stopped.into_iter().filter_map(is_unexplained).collect()
}

/// Resumes a process that no session of a living owner has stopped.
fn resume(
    journal: &Journal,
    undo_log: &UndoLog,
    places: &DevicePlaces,
    key: ProcessKey,
) -> Result<(), ResumeError> {
    let refused = |why: &dyn std::error::Error| ResumeError::Refused(key, why.to_string());
    let was_left = undo_left_behind(journal, key).map_err(|error| refused(&error))?;
    let righted = undo_log.resume_strays(key, || places.read(key));
    match righted.map_err(|error| refused(&error))? {
        ResumeOutcome::Resumed => Ok(()),
        ResumeOutcome::Running | ResumeOutcome::Unknown if was_left => Ok(()),
        ResumeOutcome::Running => Err(ResumeError::NotSuspended(key)),
        ResumeOutcome::Unknown => Err(ResumeError::Unknown(key)),
        ResumeOutcome::StillStopped => Err(ResumeError::StillStopped(key)),
    }
}

/// Why the changes of a dead owner could not be undone.
#[derive(Debug, thiserror::Error)]
enum LeftBehindError {
    #[error(transparent)]
    Journal(#[from] io::Error),
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// Undoes the changes that sessions of dead owners left in a process, even if they have keepers: a
/// keeper that hangs undoes nothing, and undoing twice is harmless. Returns whether there was one.
fn undo_left_behind(journal: &Journal, key: ProcessKey) -> Result<bool, LeftBehindError> {
    let mut was_any = false;
    for session in journal.sessions()? {
        if session.has_living_owner().unwrap_or(true) {
            continue;
        }
        let entries = session.entries().unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry.process == key) {
            change::undo_now(entry)?;
            session.forget(key)?;
            was_any = true;
        }
    }
    Ok(was_any)
}

impl Service {
    /// Answers the clients whose `Resume` is complete.
    pub(crate) fn answer_resumes(&mut self) {
        while let Some(done) = self.hardware.poll() {
            let ResumeResult { request, uid, key, result, took } = done;
            // The user pays for the thread as for the loop, so a flood of requests waits.
            self.clients.sessions.users.charge(uid, took);
            let reply = match result {
                Ok(()) => {
                    self.telemetry.log.warn(format_args!(
                        "{} was stopped although gpreemptd had not stopped it; resumed",
                        Named(key)
                    ));
                    let (processes, mut context) = self.processes_and_context();
                    processes.tell_of(key, EventKind::Released, 0, context.telemetry);
                    // The obstacle to its control may be gone as well.
                    if let Some(process) = processes.table.get_mut(key)
                        && process.obstacle.take().is_some()
                    {
                        processes.apply(key, &mut context);
                    }
                    Reply::Ok
                }
                Err(error) => Reply::Refused(RequestError::from(error).to_wire()),
            };
            self.reply(request, reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_devices_do_not_answer_leaves_places_for_others_and_for_root() {
        let mut pending = Pending::default();
        for uid in 1000..1010 {
            for _ in 0..20 {
                if pending.has_room(uid, false) {
                    pending.begin(uid, false);
                }
            }
        }
        let of = |uid| pending.others.iter().filter(|other| **other == uid).count();
        assert_eq!([1000, 1001, 1003, 1004].map(of), [4, 4, 4, 0]);
        assert!(pending.has_room(0, true));
        pending.begin(0, true);
        pending.end(1001);
        assert!(pending.has_room(1004, false) && !pending.has_room(1000, false));
        pending.end(0);
        assert_eq!(pending.trusted, 0);
    }
}
