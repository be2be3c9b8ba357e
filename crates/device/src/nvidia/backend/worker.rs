//! The worker thread of one device, which makes its control calls one after the other, and the
//! reports of all threads to the backend.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::QueueId;

use super::switch_counters::SwitchTotals;
use crate::change::{ChangeError, GpuChange, UndoError};
use crate::controller::{Disconnected, PendingCompletion, Reporter};
use crate::hold_pages::HoldSlot;
use crate::nvidia::change::{self, NvidiaChange};
use crate::nvidia::hold::watcher::WatcherReport;
use crate::nvidia::hold::{self, HoldChannel, HoldSite};
use crate::nvidia::import_client::{ImportClient, ImportError};
use crate::nvidia::process_discovery::GpuProcess;
use crate::nvidia::ring::{RingError, Rings};
use crate::nvidia::rm::Handle;
use crate::nvidia::rm_objects::{Context, Group};
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;
use crate::worker_thread::WorkerThread;

/// How often the worker tries to revert the changes of a process. What fails then stays in the
/// journal, and is tried again at the end.
const UNDO_TRIES: u32 = 20;
const UNDO_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) enum Job {
    /// Makes a change, or reverts it, and reports the completion if one is awaited.
    Change {
        process: ProcessKey,
        change: GpuChange,
        undo: bool,
        completion: Option<PendingCompletion>,
    },
    /// Stops a context, and reads the switch counters before and after.
    Stop {
        process: ProcessKey,
        change: GpuChange,
        context: ContextHandles,
        baseline: Option<SwitchTotals>,
    },
    /// Stops more channels than before, if the stop is still in force.
    Extend {
        process: ProcessKey,
        change: GpuChange,
    },
    /// Reads the switch counters again.
    Check {
        process: ProcessKey,
        context: ContextHandles,
    },
    /// Reverts all changes in a process.
    Undo(ProcessKey),
    OpenRings {
        queue: QueueId,
        process: ProcessKey,
        client: Handle,
        groups: Vec<Group>,
    },
    /// Adds a hold channel to a context.
    AddHold {
        request: HoldRequest,
        site: HoldSite,
        slot: HoldSlot,
        groups: Vec<Group>,
    },
    /// Removes it.
    RemoveHold {
        process: ProcessKey,
        site: HoldSite,
        parts: Box<(HoldChannel, Rings)>,
    },
}

/// The queue that a hold channel is for, and its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldRequest {
    pub(super) queue: QueueId,
    pub(super) process: ProcessKey,
    pub(super) device: usize,
    pub(super) slot: usize,
}

/// The names of a context: the scheduler's and the driver's.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextHandles {
    pub(super) queue: QueueId,
    pub(super) client: Handle,
    pub(super) subdevice: Handle,
    pub(super) group: Handle,
}

impl ContextHandles {
    fn totals(&self, process: ProcessKey) -> Option<SwitchTotals> {
        let counts =
            change::switch_counts(process, self.client, self.subdevice, self.group).ok()?;
        Some(SwitchTotals::of(&counts))
    }
}

/// A hold channel in a context, with the rings that the watcher samples.
#[derive(Debug)]
pub(super) struct AddedHold {
    pub(super) site: HoldSite,
    pub(super) channel: HoldChannel,
    pub(super) rings: Rings,
}

/// Why a context cannot be held.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Another worker reverted the changes of the process at the same time.
    #[error("the process was released meanwhile")]
    Released,
}

/// A report of a thread to the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// For the scheduler.
    Event(Event),
    Problem(String),
    /// A queue was stopped; these were the switch counters before and after.
    Stopped(QueueId, Option<(SwitchTotals, SwitchTotals)>),
    /// The switch counters of a queue were read again.
    Checked(QueueId, Option<SwitchTotals>),
    /// A hold channel was added, or why not.
    Hold(HoldRequest, Result<Box<AddedHold>, HoldError>),
    Watcher(QueueId, WatcherReport),
    Rings(QueueId, Box<Rings>),
    /// A watched process has other objects on its GPUs than before.
    Changed(Box<GpuProcess>),
    /// A process uses a GPU.
    Appeared(Box<GpuProcess>),
    /// Every process has been inspected once.
    Scanned,
}

/// Starts the worker of the device with that UUID.
pub(super) fn start(
    uuid: String,
    undo_log: UndoLog,
    reports: Reporter<Report>,
) -> WorkerThread<Job> {
    let mut control = DeviceControl { uuid, undo_log, import: None };
    // PANIC: without a thread the device cannot be controlled, and none of it was changed yet.
    WorkerThread::start("nvidia-device", move |job| control.take(job, &reports))
        .expect("the system has a thread for each GPU")
}

/// What the worker works with.
struct DeviceControl {
    uuid: String,
    undo_log: UndoLog,
    import: Option<Arc<Mutex<ImportClient>>>,
}

