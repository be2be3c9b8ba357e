//! All controllers of the machine as one backend of the scheduler.
//!
//! [`Backends`] routes a command to the controller that has the queue, and events of controllers
//! and of the loop to the scheduler. It decides nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;
use gpreempt_device::change::UndoError;
use gpreempt_device::controller::{
    AdoptError, ControlLimit, Controller, ControllerReport, DeviceName, DeviceSearch, HintSource,
    HoldRecord, HoldStatus, StopMethodInUse,
};
use gpreempt_device::eviction::EvictDevice;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;

use super::queue_quota::QueueQuota;
use crate::service::telemetry::gauges::Gauges;

/// Events kept for followers between two iterations of the loop.
const SEEN_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Backends {
    controllers: Vec<Box<dyn Controller>>,
    /// The controller and the task of each queue, recorded from the events that pass through.
    owners: BTreeMap<QueueId, (usize, TaskId)>,
    /// Events that the loop itself adds.
    own: VecDeque<Event>,
    /// Events that passed through, for followers.
    seen: VecDeque<Event>,
    /// When each queue was last given a command, for followers.
    commanded: BTreeMap<QueueId, u64>,
    pub(crate) is_followed: bool,
    /// Why devices of this machine have no controller, a sentence each.
    pub(crate) uncontrolled: Vec<String>,
    /// The priority of each controller's placeholder task for unmanaged processes.
    unmanaged: BTreeMap<usize, Priority>,
    pub(crate) quota: QueueQuota,
    pub(crate) gauges: Gauges,
}

impl Backends {
    /// Starts to read what the devices count and measure themselves.
    pub(crate) fn start_gauges(&mut self) -> std::io::Result<()> {
        let gauges = self.controllers.iter().filter_map(|controller| controller.gauge());
        self.gauges = Gauges::start(gauges.collect())?;
        Ok(())
    }

    pub(crate) fn push(&mut self, controller: Box<dyn Controller>) {
        self.controllers.push(controller);
    }

    pub(crate) fn len(&self) -> usize {
        self.controllers.len()
    }

    /// Adds an event for the scheduler's next step. For a hint all rings are read at once, and
    /// controllers that read hint pages in their own threads do so now.
    pub(crate) fn push_event(&mut self, event: Event) {
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
        (task, uid): (TaskId, u32),
        process: ProcessKey,
    ) -> Result<(), AdoptError> {
        self.quota.add_task(task, uid);
        match self.controllers.get_mut(controller) {
            Some(controller) => controller.adopt(task, process),
            None => Err(AdoptError::Unseen("there is no such controller".to_owned())),
        }
    }

    pub(crate) fn release(&mut self, controller: usize, task: TaskId) {
        self.owners.retain(|_, owner| *owner != (controller, task));
        self.quota.remove_task(task);
        if let Some(controller) = self.controllers.get_mut(controller) {
            controller.release(task);
        }
    }

    /// Gives the hint page of a task to controllers whose threads place holds from hints.
    pub(crate) fn watch_hints(&mut self, task: TaskId, sight: &Weak<dyn HintSource>) {
        for watching in self.controllers.iter_mut().filter_map(|c| c.hint_watching()) {
            watching.watch_hints(task, Weak::clone(sight));
        }
    }

    /// Sets the interval in which controllers search for processes that no event reports.
    pub(crate) fn set_rescan(&mut self, every: Duration) {
        let every = std::time::Duration::from_nanos(every.as_nanos());
        for rescanning in self.controllers.iter_mut().filter_map(|c| c.rescanning()) {
            rescanning.set_rescan(every);
        }
    }

    /// Adds, changes or removes the placeholder task for unmanaged processes of a controller.
    pub(crate) fn set_unmanaged(&mut self, controller: usize, priority: Option<Priority>) {
        if self.unmanaged.get(&controller).copied() == priority {
            return;
        }
        match priority {
            Some(priority) => self.unmanaged.insert(controller, priority),
            None => self.unmanaged.remove(&controller),
        };
        let controller = self.controllers.get_mut(controller);
        if let Some(unadopted) = controller.and_then(|controller| controller.unadopted()) {
            unadopted.set_unmanaged(priority);
        }
    }

    /// The next note, and the controller that it is from.
    pub(crate) fn poll_report(&mut self) -> Option<(usize, ControllerReport)> {
        let next = |(index, controller): (usize, &mut Box<dyn Controller>)| {
            Some((index, controller.poll_report()?))
        };
        self.controllers.iter_mut().enumerate().find_map(next)
    }

