//! Control calls: one worker for each device, one call at a time, each with its cost.

use std::collections::VecDeque;

use gpreempt_core::backend::Command;
use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use crate::event_queue::SimEvent;
use crate::gpu::Notice;
use crate::model::MachineKind;
use crate::sim_backend::SimBackend;

#[derive(Debug, Default)]
pub(crate) struct Worker {
    waiting: VecDeque<Command>,
    current: Option<Call>,
    epoch: u64,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    command: Command,
    stage: Stage,
    /// The scheduler that made the call is dead: its end is not reported.
    orphan: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Travels,
    /// The hardware works on it.
    Works,
    /// The hardware will not answer.
    Fails,
}

impl Worker {
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// The scheduler that made the calls is dead: those that have not begun are dropped.
    pub(crate) fn orphan(&mut self) {
        self.waiting.clear();
        if let Some(call) = self.current.as_mut() {
            call.orphan = true;
        }
    }
}

impl SimBackend {
    /// Passes a command to the worker of its device.
    pub(crate) fn call(&mut self, device: usize, command: Command) {
        self.workers[device].waiting.push_back(command);
        self.next_call(device);
    }

    fn next_call(&mut self, device: usize) {
        if self.workers[device].current.is_some() {
            return;
        }
        let Some(command) = self.workers[device].waiting.pop_front() else { return };
        let cost = self.cost_of(&command);
        let worker = &mut self.workers[device];
        worker.epoch += 1;
        worker.current = Some(Call { command, stage: Stage::Travels, orphan: false });
        let epoch = worker.epoch;
        self.gpu.event_queue.after(cost, SimEvent::CallReaches { device, epoch });
    }

    fn cost_of(&self, command: &Command) -> Duration {
        // The reset design has no call; its steps have their own costs.
        if self.gpu.machine == MachineKind::Reset {
            return Duration::ZERO;
        }
        let control = &self.gpu.model.control;
        match command {
            Command::Preempt { .. } => control.preempt,
            Command::Resume { .. } => control.resume,
            Command::SetSlice { .. } => control.set_slice,
            Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::MeasureSlowdown { .. }
            | Command::SetHardwarePriority { .. } => Duration::ZERO,
        }
    }

    /// A call has reached the hardware, or has timed out.
    pub(crate) fn call_reaches(&mut self, device: usize, epoch: u64) {
        let worker = &mut self.workers[device];
        let Some(call) = worker.current.as_mut().filter(|_| worker.epoch == epoch) else { return };
        let (command, stage) = (call.command, call.stage);
        let queue = command.queue();
        if !self.gpu.queues.contains_key(&queue) {
            self.end_call(device, failed(&command, Fault::Gone));
            return;
        }
        if stage == Stage::Fails {
            self.end_call(device, failed(&command, Fault::TimedOut));
            return;
        }
        call.stage = Stage::Works;
        match command {
            Command::Preempt { .. } if self.preempts_fail() => {
                if let Some(call) = self.workers[device].current.as_mut() {
                    call.stage = Stage::Fails;
                }
                // The hardware may have carried it out, and only the answer was lost.
                if self.gpu.machine != MachineKind::Reset && self.chance.chance(1, 2) {
                    self.gpu.stop(queue);
                }
                let timeout = self.preempt_timeout;
                self.gpu.event_queue.after(timeout, SimEvent::CallReaches { device, epoch });
            }
            Command::Preempt { .. } => self.gpu.stop(queue),
            Command::Resume { .. } => self.gpu.resume(queue),
            Command::SetSlice { slice, .. } => {
                self.gpu.set_slice(queue, slice);
                self.end_call(device, None);
            }
            Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::MeasureSlowdown { .. }
            | Command::SetHardwarePriority { .. } => self.end_call(device, None),
        }
        self.handle_notices();
    }

    /// Ends the calls that waited for what the hardware finished.
    pub(crate) fn handle_notices(&mut self) {
        while let Some(notice) = self.gpu.notices.pop_front() {
            let (queue, event) = match notice {
                Notice::Stopped(queue) => (queue, Event::Preempted { queue }),
                Notice::Resumed(queue) => (queue, Event::Resumed { queue }),
                Notice::StepEnded(process, result) => {
                    self.step_ended(process, result);
                    continue;
                }
            };
            let awaited = self.workers.iter().position(|worker| {
                worker.current.as_ref().is_some_and(|call| {
                    call.stage == Stage::Works
                        && call.command.queue() == queue
                        && matches!(
                            (call.command, notice),
                            (Command::Preempt { .. }, Notice::Stopped(_))
                                | (Command::Resume { .. }, Notice::Resumed(_))
                        )
                })
            });
            // Other notices result from the keeper.
            if let Some(device) = awaited {
                self.end_call(device, Some(event));
            }
        }
    }

    /// Whether a call for a queue has not ended.
    pub(crate) fn has_calls(&self, queue: QueueId) -> bool {
        self.workers.iter().any(|worker| {
            let current = worker.current.iter().map(|call| &call.command);
            current.chain(&worker.waiting).any(|command| command.queue() == queue)
        })
    }

    /// Ends the calls that wait for a queue of a process that is gone.
    pub(crate) fn abandon_calls(&mut self, queue: QueueId) {
        for device in 0..self.workers.len() {
            let works = self.workers[device]
                .current
                .as_ref()
                .is_some_and(|call| call.stage == Stage::Works && call.command.queue() == queue);
            if works {
                let command = self.workers[device].current.map(|call| call.command);
                let event = command.and_then(|command| failed(&command, Fault::Gone));
                self.end_call(device, event);
            }
        }
    }

    fn end_call(&mut self, device: usize, event: Option<Event>) {
        let Some(call) = self.workers[device].current.take() else { return };
        if let Some(event) = event.filter(|_| !call.orphan) {
            self.report(event);
        }
        self.next_call(device);
    }
}

/// The event that reports the failure of a preempt or resume.
pub(crate) fn failed(command: &Command, fault: Fault) -> Option<Event> {
    match *command {
        Command::Preempt { queue, .. } => Some(Event::PreemptFailed { queue, fault }),
        Command::Resume { queue } => Some(Event::ResumeFailed { queue, fault }),
        Command::SetSlice { .. }
        | Command::PermitHold { .. }
        | Command::ForbidHold { .. }
        | Command::MeasureSlowdown { .. }
        | Command::SetHardwarePriority { .. } => None,
    }
}
