//! A thread that makes the control calls of one device, one after the other, and what the threads
//! of the backend report to it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::QueueId;

use super::target::Counts;
use crate::act::{Act, ActError, UndoError};
use crate::controller::{Alone, Awaited, Reporter};
use crate::hold_pages::HoldSlot;
use crate::ledger::Ledger;
use crate::nvidia::act::{self, NvidiaAct};
use crate::nvidia::discover::{Context, Group};
use crate::nvidia::hold::watcher::Notice;
use crate::nvidia::hold::{self, HoldChannel, HoldSite};
use crate::nvidia::own::{OwnClient, OwnError};
use crate::nvidia::ring::{RingError, Rings};
use crate::nvidia::rm::Handle;
use crate::nvidia::survey::GpuProcess;
use crate::process::ProcessKey;

/// How often it is tried to put a process back as it was. What does not work then is in the
/// journal, and is tried again at the end.
const UNDO_TRIES: u32 = 20;
const UNDO_PAUSE: Duration = Duration::from_millis(50);

/// One thing to do.
#[derive(Debug)]
pub(super) enum Job {
    /// A change, or with `undo` its end, and whom to tell.
    Act { process: ProcessKey, act: Act, undo: bool, awaited: Option<Awaited> },
    /// A stop, with a look at whether it interrupts something.
    Stop { process: ProcessKey, act: Act, context: ContextName, baseline: Option<Counts> },
    /// A stop of more than before, if it is still in force.
    Extend { process: ProcessKey, act: Act },
    /// Another look at whether a context was on the device since.
    Check { process: ProcessKey, context: ContextName },
    /// Everything in a process as it was.
    Undo(ProcessKey),
    /// The rings of a queue.
    OpenRings { queue: QueueId, process: ProcessKey, client: Handle, groups: Vec<Group> },
    /// A channel of ours in a context, to hold the device with.
    AddHold { place: HoldPlace, site: HoldSite, slot: HoldSlot, groups: Vec<Group> },
    /// The end of that.
    RemoveHold { process: ProcessKey, site: HoldSite, parts: Box<(HoldChannel, Rings)> },
}

/// Which queue a hold is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldPlace {
    pub(super) queue: QueueId,
    pub(super) process: ProcessKey,
    pub(super) device: usize,
    pub(super) slot: usize,
}

/// How a context is called, by us and by the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextName {
    pub(super) queue: QueueId,
    pub(super) client: Handle,
    pub(super) subdevice: Handle,
    pub(super) group: Handle,
}

impl ContextName {
    fn counts(&self, process: ProcessKey) -> Option<Counts> {
        let counts = act::switch_counts(process, self.client, self.subdevice, self.group).ok()?;
        Some(Counts::of(&counts))
    }
}

/// A channel of ours in a context, with what the watcher needs to use it.
#[derive(Debug)]
pub(super) struct NewHold {
    pub(super) site: HoldSite,
    pub(super) channel: HoldChannel,
    pub(super) rings: Rings,
}

/// Why a context cannot be held.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    /// The device gives the backend no client of its own.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// Its rings cannot be read.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Our channel could not be added.
    #[error(transparent)]
    Act(#[from] ActError),
    /// Another worker put the process back as it was at the same time.
    #[error("the process was released meanwhile")]
    Released,
}

/// From a thread of the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// Something the scheduler has to know.
    Event(Event),
    /// Something that did not work, in a sentence.
    Problem(String),
    /// A queue was stopped, and these were the device's counts before and after.
    Stopped(QueueId, Option<(Counts, Counts)>),
    /// A queue was looked at again, and these are the device's counts.
    Checked(QueueId, Option<Counts>),
    /// A queue can be held from now on, or why not.
    Hold(HoldPlace, Result<Box<NewHold>, HoldError>),
    /// The watcher saw something of a queue.
    Noticed(QueueId, Notice),
    /// The rings of a queue can be read from now on.
    Rings(QueueId, Box<Rings>),
    /// A process that is watched has something else on its GPUs than before.
    Changed(Box<GpuProcess>),
    /// A process began to use a GPU.
    Appeared(Box<GpuProcess>),
}

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker for the device with that UUID.
    pub(super) fn start(uuid: String, ledger: Ledger, reports: Reporter<Report>) -> Self {
        let (jobs, incoming) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            let mut hands = Hands { uuid, ledger, own: None };
            while let Ok(job) = incoming.recv() {
                // Nobody listens any more: whoever started us is about to end us.
                if hands.take(job, &reports).is_err() {
                    return;
                }
            }
        });
        Self { jobs: Some(jobs), thread: Some(thread) }
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
    uuid: String,
    ledger: Ledger,
    own: Option<Arc<Mutex<OwnClient>>>,
}

