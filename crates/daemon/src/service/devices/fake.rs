//! A controller for tests: events, rings and commands are in the hands of the test.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_device::change::UndoError;
use gpreempt_device::controller::{
    AdoptError, Controller, ControllerReport, DeviceName, DeviceSearch, Numbering, Rescanning,
    UnadoptedProcesses,
};
use gpreempt_device::process::ProcessKey;

/// A clone shares the state, so that a test keeps access to it.
#[derive(Clone, Debug)]
pub(crate) struct Fake(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    numbering: Numbering,
    events: VecDeque<Event>,
    rings: BTreeMap<QueueId, RingView>,
    commands: Vec<Command>,
    others: Vec<Option<Priority>>,
    rescan: Option<std::time::Duration>,
}

impl Fake {
    pub(crate) fn new(index: u16) -> Self {
        Self(Rc::new(RefCell::new(State {
            numbering: Numbering::of(index),
            events: VecDeque::new(),
            rings: BTreeMap::new(),
            commands: Vec::new(),
            others: Vec::new(),
            rescan: None,
        })))
    }

    pub(crate) fn tell(&self, event: Event) {
        self.0.borrow_mut().events.push_back(event);
    }

    pub(crate) fn set_ring(&self, queue: QueueId, ring: RingView) {
        self.0.borrow_mut().rings.insert(queue, ring);
    }

    pub(crate) fn commands(&self) -> Vec<Command> {
        self.0.borrow().commands.clone()
    }

    pub(crate) fn rescan(&self) -> Option<std::time::Duration> {
        self.0.borrow().rescan
    }

    pub(crate) fn others(&self) -> Vec<Option<Priority>> {
        self.0.borrow().others.clone()
    }
}

impl Backend for Fake {
    fn submit(&mut self, command: Command) {
        let mut state = self.0.borrow_mut();
        state.commands.push(command);
        if let Command::Preempt { queue, .. } = command {
            state.events.push_back(Event::Preempted { queue });
        } else if let Command::Resume { queue } = command {
            state.events.push_back(Event::Resumed { queue });
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        self.0.borrow().rings.get(&queue).copied()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.0.borrow_mut().events.pop_front()
    }
}

impl Controller for Fake {
    fn kind(&self) -> &'static str {
        "fake"
    }

    fn adopt(&mut self, _task: TaskId, _process: ProcessKey) -> Result<(), AdoptError> {
        Ok(())
    }

    fn release(&mut self, _task: TaskId) {}

    fn users(&mut self) -> Vec<ProcessKey> {
        Vec::new()
    }

    fn devices(&self) -> Vec<DeviceName> {
        vec![DeviceName { id: self.0.borrow().numbering.device(0), uuid: "FAKE-0".to_owned() }]
    }

    fn device_search(&self, _process: ProcessKey) -> DeviceSearch {
        Box::new(Vec::new)
    }

    fn queues_of(&self, _task: TaskId) -> Vec<QueueId> {
        Vec::new()
    }

    fn poll_report(&mut self) -> Option<ControllerReport> {
        None
    }

    fn release_all(&mut self) -> Result<(), UndoError> {
        Ok(())
    }

    fn unadopted(&mut self) -> Option<&mut dyn UnadoptedProcesses> {
        Some(self)
    }

    fn rescanning(&mut self) -> Option<&mut dyn Rescanning> {
        Some(self)
    }
}

impl UnadoptedProcesses for Fake {
    fn set_unmanaged(&mut self, priority: Option<Priority>) {
        self.0.borrow_mut().others.push(priority);
    }
}

impl Rescanning for Fake {
    fn set_rescan(&mut self, every: std::time::Duration) {
        self.0.borrow_mut().rescan = Some(every);
    }
}
