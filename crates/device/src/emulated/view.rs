//! What one emulator has, as its events tell it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::{Control, ControlEvent, Listing};
use gpreempt_wire::emulator::{QueueInfo, Refusal, TaskInfo};

use super::report::Report;
use crate::controller::{Alone, Reporter};
use crate::process::{ProcessInfo, ProcessKey};

/// A connection that watches, and what it has told already: things that appeared while the list
/// was made are in the list and in the events.
#[derive(Debug)]
pub(super) struct View {
    control: Control,
    clients: BTreeMap<TaskId, ProcessKey>,
    queues: BTreeSet<QueueId>,
}

/// What became of it: the emulator may be gone, or whoever is told.
type Told = Result<Result<(), EmuError>, Alone>;

impl View {
    pub(super) fn new(control: Control) -> Self {
        Self { control, clients: BTreeMap::new(), queues: BTreeSet::new() }
    }

    /// Takes in what was there at first.
    pub(super) fn take_listing(&mut self, listing: Listing, reports: &Reporter<Report>) -> Told {
        for task in listing.tasks {
            self.add_client(task, reports)?;
        }
        for queue in listing.queues {
            if let Err(error) = self.add_queue(queue, reports)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Takes in everything that happened.
    pub(super) fn take_events(&mut self, reports: &Reporter<Report>) -> Told {
        loop {
            let event = match self.control.poll_event() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            };
            match event {
                ControlEvent::TaskAppeared(task) => self.add_client(task, reports)?,
                ControlEvent::TaskVanished(task) => {
                    if self.clients.remove(&task).is_some() {
                        reports.send(Report::Disconnected { client: task.0 })?;
                    }
                }
                ControlEvent::QueueAppeared(queue) => {
                    if let Err(error) = self.add_queue(queue, reports)? {
                        return Ok(Err(error));
                    }
                }
                ControlEvent::QueueVanished { queue, is_faulted } => {
                    if self.queues.remove(&queue) {
                        reports.send(Report::Closed { queue: queue.0, is_faulted })?;
                    }
                }
                // Nothing was begun, so this is late and nobody waits for it.
                ControlEvent::Completed { .. } => {}
            }
        }
    }

    /// A process that cannot be looked at has ended, or is in a world of its own. It is left alone.
    fn add_client(&mut self, task: TaskInfo, reports: &Reporter<Report>) -> Result<(), Alone> {
        let Ok(info) = ProcessInfo::read(task.pid) else { return Ok(()) };
        if self.clients.insert(task.task, info.key).is_some() {
            return Ok(());
        }
        reports.send(Report::Connected { client: task.task.0, process: info.key })
    }

    fn add_queue(&mut self, info: QueueInfo, reports: &Reporter<Report>) -> Told {
        let Some(&process) = self.clients.get(&info.task) else { return Ok(Ok(())) };
        if !self.queues.insert(info.queue) {
            return Ok(Ok(()));
        }
        match self.control.page(info.queue) {
            Ok(page) => {
                let page = Box::new(page);
                reports.send(Report::Opened { info, process, page })?;
            }
            Err(EmuError::Refused(Refusal::NoSuchQueue)) => {
                self.queues.remove(&info.queue);
            }
            Err(error) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }
}

impl AsFd for View {
    /// Readable when there are events, unless they were received with something else.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
