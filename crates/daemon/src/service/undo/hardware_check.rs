//! Compares what the devices say with what the daemon did.
//!
//! Two threads, because devices may take long to answer:
//! - one for each `Resume` of a process that the daemon did not suspend: it undoes what a dead
//!   session left in the process, asks the devices, and resumes what they have stopped without a
//!   reason. The client gets its answer when that is done;
//! - one that asks the emulated GPUs every two seconds, so that the snapshot shows such processes
//!   as stopped. Reading all AMD queues is too costly for that, and NVIDIA cannot be asked.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpreempt_device::act::{self, UndoError};
use gpreempt_device::controller::Waker;
use gpreempt_device::hardware::{DevicePlaces, Righted};
use gpreempt_device::journal::{Act, Journal};
use gpreempt_device::ledger::Ledger;
use gpreempt_device::process::ProcessKey;
use gpreempt_device::registry::{self, Selection};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;

use crate::service::Service;
use crate::service::clients::pending_answers::Asked;
use crate::service::clients::request_error::RequestError;

/// How often devices are asked for what is stopped. A listing takes about a millisecond.
const EVERY: Duration = Duration::from_secs(2);
/// How many clients may wait for devices at once.
const PENDING_MAX: usize = 16;

/// The threads, and what they found.
#[derive(Debug)]
pub(crate) struct HardwareCheck {
    places: DevicePlaces,
    journal: Journal,
    ledger: Ledger,
    waker: Waker,
    /// Processes that a device has stopped without a reason.
    strays: Arc<Mutex<BTreeSet<ProcessKey>>>,
    done: Receiver<Done>,
    says: Sender<Done>,
    pending: usize,
    /// Its end ends the thread that asks now and then.
    _watch: Sender<()>,
}

/// What became of one `Resume`.
#[derive(Debug)]
struct Done {
    asked: Asked,
    key: ProcessKey,
    result: Result<(), ResumeError>,
}

/// Why a process was not resumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error("process {0} is not suspended")]
    NotSuspended(ProcessKey),
    #[error(
        "process {0} is not suspended; its GPU does not tell whether it is stopped, so it was \
         told to run"
    )]
    Unknown(ProcessKey),
    #[error(
        "process {0} is not suspended by gpreemptd, but its GPU says that it is stopped; a \
         debugger or another program may hold it"
    )]
    StillStopped(ProcessKey),
    #[error("process {0} is stopped and could not be resumed: {1}")]
    Refused(ProcessKey, String),
    #[error("too many clients wait for GPUs to answer; try again")]
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

/// Where a daemon's devices are asked.
pub(crate) fn places(devices: &Selection, kinds: &[&str]) -> DevicePlaces {
    DevicePlaces {
        emulated: devices.emulated.clone(),
        amd: registry::sites(devices),
        // Only where something may be changed through the driver.
        use_nvidia: kinds.contains(&"nvidia"),
    }
}

impl HardwareCheck {
    /// # Errors
    /// If there are no more threads.
    pub(crate) fn start(
        places: DevicePlaces,
        journal: Journal,
        ledger: Ledger,
        waker: Waker,
    ) -> io::Result<Self> {
        let strays = Arc::new(Mutex::new(BTreeSet::new()));
        let (watch, is_over) = channel();
        if !places.emulated.is_empty() {
            let places = DevicePlaces { emulated: places.emulated.clone(), ..Default::default() };
            let (ledger, strays) = (ledger.clone(), Arc::clone(&strays));
            let thread = std::thread::Builder::new().name("gpreempt-hardware".to_owned());
            thread.spawn(move || {
                while is_over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    let found = find_strays(&places, &ledger);
                    *strays.lock().unwrap_or_else(PoisonError::into_inner) = found;
                }
            })?;
        }
        let (says, done) = channel();
        let pending = 0;
        Ok(Self { places, journal, ledger, waker, strays, done, says, pending, _watch: watch })
    }

    /// Processes that a device has stopped although the daemon neither preempted nor suspended
    /// them, as of the last time devices were asked.
    pub(crate) fn strays(&self) -> BTreeSet<ProcessKey> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins to set a process right.
    pub(crate) fn begin(&mut self, asked: Asked, key: ProcessKey) -> Result<(), ResumeError> {
        if self.pending >= PENDING_MAX {
            return Err(ResumeError::Busy);
        }
        let (places, journal, ledger) =
            (self.places.clone(), self.journal.clone(), self.ledger.clone());
        let (says, waker) = (self.says.clone(), self.waker.clone());
        let thread = std::thread::Builder::new().name("gpreempt-resume".to_owned());
        let spawned = thread.spawn(move || {
            let result = set_right(&journal, &ledger, &places, key);
            // A daemon that ends does not listen any more.
            let _ = says.send(Done { asked, key, result });
            waker.wake();
        });
        spawned.map_err(|_| ResumeError::Busy)?;
        self.pending += 1;
        Ok(())
    }

    fn poll(&mut self) -> Option<Done> {
        let done = self.done.try_recv().ok()?;
        self.pending = self.pending.saturating_sub(1);
        self.strays.lock().unwrap_or_else(PoisonError::into_inner).remove(&done.key);
        Some(done)
    }
}