impl DeviceControl {
    fn take(&mut self, job: Job, reports: &Reporter<Report>) -> Result<(), Disconnected> {
        let report = match job {
            Job::Change { process, change, undo, completion } => {
                let result = self.undo_log.perform(process, &change, undo);
                let result = report_problem(result, reports)?;
                match completion {
                    Some(completion) => Report::Event(completion.event(result)),
                    None => return Ok(()),
                }
            }
            Job::Stop { process, change, context, baseline } => {
                let before = baseline.or_else(|| context.totals(process));
                let result = self.undo_log.perform(process, &change, false);
                let result = report_problem(result, reports)?;
                let totals = before.zip(context.totals(process));
                let totals = totals.filter(|_| result.is_ok());
                reports.send(Report::Stopped(context.queue, totals))?;
                Report::Event(PendingCompletion::Preempt(context.queue).event(result))
            }
            Job::Check { process, context } => {
                Report::Checked(context.queue, context.totals(process))
            }
            Job::Extend { process, change } => match self.undo_log.extend(process, &change) {
                Err(error) if !error.is_gone() => Report::Problem(error.to_string()),
                Ok(()) | Err(_) => return Ok(()),
            },
            Job::Undo(process) => match self.undo(process) {
                Ok(()) => return Ok(()),
                Err(error) => Report::Problem(error.to_string()),
            },
            Job::AddHold { request, site, slot, groups } => {
                let added = self.add_hold(request.process, site, slot, &groups);
                Report::Hold(request, added.map(Box::new))
            }
            Job::RemoveHold { process, site, parts } => {
                let (channel, rings) = *parts;
                drop(rings);
                let removed =
                    self.undo_log.perform(process, &NvidiaChange::Hold(site).into(), true);
                match removed {
                    Err(error) if !error.is_gone() => {
                        // The device may still use its memory, so no other hold may.
                        channel.into_slot().abandon();
                        Report::Problem(error.to_string())
                    }
                    Ok(()) | Err(_) => return Ok(()),
                }
            }
            Job::OpenRings { queue, process, client, groups } => {
                match self.rings(process, client, &groups) {
                    Ok(rings) => Report::Rings(queue, Box::new(rings)),
                    Err(RingError::Change(error)) if error.is_gone() => return Ok(()),
                    Err(error) => Report::Problem(format!(
                        "process {process}: {error}; gpreempt treats it as always busy"
                    )),
                }
            }
        };
        reports.send(report)
    }

    /// Reverts the changes of a process, with retries: it may be stopped.
    fn undo(&self, process: ProcessKey) -> Result<(), UndoError> {
        let mut result = self.undo_log.undo_process(process);
        for _ in 0..UNDO_TRIES {
            if result.is_ok() {
                break;
            }
            std::thread::sleep(UNDO_PAUSE);
            result = self.undo_log.undo_process(process);
        }
        result
    }

    /// Adds a hold channel to a context, and opens its rings once more for the watcher.
    fn add_hold(
        &mut self,
        process: ProcessKey,
        site: HoldSite,
        slot: HoldSlot,
        groups: &[Group],
    ) -> Result<AddedHold, HoldError> {
        let import = self.import()?;
        let mut rings = self.rings(process, site.client, groups)?;
        rings.keep_first(groups.first().map_or(0, |compute| compute.channels.len()));
        let change = GpuChange::from(NvidiaChange::Hold(site));
        self.undo_log.record(process, &change)?;
        match hold::attach(process, &site, slot, &import) {
            // Another worker may have reverted all changes in this process meanwhile, and removed
            // their records.
            Ok(channel) if !self.undo_log.has(process, &change) => {
                let removed = hold::detach(process, &site);
                if removed.is_err_and(|error| !error.is_gone()) {
                    channel.into_slot().abandon();
                }
                Err(HoldError::Released)
            }
            Ok(channel) => Ok(AddedHold { site, channel, rings }),
            Err((slot, error)) => {
                let undone = self.undo_log.perform(process, &change, true);
                if undone.is_err_and(|error| !error.is_gone()) {
                    slot.abandon();
                }
                Err(error.into())
            }
        }
    }

    fn rings(
        &mut self,
        process: ProcessKey,
        client: Handle,
        groups: &[Group],
    ) -> Result<Rings, RingError> {
        let Some((compute, copies)) = groups.split_first() else {
            return Err(RingError::NotFound);
        };
        let context = Context { compute, copies };
        match self.import() {
            Ok(import) => Rings::open(process, client, &context, &import),
            // Without a client there is still the process's memory.
            Err(_) => Rings::open_by_memory(process, &context),
        }
    }

    fn import(&mut self) -> Result<Arc<Mutex<ImportClient>>, ImportError> {
        if let Some(import) = &self.import {
            return Ok(Arc::clone(import));
        }
        let import = Arc::new(Mutex::new(ImportClient::open(&self.uuid)?));
        self.import = Some(Arc::clone(&import));
        Ok(import)
    }
}

/// Reports why a change failed, unless its object no longer exists. Returns the result for the
/// scheduler.
fn report_problem(
    result: Result<(), ChangeError>,
    reports: &Reporter<Report>,
) -> Result<Result<(), Fault>, Disconnected> {
    if let Err(error) = &result
        && !error.is_gone()
    {
        reports.send(Report::Problem(error.to_string()))?;
    }
    Ok(result.map_err(|error| error.fault()))
}
