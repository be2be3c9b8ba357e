//! Several kinds of devices as one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;
use gpreempt_device::act::UndoError;
use gpreempt_device::controller::{
    AdoptError, Controller, DeviceName, HintSight, HoldStatus, Limit, Note, WayInUse,
};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;

/// How many things that happened are kept for whoever asks.
const SEEN_MAX: usize = 4096;

/// The controllers, and who has which queue.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    controllers: Vec<Box<dyn Controller>>,
    /// Where each queue is, and whose. Learnt from what passes through.
    owners: BTreeMap<QueueId, (usize, TaskId)>,
    /// What the loop itself has to say.
    own: VecDeque<Event>,
    /// What passed through, for followers.
    seen: VecDeque<Event>,
    /// When queues were given commands since somebody last asked, for followers.
    commanded: BTreeMap<QueueId, u64>,
    /// Whether anybody wants to know.
    pub(crate) is_followed: bool,
    others: BTreeMap<usize, Priority>,
}

impl Backends {
    pub(crate) fn push(&mut self, controller: Box<dyn Controller>) {
        self.controllers.push(controller);
    }

    pub(crate) fn len(&self) -> usize {
        self.controllers.len()
    }

    /// Says something as if a device had: it is taken in with the next step, and if it is a hint
    /// all rings are read at once. Threads that read hint pages themselves do so now.
    pub(crate) fn say(&mut self, event: Event) {
        if matches!(event, Event::HintBegin { .. } | Event::HintEnd { .. }) {
            for watching in self.controllers.iter_mut().filter_map(|c| c.hint_watching()) {
                watching.read_hints_now();
            }
        }
        self.own.push_back(event);
    }

    pub(crate) fn users(&mut self, controller: usize) -> Vec<ProcessKey> {
        self.controllers.get_mut(controller).map(|c| c.users()).unwrap_or_default()
    }

    pub(crate) fn adopt(
        &mut self,
        controller: usize,
        task: TaskId,
        process: ProcessKey,
    ) -> Result<(), AdoptError> {
        match self.controllers.get_mut(controller) {
            Some(controller) => controller.adopt(task, process),
            None => Err(AdoptError::Unseen("there is no such controller".to_owned())),
        }
    }

    pub(crate) fn release(&mut self, controller: usize, task: TaskId) {
        self.owners.retain(|_, owner| *owner != (controller, task));
        if let Some(controller) = self.controllers.get_mut(controller) {
            controller.release(task);
        }
    }

    /// Shows controllers whose own threads place holds from hints where a task gives its hints.
    pub(crate) fn watch_hints(&mut self, task: TaskId, sight: &Weak<dyn HintSight>) {
        for watching in self.controllers.iter_mut().filter_map(|c| c.hint_watching()) {
            watching.watch_hints(task, Weak::clone(sight));
        }
    }

    /// Controllers look at least so often for processes of which no event tells.
    pub(crate) fn set_rescan(&mut self, every: Duration) {
        let every = std::time::Duration::from_nanos(every.as_nanos());
        for rescanning in self.controllers.iter_mut().filter_map(|c| c.rescanning()) {
            rescanning.set_rescan(every);
        }
    }

    /// Stands for all processes on that controller's devices that were not adopted.
    pub(crate) fn set_others(&mut self, controller: usize, priority: Option<Priority>) {
        if self.others.get(&controller).copied() == priority {
            return;
        }
        match priority {
            Some(priority) => self.others.insert(controller, priority),
            None => self.others.remove(&controller),
        };
        let controller = self.controllers.get_mut(controller);
        if let Some(unadopted) = controller.and_then(|controller| controller.unadopted()) {
            unadopted.set_others(priority);
        }
    }

    /// The next note, and from which controller.
    pub(crate) fn poll_note(&mut self) -> Option<(usize, Note)> {
        self.controllers
            .iter_mut()
            .enumerate()
            .find_map(|(index, controller)| Some((index, controller.poll_note()?)))
    }

    /// What passed through since the last call.
    pub(crate) fn take_seen(&mut self) -> VecDeque<Event> {
        std::mem::take(&mut self.seen)
    }

    /// When each queue was given its last command, by the machine's clock, since the last call.
    pub(crate) fn take_commanded(&mut self) -> BTreeMap<QueueId, u64> {
        std::mem::take(&mut self.commanded)
    }

    /// How it stands with the hold of a queue.
    pub(crate) fn hold_of(&self, queue: QueueId) -> Option<HoldStatus> {
        self.controllers.iter().find_map(|c| c.hold_reporting()?.hold_of(queue))
    }

    /// What a task's process cannot have of what others can, if so.
    pub(crate) fn limit_of(&self, task: TaskId) -> Option<Limit> {
        self.controllers.iter().find_map(|c| c.stop_method_reporting()?.limit_of(task))
    }

