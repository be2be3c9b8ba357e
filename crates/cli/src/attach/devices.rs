//! The devices of both vendors as one, for a command that schedules by itself.

use std::io;

use gpreempt_core::backend::Backend;
use gpreempt_core::command::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_device::act::UndoError;
use gpreempt_device::amd::{AmdBackend, Site};
use gpreempt_device::controller::{AdoptError, Controller, HoldStatus, Note, Numbering, Waker};
use gpreempt_device::ledger::Ledger;
use gpreempt_device::nvidia::backend::{NvidiaBackend, Wishes};
use gpreempt_device::nvidia::hold::GripSettings;
use gpreempt_device::nvidia::survey::{GpuProcess, look};
use gpreempt_device::process::{ProcessInfo, ProcessKey};

use crate::args::ChangeArgs;
use crate::failure::Failure;
use crate::{amd, driver_gate};

/// Which devices may be changed.
#[derive(Debug)]
pub(crate) struct Gates {
    nvidia: Result<(), Failure>,
    amd: Option<Site>,
}

impl Gates {
    /// Looks at the machine.
    ///
    /// # Errors
    /// Why NVIDIA's may not, if there are no others.
    pub(crate) fn look(args: ChangeArgs) -> Result<Self, Failure> {
        let (nvidia, amd) = (driver_gate::for_changes(args), amd::find());
        match (nvidia, amd) {
            (Err(failure), None) => Err(failure),
            (nvidia, amd) => Ok(Self { nvidia, amd }),
        }
    }

    /// Looks at a process, on the devices that it uses.
    pub(super) fn see(&self, pid: u32) -> Result<Seen, Failure> {
        if self.amd.is_some() && amd::is_user(pid) {
            return ProcessInfo::read(pid).map(Seen::Amd).map_err(Failure::input);
        }
        if let Err(Failure::Input(why) | Failure::Run(why)) = &self.nvidia {
            return Err(Failure::input(format_args!(
                "process {pid} does not use an AMD GPU, and {why}"
            )));
        }
        look(pid).map(Seen::Nvidia).map_err(Failure::input)
    }
}

/// A process, on the devices that it uses.
#[derive(Debug)]
pub(super) enum Seen {
    Nvidia(GpuProcess),
    Amd(ProcessInfo),
}

impl Seen {
    pub(super) const fn info(&self) -> &ProcessInfo {
        match self {
            Self::Nvidia(process) => &process.info,
            Self::Amd(info) => info,
        }
    }
}

/// The devices.
#[derive(Debug)]
pub(super) struct Devices {
    nvidia: Option<NvidiaBackend>,
    amd: Option<AmdBackend>,
}

/// Which of two counts the AMD devices and their queues.
const AMD: u16 = 1;

impl Devices {
    pub(super) fn new(gates: Gates, ledger: &Ledger, waker: &Waker) -> io::Result<Self> {
        let nvidia = gates
            .nvidia
            .ok()
            .map(|()| NvidiaBackend::new(ledger.clone(), Numbering::of(0), waker.clone()));
        let amd = gates
            .amd
            .map(|site| AmdBackend::new(site, ledger.clone(), Numbering::of(AMD), waker.clone()));
        Ok(Self { nvidia: nvidia.transpose()?, amd: amd.transpose()? })
    }

    /// Holds NVIDIA devices across gaps. Says why not, if not.
    pub(super) fn enable_holds(&mut self, settings: GripSettings) -> io::Result<Option<String>> {
        match &mut self.nvidia {
            Some(nvidia) => nvidia.enable_holds(settings),
            None => Ok(None),
        }
    }

    pub(super) fn adopt(
        &mut self,
        task: TaskId,
        process: &Seen,
        wishes: Wishes,
    ) -> Result<(), AdoptError> {
        match (process, &mut self.nvidia, &mut self.amd) {
            (Seen::Nvidia(process), Some(nvidia), _) => nvidia.adopt_seen(task, process, wishes),
            (Seen::Amd(info), _, Some(amd)) => amd.adopt(task, info.key),
            (Seen::Nvidia(_), None, _) | (Seen::Amd(_), _, None) => {
                Err(AdoptError::Unseen("its GPU may not be changed".to_owned()))
            }
        }
    }

    /// The process that a queue belongs to.
    pub(super) fn process_of(&self, queue: QueueId) -> Option<ProcessKey> {
        let nvidia = self.nvidia.as_ref().and_then(|nvidia| nvidia.group_of(queue));
        let amd = || self.amd.as_ref().and_then(|amd| amd.process_of(queue));
        nvidia.map(|(process, _)| process).or_else(amd)
    }

    pub(super) fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        self.all().flat_map(|devices| devices.queues_of(task)).collect()
    }

    pub(super) fn hold_of(&self, queue: QueueId) -> Option<HoldStatus> {
        self.all().find_map(|devices| devices.hold_reporting()?.hold_of(queue))
    }

    pub(super) fn set_priority(&mut self, task: TaskId, priority: Priority) {
        let forwarding = self.all_mut().filter_map(Controller::priority_forwarding);
        forwarding.for_each(|devices| devices.set_priority(task, priority));
    }

    pub(super) fn set_others(&mut self, priority: Option<Priority>) {
        let unadopted = self.all_mut().filter_map(Controller::unadopted);
        unadopted.for_each(|processes| processes.set_others(priority));
    }

    pub(super) fn release(&mut self, task: TaskId) {
        self.all_mut().for_each(|devices| devices.release(task));
    }

    pub(super) fn release_all(&mut self) -> Result<(), UndoError> {
        let mut result = Ok(());
        for devices in self.all_mut() {
            // All of them, whatever became of the first.
            let released = devices.release_all();
            result = result.and(released);
        }
        result
    }

    pub(super) fn poll_note(&mut self) -> Option<Note> {
        self.all_mut().find_map(Controller::poll_note)
    }

    fn all(&self) -> impl Iterator<Item = &dyn Controller> {
        let nvidia = self.nvidia.as_ref().map(|devices| devices as &dyn Controller);
        nvidia.into_iter().chain(self.amd.as_ref().map(|devices| devices as &dyn Controller))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Controller> {
        let nvidia = self.nvidia.as_mut().map(|devices| devices as &mut dyn Controller);
        let amd = self.amd.as_mut().map(|devices| devices as &mut dyn Controller);
        nvidia.into_iter().chain(amd)
    }

    /// Whose a queue is, whether it is still there or not.
    fn owner(&mut self, queue: QueueId) -> Option<&mut dyn Controller> {
        let is_amd = Numbering::of(AMD).may_name(queue);
        match (is_amd, &mut self.nvidia, &mut self.amd) {
            (true, _, Some(amd)) => Some(amd),
            (false, Some(nvidia), _) => Some(nvidia),
            (true, _, None) | (false, None, _) => None,
        }
    }
}

impl Backend for Devices {
    fn submit(&mut self, command: Command) {
        if let Some(owner) = self.owner(command.queue()) {
            owner.submit(command);
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        self.owner(queue)?.observe(queue)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.all_mut().find_map(|devices| devices.poll_event())
    }
}