    pub(crate) fn take_seen(&mut self) -> VecDeque<Event> {
        std::mem::take(&mut self.seen)
    }

    pub(crate) fn take_commanded(&mut self) -> BTreeMap<QueueId, u64> {
        std::mem::take(&mut self.commanded)
    }

    pub(crate) fn hold_of(&self, queue: QueueId) -> Option<HoldStatus> {
        self.controllers.iter().find_map(|c| c.hold_reporting()?.hold_of(queue))
    }

    /// How long holds took to be in force since the last call.
    pub(crate) fn take_hold_records(&self) -> Vec<(QueueId, Vec<HoldRecord>)> {
        let holding = self.controllers.iter().filter_map(|c| c.hold_reporting());
        holding.flat_map(|holding| holding.take_hold_records()).collect()
    }

    /// What the controllers cannot do for a task's process, if anything.
    pub(crate) fn limit_of(&self, task: TaskId) -> Option<ControlLimit> {
        self.controllers.iter().find_map(|c| c.stop_method_reporting()?.limit_of(task))
    }

    pub(crate) fn set_priority(&mut self, task: TaskId, priority: Priority) {
        for forwarding in self.controllers.iter_mut().filter_map(|c| c.priority_forwarding()) {
            forwarding.set_priority(task, priority);
        }
    }

    /// Sets a queue's own priority; `None` restores that of its task.
    pub(crate) fn set_queue_priority(&mut self, queue: QueueId, priority: Option<Priority>) {
        let owner = self.owner_mut(queue);
        if let Some(forwarding) = owner.and_then(|owner| owner.priority_forwarding()) {
            forwarding.set_queue_priority(queue, priority);
        }
    }

    pub(crate) fn way_of(&self, task: TaskId) -> Option<StopMethodInUse> {
        self.controllers.iter().find_map(|c| c.stop_method_reporting()?.stop_method_of(task))
    }

    pub(crate) fn way(&self, device: DeviceId) -> Option<StopMethodInUse> {
        let is_here = |name: &DeviceName| name.id == device;
        let owner = self.controllers.iter().find(|c| c.devices().iter().any(is_here))?;
        Some(owner.stop_method_reporting()?.stop_method())
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

    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        self.controllers.iter().map(|controller| controller.kind()).collect()
    }

    pub(crate) fn uuid(&self, device: DeviceId) -> Option<String> {
        self.devices().into_iter().find(|(_, name)| name.id == device).map(|(_, name)| name.uuid)
    }

    /// The searches for the devices on which controllers find a process.
    pub(crate) fn device_searches(&self, process: ProcessKey) -> Vec<DeviceSearch> {
        self.controllers.iter().map(|controller| controller.device_search(process)).collect()
    }

    /// Through which driver the memory of processes of a controller moves, if it can.
    pub(crate) fn evict_device(&self, controller: usize) -> Option<EvictDevice> {
        self.controllers.get(controller)?.evict_device()
    }

    /// The controller of the devices of that driver.
    pub(crate) fn controller_of(&self, device: &EvictDevice) -> Option<usize> {
        self.controllers.iter().position(|known| known.evict_device().as_ref() == Some(device))
    }

