//! Control calls: one worker for each device, one call at a time, each with its cost.

use std::collections::VecDeque;

use gpreempt_core::command::Command;
use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use crate::agenda::What;
use crate::gpu::Notice;
use crate::model::MachineKind;
use crate::rig::Rig;

/// The worker of one device.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    waiting: VecDeque<Command>,
    current: Option<Call>,
    epoch: u64,
}

/// The call a worker is in.
#[derive(Clone, Copy, Debug)]
struct Call {
    command: Command,
    stage: Stage,
    /// Whoever made the call is dead: nobody hears how it ends.
    orphan: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// On its way to the hardware.
    Travels,
    /// The hardware is at it.
    Works,
    /// The hardware will not answer.
    Fails,
}

impl Worker {
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Whoever made the calls is dead: what has not begun never will.
    pub(crate) fn orphan(&mut self) {
        self.waiting.clear();
        if let Some(call) = self.current.as_mut() {
            call.orphan = true;
        }
    }
}

impl Rig {
    /// Hands a command to the worker of its device.
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
        self.gpu.agenda.after(cost, What::CallReaches { device, epoch });
    }

    fn cost_of(&self, command: &Command) -> Duration {
        // The papers' design has no call: its steps have costs of their own.
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
            | Command::SetHardwarePriority { .. } => Duration::ZERO,
        }
    }

    /// A call has reached the hardware, or has given up on it.
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
                // The hardware may have done it all the same, and only the answer got lost.
                if self.gpu.machine != MachineKind::Reset && self.chance.chance(1, 2) {
                    self.gpu.stop(queue);
                }
                let timeout = self.preempt_timeout;
                self.gpu.agenda.after(timeout, What::CallReaches { device, epoch });
            }
            Command::Preempt { .. } => self.gpu.stop(queue),
            Command::Resume { .. } => self.gpu.resume(queue),
            Command::SetSlice { slice, .. } => {
                self.gpu.set_slice(queue, slice);
                self.end_call(device, None);
            }
            Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => self.end_call(device, None),
        }
        self.take_notices();
    }

    /// What the hardware finished ends the call that waited for it.
    pub(crate) fn take_notices(&mut self) {
        while let Some(notice) = self.gpu.notices.pop_front() {
            let (queue, event) = match notice {
                Notice::Stopped(queue) => (queue, Event::Preempted { queue }),
                Notice::Resumed(queue) => (queue, Event::Resumed { queue }),
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
            // A notice that nobody waits for follows from the keeper's work.
            if let Some(device) = awaited {
                self.end_call(device, Some(event));
            }
        }
    }

    /// A process is gone: its device's worker need not wait for its queues any longer.
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

fn failed(command: &Command, fault: Fault) -> Option<Event> {
    match *command {
        Command::Preempt { queue, .. } => Some(Event::PreemptFailed { queue, fault }),
        Command::Resume { queue } => Some(Event::ResumeFailed { queue, fault }),
        Command::SetSlice { .. }
        | Command::PermitHold { .. }
        | Command::ForbidHold { .. }
        | Command::SetHardwarePriority { .. } => None,
    }
}
