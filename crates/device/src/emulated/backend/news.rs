//! What watcher and workers say, and what follows from it.

use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;
use gpreempt_wire::emulator::ring_page::QueuePage;
use gpreempt_wire::emulator::{DeviceInfo, QueueInfo};

use super::super::report::Report;
use super::super::target::{Place, Target};
use super::super::worker::{Job, Worker};
use super::EmulatedBackend;
use crate::controller::{Controller, Note};
use crate::process::ProcessKey;

impl EmulatedBackend {
    pub(super) fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => self.take_event(event),
                Report::Problem(problem) => self.notes.push_back(Note::Problem(problem)),
                Report::Found { instance, devices } => self.take_emulator(instance, devices),
                Report::Lost(problem) => self.take_loss(&problem),
                Report::Unusable(why) => {
                    let problem = format!("{} cannot be used: {why}", self.name());
                    self.notes.push_back(Note::Problem(problem));
                }
                Report::Connected { client, process } => self.take_client(client, process),
                Report::Disconnected { client } => drop(self.clients.remove(&client)),
                Report::Opened { info, process, page } => self.take_queue(&info, process, *page),
                Report::Parked { queue, is_parked } => {
                    if let Some(target) = self.queues.get_mut(&queue) {
                        target.set_parked(is_parked);
                    }
                }
                Report::Closed { queue, is_faulted } => self.take_end(queue, is_faulted),
                Report::Settled => {
                    self.unsettled = self.unsettled.saturating_sub(1);
                    if self.unsettled == 0 {
                        self.watcher.connect();
                    }
                }
                Report::Ended(process) => {
                    if let Some(task) = self.task_of(process) {
                        self.release(task);
                        self.notes.push_back(Note::Ended(task));
                    }
                }
            }
        }
    }

    fn take_event(&mut self, event: Event) {
        // Whether a queue is off also says what can be known of its ring.
        if let Event::Preempted { queue } | Event::ResumeFailed { queue, .. } = event
            && let Some(target) = self.target(queue)
        {
            target.set_off();
        }
        self.events.push_back(event);
    }

    fn take_emulator(&mut self, instance: u64, devices: Vec<DeviceInfo>) {
        self.notes.push_back(Note::Solved(self.name()));
        self.instance = instance;
        self.devices = devices;
        while self.workers.len() < self.devices.len() {
            let (ledger, reports) = (self.ledger.clone(), self.reports.clone());
            match Worker::start(self.socket.clone(), ledger, reports) {
                Ok(worker) => self.workers.push(worker),
                Err(error) => {
                    let problem = format!("some emulated devices are left alone: {error}");
                    self.notes.push_back(Note::Problem(problem));
                    self.devices.truncate(self.workers.len());
                }
            }
        }
        for (index, info) in self.devices.iter().enumerate() {
            let (device, capabilities) = (self.numbering.device(index), info.capabilities);
            self.events.push_back(Event::DeviceAppeared { device, capabilities });
        }
    }

    /// Everything is gone. What was done to it is taken back all the same: perhaps only the
    /// connection has ended.
    fn take_loss(&mut self, problem: &str) {
        let problem = format!("{} is gone: {problem}; it is looked for from now on", self.name());
        self.notes.push_back(Note::Problem(problem));
        let mut queues = std::mem::take(&mut self.queues);
        for target in queues.values_mut() {
            self.put_back(target);
        }
        self.numbers.clear();
        self.clients.clear();
        for index in 0..self.devices.len() {
            let device = self.numbering.device(index);
            self.events.push_back(Event::DeviceVanished { device });
        }
        self.devices.clear();
        for worker in &self.workers {
            worker.give(Job::Settle);
        }
        self.unsettled = self.workers.len();
        if self.unsettled == 0 {
            self.watcher.connect();
        }
    }

    /// How every problem begins that is solved when there is an emulator.
    fn name(&self) -> String {
        format!("the emulated GPU at {}", self.socket.display())
    }

    fn take_client(&mut self, client: u64, process: ProcessKey) {
        let is_news = !self.clients.values().any(|known| *known == process);
        self.clients.insert(client, process);
        if is_news && self.task_of(process).is_none() {
            self.notes.push_back(Note::Appeared(process));
        }
    }

    fn take_queue(&mut self, info: &QueueInfo, process: ProcessKey, page: QueuePage) {
        let device = usize::try_from(info.device.0).ok();
        let Some((device, about)) = device.and_then(|at| Some((at, self.devices.get(at)?))) else {
            return;
        };
        let (socket, instance, queue) = (self.socket.clone(), self.instance, info.queue);
        let place = Place { socket, instance, queue, device };
        let target = Target::new(place, info, process, page, about.can_tell_running);
        self.queues.insert(queue.0, target);
        if let Some(task) = self.task_of(process) {
            self.announce(task, queue.0);
            self.note_change(task, 1, 0);
        } else if self.notes.back() != Some(&Note::Appeared(process)) {
            self.notes.push_back(Note::Appeared(process));
        }
    }

    fn take_end(&mut self, number: u64, is_faulted: bool) {
        let Some(mut target) = self.queues.remove(&number) else { return };
        if is_faulted {
            let process = target.process();
            self.notes.push_back(Note::Problem(format!(
                "process {process}: the emulated GPU gave up a queue: something in its ring was \
                 wrong"
            )));
        }
        if let Some((task, queue)) = target.owner() {
            self.numbers.remove(&queue);
            self.events.push_back(Event::QueueVanished { queue });
            self.note_change(task, 0, 1);
        }
        // There is nothing left of it but what the journal says.
        self.put_back(&mut target);
    }

    /// Says that a task's queues changed, together with what was said before and not yet heard.
    fn note_change(&mut self, task: TaskId, more: usize, fewer: usize) {
        if let Some(Note::Regrouped { task: last, appeared, vanished }) = self.notes.back_mut()
            && *last == task
        {
            *appeared += more;
            *vanished += fewer;
            return;
        }
        self.notes.push_back(Note::Regrouped { task, appeared: more, vanished: fewer });
    }
}