    /// A task has this priority now.
    pub(crate) fn set_priority(&mut self, task: TaskId, priority: Priority) {
        for forwarding in self.controllers.iter_mut().filter_map(|c| c.priority_forwarding()) {
            forwarding.set_priority(task, priority);
        }
    }

    /// A queue has this priority now, or its task's again.
    pub(crate) fn set_queue_priority(&mut self, queue: QueueId, priority: Option<Priority>) {
        let owner = self.owner(queue);
        if let Some(forwarding) = owner.and_then(|owner| owner.priority_forwarding()) {
            forwarding.set_queue_priority(queue, priority);
        }
    }

    /// In which way queues of a task are stopped.
    pub(crate) fn way_of(&self, task: TaskId) -> Option<WayInUse> {
        self.controllers.iter().find_map(|c| c.stop_method_reporting()?.way_of(task))
    }

    /// In which way queues on a device are stopped.
    pub(crate) fn way(&self, device: DeviceId) -> Option<WayInUse> {
        let is_here = |name: &DeviceName| name.id == device;
        let owner = self.controllers.iter().find(|c| c.devices().iter().any(is_here))?;
        Some(owner.stop_method_reporting()?.way())
    }

    /// Every device, with its kind.
    pub(crate) fn devices(&self) -> Vec<(&'static str, DeviceName)> {
        let mut devices = Vec::new();
        for controller in &self.controllers {
            let named = controller.devices().into_iter();
            devices.extend(named.map(|device| (controller.kind(), device)));
        }
        devices
    }

    /// What kinds there are.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        self.controllers.iter().map(|controller| controller.kind()).collect()
    }

    /// The name of a device by its vendor's tools.
    pub(crate) fn uuid(&self, device: DeviceId) -> Option<String> {
        self.devices().into_iter().find(|(_, name)| name.id == device).map(|(_, name)| name.uuid)
    }

    /// The names of the devices that a process was seen to use.
    pub(crate) fn uuids_of(&self, process: ProcessKey) -> Vec<String> {
        self.controllers.iter().flat_map(|controller| controller.uuids_of(process)).collect()
    }

    /// What kind of device a queue is on.
    pub(crate) fn kind_of(&self, queue: QueueId) -> Option<&'static str> {
        self.owner_of(queue).map(|controller| controller.kind())
    }

    /// The number of a queue on its device, where it has one.
    pub(crate) fn native(&self, queue: QueueId) -> Option<u64> {
        self.owner_of(queue).and_then(|owner| owner.numbered_queues()?.native(queue))
    }

    /// Whether the device of a queue can be told to fetch nothing more from its ring.
    pub(crate) fn can_park(&self, queue: QueueId) -> bool {
        let parking = self.owner_of(queue).and_then(Controller::parking);
        parking.is_some_and(|parking| parking.can_park(queue))
    }

    /// Tells it so, or to fetch again.
    pub(crate) fn park(&mut self, queue: QueueId, parked: bool) {
        if let Some(parking) = self.owner(queue).and_then(|owner| owner.parking_mut()) {
            parking.park(queue, parked);
        }
    }

    /// Whether nothing is fetched for a parked queue any more, and what was fetched has ended.
    pub(crate) fn is_at_rest(&self, queue: QueueId) -> bool {
        let parking = self.owner_of(queue).and_then(Controller::parking);
        parking.is_some_and(|parking| parking.is_at_rest(queue))
    }

    fn owner_of(&self, queue: QueueId) -> Option<&dyn Controller> {
        let (controller, _) = *self.owners.get(&queue)?;
        self.controllers.get(controller).map(AsRef::as_ref)
    }

    /// Puts everything back as it was.
    pub(crate) fn release_all(&mut self) -> Result<(), UndoError> {
        let mut result = Ok(());
        for controller in &mut self.controllers {
            // All of them, whatever became of the first.
            let released = controller.release_all();
            result = result.and(released);
        }
        result
    }

    /// Keeps the books on what passes through.
    fn note(&mut self, controller: usize, event: &Event) {
        match *event {
            Event::QueueAppeared { queue, task, .. } => {
                self.owners.insert(queue, (controller, task));
            }
            Event::QueueVanished { queue } => {
                self.owners.remove(&queue);
            }
            Event::TaskVanished { task } => self.owners.retain(|_, owner| owner.1 != task),
            Event::Preempted { .. } | Event::Resumed { .. } => {}
            Event::DeviceAppeared { .. }
            | Event::DeviceCost { .. }
            | Event::DeviceExternallyScheduled { .. }
            | Event::DeviceVanished { .. }
            | Event::TaskAppeared { .. }
            | Event::TaskChanged { .. }
            | Event::TaskSuspended { .. }
            | Event::QueueChanged { .. }
            | Event::QueueSuspended { .. }
            | Event::RingObserved { .. }
            | Event::HintBegin { .. }
            | Event::HintEnd { .. }
            | Event::PreemptFailed { .. }
            | Event::ResumeFailed { .. } => return,
        }
        if self.is_followed && self.seen.len() < SEEN_MAX {
            self.seen.push_back(*event);
        }
    }

    fn owner(&mut self, queue: QueueId) -> Option<&mut Box<dyn Controller>> {
        let (controller, _) = *self.owners.get(&queue)?;
        self.controllers.get_mut(controller)
    }
}