/// Everything that is stopped without a reason.
fn find_strays(places: &DevicePlaces, ledger: &Ledger) -> BTreeSet<ProcessKey> {
    let mut stopped: BTreeMap<ProcessKey, Vec<Act>> = BTreeMap::new();
    for (key, act) in places.stopped() {
        stopped.entry(key).or_default().push(act);
    }
    let is_stray = |(key, acts): (ProcessKey, Vec<Act>)| {
        // Read again while nothing acts on the process: the first reading may be outdated.
        let is_stray =
            ledger.is_stray(key, || acts) && ledger.is_stray(key, || places.read(key).stopped);
        is_stray.then_some(key)
    };
    stopped.into_iter().filter_map(is_stray).collect()
}

/// Resumes a process that no session of a living owner has stopped.
fn set_right(
    journal: &Journal,
    ledger: &Ledger,
    places: &DevicePlaces,
    key: ProcessKey,
) -> Result<(), ResumeError> {
    let refused = |why: &dyn std::error::Error| ResumeError::Refused(key, why.to_string());
    let was_left = undo_left_behind(journal, key).map_err(|error| refused(&error))?;
    let righted = ledger.set_right(key, || places.read(key));
    match righted.map_err(|error| refused(&error))? {
        Righted::Resumed => Ok(()),
        Righted::Running | Righted::Unknown if was_left => Ok(()),
        Righted::Running => Err(ResumeError::NotSuspended(key)),
        Righted::Unknown => Err(ResumeError::Unknown(key)),
        Righted::StillStopped => Err(ResumeError::StillStopped(key)),
    }
}

/// Why something that a dead owner left in a process is still there.
#[derive(Debug, thiserror::Error)]
enum LeftBehindError {
    #[error(transparent)]
    Journal(#[from] io::Error),
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// Undoes what sessions of dead owners left in a process, their keepers notwithstanding: a keeper
/// that hangs undoes nothing, and undoing twice changes nothing. True if there was something.
fn undo_left_behind(journal: &Journal, key: ProcessKey) -> Result<bool, LeftBehindError> {
    let mut was_any = false;
    for session in journal.sessions()? {
        if session.has_living_owner().unwrap_or(true) {
            continue;
        }
        let entries = session.entries().unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry.process == key) {
            act::undo(entry)?;
            session.forget(key)?;
            was_any = true;
        }
    }
    Ok(was_any)
}

impl Service {
    /// Answers the clients whose processes were set right.
    pub(crate) fn settle_resumes(&mut self) {
        while let Some(Done { asked, key, result }) = self.hardware.poll() {
            let reply = match result {
                Ok(()) => {
                    self.telemetry.log.warn(format_args!(
                        "process {key} was stopped although gpreemptd had not stopped it; it runs \
                         again"
                    ));
                    let (processes, mut context) = self.processes_and_context();
                    processes.tell_of(key, EventKind::Released, 0, context.telemetry);
                    // What kept it from being controlled may be gone.
                    if let Some(member) = processes.roster.get_mut(key)
                        && member.obstacle.take().is_some()
                    {
                        processes.apply(key, &mut context);
                    }
                    Reply::Ok
                }
                Err(error) => Reply::Refused(RequestError::from(error).to_wire()),
            };
            self.reply(asked, reply);
        }
    }
}
