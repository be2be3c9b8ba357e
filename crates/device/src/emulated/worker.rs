//! The worker thread of one device, which makes its control calls one after the other, and the
//! reports of all threads to the backend.

use std::io;
use std::path::PathBuf;

use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_wire::emulator::ring_page::QueuePage;
use gpreempt_wire::emulator::{DeviceInfo, QueueInfo};

use super::change::{call, explain};
use crate::change::{ChangeError, GpuChange};
use crate::controller::{Disconnected, PendingCompletion, Reporter};
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;
use crate::worker_thread::WorkerThread;

#[derive(Debug)]
pub(super) enum Job {
    /// Makes a change, or reverts it, and reports the completion if one is awaited.
    Change {
        process: ProcessKey,
        change: GpuChange,
        undo: bool,
        completion: Option<PendingCompletion>,
    },
    /// Stops fetching from a ring, or starts again.
    Park { process: ProcessKey, change: GpuChange, undo: bool, queue: u64 },
    /// Sets a property that ends with the connection, so that no process has to revert it.
    Set { process: ProcessKey, instance: u64, queue: QueueId, property: QueueProperty },
    /// Reports when all jobs before it are done.
    Settle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueProperty {
    HoldPermitted(bool),
    Priority(Priority),
}

/// A report of a thread to the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// For the scheduler.
    Event(Event),
    Problem(String),
    /// There is an emulator with these devices. Its clients and queues follow.
    Found {
        instance: u64,
        devices: Vec<DeviceInfo>,
    },
    /// There is an emulator that cannot be used, and why.
    Unusable(String),
    /// The emulator has ended, and why.
    Lost(String),
    Connected {
        client: u64,
        process: ProcessKey,
    },
    Disconnected {
        client: u64,
    },
    /// A process has opened a queue, with this page.
    Opened {
        info: QueueInfo,
        process: ProcessKey,
        page: Box<QueuePage>,
    },
    /// The device no longer fetches from a ring, or fetches again.
    Parked {
        queue: u64,
        is_parked: bool,
    },
    /// A queue was closed, perhaps because of what was in its ring.
    Closed {
        queue: u64,
        is_faulted: bool,
    },
    /// A worker has carried out all jobs from before the emulator was lost.
    Settled,
    /// A watched process has ended.
    Ended(ProcessKey),
}

/// Starts the worker of a device of the emulator at that socket.
pub(super) fn start(
    socket: PathBuf,
    undo_log: UndoLog,
    reports: Reporter<Report>,
) -> io::Result<WorkerThread<Job>> {
    let control = DeviceControl { socket, undo_log, reports };
    WorkerThread::start("emulated device", move |job| control.take(job))
}

struct DeviceControl {
    socket: PathBuf,
    undo_log: UndoLog,
    reports: Reporter<Report>,
}

impl DeviceControl {
    fn take(&self, job: Job) -> Result<(), Disconnected> {
        match job {
            Job::Change { process, change, undo, completion } => {
                let result = self.undo_log.perform(process, &change, undo);
                self.report_problem(result.as_ref().err())?;
                let Some(completion) = completion else { return Ok(()) };
                let result = result.map_err(|error| error.fault());
                self.reports.send(Report::Event(completion.event(result)))
            }
            Job::Park { process, change, undo, queue } => {
                let result = self.undo_log.perform(process, &change, undo);
                self.report_problem(result.as_ref().err())?;
                if result.is_err() {
                    return Ok(());
                }
                self.reports.send(Report::Parked { queue, is_parked: !undo })
            }
            Job::Set { process, instance, queue, property } => {
                let result = call(&self.socket, instance, |control| match property {
                    QueueProperty::HoldPermitted(true) => control.permit_hold(queue),
                    QueueProperty::HoldPermitted(false) => control.forbid_hold(queue),
                    QueueProperty::Priority(priority) => control.set_priority(queue, priority),
                });
                let result = result.map_err(|error| explain(process.pid, error));
                self.report_problem(result.err().as_ref())
            }
            Job::Settle => self.reports.send(Report::Settled),
        }
    }

    /// Reports an error, unless its object no longer exists.
    fn report_problem(&self, error: Option<&ChangeError>) -> Result<(), Disconnected> {
        match error {
            Some(error) if !error.is_gone() => {
                self.reports.send(Report::Problem(error.to_string()))
            }
            Some(_) | None => Ok(()),
        }
    }
}