impl Backend for Backends {
    fn submit(&mut self, command: Command) {
        // Before: the device's thread may get our processor as soon as it is woken.
        let given_ns = monotonic_ns();
        if let Some(owner) = self.owner(command.queue()) {
            owner.submit(command);
            if self.is_followed
                && matches!(command, Command::Preempt { .. } | Command::Resume { .. })
            {
                self.commanded.insert(command.queue(), given_ns);
            }
            return;
        }
        // It is gone, so nothing of it can run, and nothing can keep it from running.
        match command {
            Command::Preempt { queue, .. } => self.own.push_back(Event::Preempted { queue }),
            Command::Resume { queue } => self.own.push_back(Event::Resumed { queue }),
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => {}
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        self.owner(queue)?.observe(queue)
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.own.pop_front() {
            return Some(event);
        }
        let next = |(index, controller): (usize, &mut Box<dyn Controller>)| {
            Some((index, controller.poll_event()?))
        };
        let (index, event) = self.controllers.iter_mut().enumerate().find_map(next)?;
        self.note(index, &event);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::devices::fake::Fake;

    fn appeared(queue: u64, task: u64, device: u32) -> Event {
        let (queue, task) = (QueueId(queue), TaskId(task));
        Event::QueueAppeared { queue, task, device: DeviceId(device), stopped: false }
    }

    fn two() -> (Backends, [Fake; 2]) {
        let fakes = [Fake::new(0), Fake::new(1)];
        let mut backends = Backends { is_followed: true, ..Backends::default() };
        for (fake, queue) in fakes.iter().zip([10, 20]) {
            fake.tell(appeared(queue, queue, 0));
            backends.push(Box::new(fake.clone()));
        }
        (backends, fakes)
    }

    #[test]
    fn commands_and_readings_go_to_whoever_has_the_queue() {
        let (mut backends, fakes) = two();
        while backends.poll_event().is_some() {}
        fakes[1].set_ring(QueueId(20), RingView { put: 5, get: 1, running: None });
        assert_eq!(backends.observe(QueueId(20)).map(RingView::pending), Some(4));
        assert_eq!(backends.observe(QueueId(30)), None);
        backends.submit(Command::Resume { queue: QueueId(10) });
        assert_eq!(fakes[0].commands(), [Command::Resume { queue: QueueId(10) }]);
        assert_eq!(fakes[1].commands(), []);
        let commanded = backends.take_commanded();
        assert!(commanded[&QueueId(10)] > 0 && commanded.len() == 1, "{commanded:?}");
        assert!(backends.take_commanded().is_empty());
    }

    #[test]
    fn a_queue_that_is_gone_is_answered_for() {
        let (mut backends, fakes) = two();
        while backends.poll_event().is_some() {}
        backends.release(0, TaskId(10));
        let queue = QueueId(10);
        backends.submit(Command::Resume { queue });
        assert_eq!(backends.poll_event(), Some(Event::Resumed { queue }));
        assert_eq!(fakes[0].commands(), []);
    }

    #[test]
    fn what_the_loop_says_comes_first_and_what_passes_is_remembered() {
        let (mut backends, _fakes) = two();
        backends.say(Event::HintEnd { task: TaskId(1) });
        assert_eq!(backends.poll_event(), Some(Event::HintEnd { task: TaskId(1) }));
        while backends.poll_event().is_some() {}
        assert_eq!(backends.take_seen(), [appeared(10, 10, 0), appeared(20, 20, 0)]);
        assert_eq!(backends.take_seen(), []);
    }

    #[test]
    fn every_controller_hears_how_often_to_look() {
        let (mut backends, fakes) = two();
        backends.set_rescan(Duration::from_millis(300));
        let heard = fakes.map(|fake| fake.rescan());
        assert_eq!(heard, [Some(std::time::Duration::from_millis(300)); 2]);
    }

    #[test]
    fn others_are_told_of_once() {
        let (mut backends, fakes) = two();
        let level = Priority::new(7);
        for priority in [level, level, None, None] {
            backends.set_others(1, priority);
        }
        assert_eq!(fakes[1].others(), [level, None]);
        assert_eq!(fakes[0].others(), []);
    }
}