    pub(crate) fn kind_of(&self, queue: QueueId) -> Option<&'static str> {
        self.owner(queue).map(|controller| controller.kind())
    }

    /// The driver's number of a queue, where it has one.
    pub(crate) fn native(&self, queue: QueueId) -> Option<u64> {
        self.owner(queue)?.numbered_queues()?.native(queue)
    }

    /// Whether the device of a queue can stop fetching from its ring.
    pub(crate) fn can_park(&self, queue: QueueId) -> bool {
        let parking = self.owner(queue).and_then(Controller::parking);
        parking.is_some_and(|parking| parking.can_park(queue))
    }

    pub(crate) fn park(&mut self, queue: QueueId, parked: bool) {
        if let Some(parking) = self.owner_mut(queue).and_then(|owner| owner.parking_mut()) {
            parking.park(queue, parked);
        }
    }

    /// Whether a parked queue fetches nothing and everything that it fetched has finished.
    pub(crate) fn is_at_rest(&self, queue: QueueId) -> bool {
        let parking = self.owner(queue).and_then(Controller::parking);
        parking.is_some_and(|parking| parking.is_at_rest(queue))
    }

    /// Reverts the changes of every controller, also after one of them failed.
    pub(crate) fn release_all(&mut self) -> Result<(), UndoError> {
        let release = |result: Result<(), UndoError>, controller: &mut Box<dyn Controller>| {
            let released = controller.release_all();
            result.and(released)
        };
        self.controllers.iter_mut().fold(Ok(()), release)
    }

    fn owner(&self, queue: QueueId) -> Option<&dyn Controller> {
        let (controller, _) = *self.owners.get(&queue)?;
        self.controllers.get(controller).map(AsRef::as_ref)
    }

    fn owner_mut(&mut self, queue: QueueId) -> Option<&mut Box<dyn Controller>> {
        let (controller, _) = *self.owners.get(&queue)?;
        self.controllers.get_mut(controller)
    }

    /// Records the owners of queues, and keeps events of queues for followers.
    fn record(&mut self, controller: usize, event: &Event) {
        if let Event::QueueAppeared { queue, task, .. } = *event {
            self.owners.insert(queue, (controller, task));
        } else if let Event::QueueVanished { queue } = *event {
            self.owners.remove(&queue);
        } else if let Event::TaskVanished { task } = *event {
            self.owners.retain(|_, owner| owner.1 != task);
        } else if !matches!(event, Event::Preempted { .. } | Event::Resumed { .. }) {
            return;
        }
        if self.is_followed && self.seen.len() < SEEN_MAX {
            self.seen.push_back(*event);
        }
    }
}

impl Backend for Backends {
    fn submit(&mut self, command: Command) {
        // Read before the command is given: the device's thread may run as soon as it is woken.
        let given_ns = monotonic_ns();
        let completion = match command {
            Command::Preempt { queue, .. } => Some(Event::Preempted { queue }),
            Command::Resume { queue } => Some(Event::Resumed { queue }),
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::MeasureSlowdown { .. }
            | Command::SetHardwarePriority { .. } => None,
        };
        if let Some(owner) = self.owner_mut(command.queue()) {
            owner.submit(command);
            if self.is_followed && completion.is_some() {
                self.commanded.insert(command.queue(), given_ns);
            }
        } else {
            // The queue no longer exists: the command counts as carried out.
            self.own.extend(completion);
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        self.owner_mut(queue)?.observe(queue)
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.own.pop_front() {
            return Some(event);
        }
        let quota = &mut self.quota;
        let next = |(index, controller): (usize, &mut Box<dyn Controller>)| {
            std::iter::from_fn(|| controller.poll_event())
                .find_map(|event| Some((index, quota.pass(index, event)?)))
        };
        let found = self.controllers.iter_mut().enumerate().find_map(next);
        // Last of all, because the end of another queue may be among the events.
        let (index, event) = found.or_else(|| self.quota.next_admitted())?;
        self.record(index, &event);
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
    fn commands_and_readings_go_to_the_controller_of_the_queue() {
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
    fn a_command_for_a_vanished_queue_counts_as_carried_out() {
        let (mut backends, fakes) = two();
        while backends.poll_event().is_some() {}
        backends.release(0, TaskId(10));
        let queue = QueueId(10);
        backends.submit(Command::Resume { queue });
        assert_eq!(backends.poll_event(), Some(Event::Resumed { queue }));
        assert_eq!(fakes[0].commands(), []);
    }

    #[test]
    fn events_of_the_loop_come_first_and_events_of_queues_are_kept_for_followers() {
        let (mut backends, _fakes) = two();
        backends.push_event(Event::HintEnd { task: TaskId(1) });
        assert_eq!(backends.poll_event(), Some(Event::HintEnd { task: TaskId(1) }));
        while backends.poll_event().is_some() {}
        assert_eq!(backends.take_seen(), [appeared(10, 10, 0), appeared(20, 20, 0)]);
        assert_eq!(backends.take_seen(), []);
    }

    #[test]
    fn every_controller_gets_the_rescan_interval() {
        let (mut backends, fakes) = two();
        backends.set_rescan(Duration::from_millis(300));
        let set = fakes.map(|fake| fake.rescan());
        assert_eq!(set, [Some(std::time::Duration::from_millis(300)); 2]);
    }

    #[test]
    fn an_unchanged_priority_of_unmanaged_processes_is_not_set_again() {
        let (mut backends, fakes) = two();
        let level = Priority::new(7);
        for priority in [level, level, None, None] {
            backends.set_unmanaged(1, priority);
        }
        assert_eq!(fakes[1].others(), [level, None]);
        assert_eq!(fakes[0].others(), []);
    }
}
