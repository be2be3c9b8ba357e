//! A thread that makes the control calls of one device, one after the other.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;

use super::act::explain;
use super::connection::call;
use super::report::Report;
use crate::act::ActError;
use crate::controller::{Alone, Awaited, Reporter};
use crate::journal::Act;
use crate::ledger::Ledger;
use crate::process::ProcessKey;

/// One thing to do.
#[derive(Debug)]
pub(super) enum Job {
    /// A change, or with `undo` its end, and whom to tell.
    Act { process: ProcessKey, act: Act, undo: bool, awaited: Option<Awaited> },
    /// Fetch nothing more from a ring, or with `undo` again.
    Park { process: ProcessKey, act: Act, undo: bool, queue: u64 },
    /// Something that ends with us, so that nobody has to undo it.
    Advise { process: ProcessKey, instance: u64, queue: QueueId, advice: Advice },
    /// Say when everything before is done.
    Settle,
}

/// What nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// It may be held across its gaps.
    PermitHold,
    /// It may no longer be held.
    ForbidHold,
    /// How important it is.
    Priority(Priority),
}

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker for a device of the emulator at that socket.
    ///
    /// # Errors
    /// If there are no more threads.
    pub(super) fn start(
        socket: PathBuf,
        ledger: Ledger,
        reports: Reporter<Report>,
    ) -> io::Result<Self> {
        let (jobs, incoming) = channel::<Job>();
        let hands = Hands { socket, ledger, reports };
        let thread =
            std::thread::Builder::new().name("emulated device".into()).spawn(move || {
                while let Ok(job) = incoming.recv() {
                    // Nobody listens any more: whoever started us is about to end us.
                    if hands.take(job).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Gives it something to do.
    pub(super) fn give(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A worker ends only when this side does.
            let _ = jobs.send(job);
        }
    }

    /// Waits until all is done and ends it.
    pub(super) fn stop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Hands {
    socket: PathBuf,
    ledger: Ledger,
    reports: Reporter<Report>,
}

impl Hands {
    fn take(&self, job: Job) -> Result<(), Alone> {
        match job {
            Job::Act { process, act, undo, awaited } => {
                let result = self.ledger.perform(process, &act, undo);
                self.complain(result.as_ref().err())?;
                let Some(awaited) = awaited else { return Ok(()) };
                let result = result.map_err(|error| error.fault());
                self.reports.send(Report::Event(awaited.event(result)))
            }
            Job::Park { process, act, undo, queue } => {
                let result = self.ledger.perform(process, &act, undo);
                self.complain(result.as_ref().err())?;
                if result.is_err() {
                    return Ok(());
                }
                self.reports.send(Report::Parked { queue, is_parked: !undo })
            }
            Job::Advise { process, instance, queue, advice } => {
                let result = call(&self.socket, instance, |control| match advice {
                    Advice::PermitHold => control.permit_hold(queue),
                    Advice::ForbidHold => control.forbid_hold(queue),
                    Advice::Priority(priority) => control.set_priority(queue, priority),
                });
                let result = result.map_err(|error| explain(process.pid, error));
                self.complain(result.err().as_ref())
            }
            Job::Settle => self.reports.send(Report::Settled),
        }
    }

    /// Tells about a problem that is one.
    fn complain(&self, error: Option<&ActError>) -> Result<(), Alone> {
        match error {
            Some(error) if !error.is_gone() => {
                self.reports.send(Report::Problem(error.to_string()))
            }
            Some(_) | None => Ok(()),
        }
    }
}
