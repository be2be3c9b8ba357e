//! A controller that does what tests say.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_device::act::UndoError;
use gpreempt_device::controller::{
    AdoptError, Controller, DeviceName, Note, Numbering, Rescanning, UnadoptedProcesses,
};
use gpreempt_device::process::ProcessKey;

/// A clone is the same one, so that a test keeps a hand on it.
#[derive(Clone, Debug)]
pub(crate) struct Fake(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    numbering: Numbering,
    events: VecDeque<Event>,
    notes: VecDeque<Note>,
    rings: BTreeMap<QueueId, RingView>,
    commands: Vec<Command>,
    others: Vec<Option<Priority>>,
    rescan: Option<std::time::Duration>,
    adopted: Vec<(TaskId, ProcessKey)>,
    released: Vec<TaskId>,
}

impl Fake {
    pub(crate) fn new(index: u16) -> Self {
        Self(Rc::new(RefCell::new(State {
            numbering: Numbering::of(index),
            events: VecDeque::new(),
            notes: VecDeque::new(),
            rings: BTreeMap::new(),
            commands: Vec::new(),
            others: Vec::new(),
            rescan: None,
            adopted: Vec::new(),
            released: Vec::new(),
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
        match command {
            Command::Preempt { queue, .. } => state.events.push_back(Event::Preempted { queue }),
            Command::Resume { queue } => state.events.push_back(Event::Resumed { queue }),
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => {}
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

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError> {
        self.0.borrow_mut().adopted.push((task, process));
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        self.0.borrow_mut().released.push(task);
    }

    fn users(&mut self) -> Vec<ProcessKey> {
        Vec::new()
    }

    fn devices(&self) -> Vec<DeviceName> {
        vec![DeviceName { id: self.0.borrow().numbering.device(0), uuid: "FAKE-0".to_owned() }]
    }

    fn uuids_of(&self, _process: ProcessKey) -> Vec<String> {
        Vec::new()
    }

    fn queues_of(&self, _task: TaskId) -> Vec<QueueId> {
        Vec::new()
    }

    fn poll_note(&mut self) -> Option<Note> {
        self.0.borrow_mut().notes.pop_front()
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
    fn set_others(&mut self, priority: Option<Priority>) {
        self.0.borrow_mut().others.push(priority);
    }
}

impl Rescanning for Fake {
    fn set_rescan(&mut self, every: std::time::Duration) {
        self.0.borrow_mut().rescan = Some(every);
    }
}