impl Hands {
    fn take(&mut self, job: Job, reports: &Reporter<Report>) -> Result<(), Alone> {
        let report = match job {
            Job::Act { process, act, undo, awaited } => {
                let result = Self::judge(self.ledger.perform(process, &act, undo), reports)?;
                match awaited {
                    Some(awaited) => Report::Event(awaited.event(result)),
                    None => return Ok(()),
                }
            }
            Job::Stop { process, act, context, baseline } => {
                let before = baseline.or_else(|| context.counts(process));
                let result = Self::judge(self.ledger.perform(process, &act, false), reports)?;
                let counts = before.zip(context.counts(process));
                let counts = counts.filter(|_| result.is_ok());
                reports.send(Report::Stopped(context.queue, counts))?;
                Report::Event(Awaited::Preempt(context.queue).event(result))
            }
            Job::Check { process, context } => {
                Report::Checked(context.queue, context.counts(process))
            }
            Job::Extend { process, act } => match self.ledger.extend(process, &act) {
                Err(error) if !error.is_gone() => Report::Problem(error.to_string()),
                Ok(()) | Err(_) => return Ok(()),
            },
            Job::Undo(process) => match self.undo(process) {
                Ok(()) => return Ok(()),
                Err(error) => Report::Problem(error.to_string()),
            },
            Job::AddHold { place, site, slot, groups } => {
                Report::Hold(place, self.add_hold(place.process, site, slot, &groups).map(Box::new))
            }
            Job::RemoveHold { process, site, parts } => {
                let (channel, rings) = *parts;
                drop(rings);
                let removed = self.ledger.perform(process, &NvidiaAct::Hold(site).into(), true);
                match removed {
                    Err(error) if !error.is_gone() => {
                        // The device may still use its memory, so nobody else may.
                        channel.into_slot().abandon();
                        Report::Problem(error.to_string())
                    }
                    Ok(()) | Err(_) => return Ok(()),
                }
            }
            Job::OpenRings { queue, process, client, groups } => {
                match self.rings(process, client, &groups) {
                    Ok(rings) => Report::Rings(queue, Box::new(rings)),
                    Err(RingError::Act(error)) if error.is_gone() => return Ok(()),
                    Err(error) => Report::Problem(format!(
                        "process {process}: {error}; it is taken to be busy all the time"
                    )),
                }
            }
        };
        reports.send(report)
    }

    /// Puts a process back as it was, and does not give up at once: it may stand still.
    fn undo(&self, process: ProcessKey) -> Result<(), UndoError> {
        let mut result = self.ledger.undo_process(process);
        for _ in 0..UNDO_TRIES {
            if result.is_ok() {
                break;
            }
            std::thread::sleep(UNDO_PAUSE);
            result = self.ledger.undo_process(process);
        }
        result
    }

    /// What the scheduler is told of an act. That something is gone is no problem.
    fn judge(
        result: Result<(), ActError>,
        reports: &Reporter<Report>,
    ) -> Result<Result<(), Fault>, Alone> {
        if let Err(error) = &result
            && !error.is_gone()
        {
            reports.send(Report::Problem(error.to_string()))?;
        }
        Ok(result.map_err(|error| error.fault()))
    }

    /// Adds a channel of ours to a context, and opens its rings once more for the watcher.
    fn add_hold(
        &mut self,
        process: ProcessKey,
        site: HoldSite,
        slot: HoldSlot,
        groups: &[Group],
    ) -> Result<NewHold, HoldError> {
        let own = self.own()?;
        let mut rings = self.rings(process, site.client, groups)?;
        rings.keep_first(groups.first().map_or(0, |compute| compute.channels.len()));
        let act = Act::from(NvidiaAct::Hold(site));
        self.ledger.write(process, &act)?;
        match hold::attach(process, &site, slot, &own) {
            // Another worker may have undone everything in this process meanwhile, and with it what
            // was written down.
            Ok(channel) if !self.ledger.has(process, &act) => {
                let removed = hold::detach(process, &site);
                if removed.is_err_and(|error| !error.is_gone()) {
                    channel.into_slot().abandon();
                }
                Err(HoldError::Released)
            }
            Ok(channel) => Ok(NewHold { site, channel, rings }),
            Err((slot, error)) => {
                if self.ledger.perform(process, &act, true).is_err_and(|error| !error.is_gone()) {
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
        match self.own() {
            Ok(own) => Rings::open(process, client, &context, &own),
            // Where we may not have a client there is still the process's memory.
            Err(_) => Rings::open_by_memory(process, &context),
        }
    }

    fn own(&mut self) -> Result<Arc<Mutex<OwnClient>>, OwnError> {
        if let Some(own) = &self.own {
            return Ok(Arc::clone(own));
        }
        let own = Arc::new(Mutex::new(OwnClient::open(&self.uuid)?));
        self.own = Some(Arc::clone(&own));
        Ok(own)
    }
}
