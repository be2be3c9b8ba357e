//! Control calls: each device carries out one at a time, and each has its cost.

use std::collections::{BTreeSet, VecDeque};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use super::{ExternalGpu, ExternalGpuEvent, MemoryId};
use crate::event_queue::SimEvent;
use crate::gpu::Notice;
use crate::ring::RingPage;

/// The owner's identifier of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A control call for one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Preempt, saving the running kernel.
    Stop,
    Resume,
    /// Stop fetching; fetched launches finish.
    Park,
    Unpark,
    /// Set the slice; none restores the default.
    SetSlice(Option<Duration>),
}

#[derive(Debug, Default)]
pub(super) struct CallQueue {
    waiting: VecDeque<(CallId, DeviceCall)>,
    pub(super) current: Option<CurrentCall>,
    epoch: u64,
}

#[derive(Clone, Debug)]
pub(super) enum DeviceCall {
    Queue(QueueId, Call),
    /// Replace the runlist: the queues that are on afterwards.
    Remap(BTreeSet<QueueId>),
}

#[derive(Clone, Debug)]
pub(super) struct CurrentCall {
    pub(super) id: CallId,
    pub(super) order: DeviceCall,
    /// Whether the hardware works on it.
    pub(super) works: bool,
    /// Of a remap: the queues that are not off yet.
    pub(super) awaited: BTreeSet<QueueId>,
}

impl CurrentCall {
    fn awaits(&self, queue: QueueId, awaited: Call) -> bool {
        let DeviceCall::Queue(own, call) = self.order else { return false };
        self.works && own == queue && call == awaited
    }
}

impl ExternalGpu {
    /// Starts a call, whose end is reported.
    pub fn call(&mut self, id: CallId, queue: QueueId, call: Call) {
        let Some(device) = self.gpu.queues.get(&queue).map(|queue| queue.device) else {
            self.events.push_back(ExternalGpuEvent::Gone(id));
            return;
        };
        self.enqueue_call(device, id, DeviceCall::Queue(queue, call));
    }

    pub(super) fn enqueue_call(&mut self, device: usize, id: CallId, order: DeviceCall) {
        self.calls[device].waiting.push_back((id, order));
        self.next_call(device);
    }

    /// Drops a call of a client that is gone, if it has not begun.
    pub fn forget_call(&mut self, id: CallId) {
        for calls in &mut self.calls {
            calls.waiting.retain(|(other, ..)| *other != id);
        }
    }

    fn next_call(&mut self, device: usize) {
        let calls = &mut self.calls[device];
        if calls.current.is_some() {
            return;
        }
        let Some((id, order)) = calls.waiting.pop_front() else { return };
        calls.epoch += 1;
        let costs = &self.gpu.model.control;
        let cost = match &order {
            DeviceCall::Queue(_, Call::Stop) | DeviceCall::Remap(_) => costs.preempt,
            DeviceCall::Queue(_, Call::Resume) => costs.resume,
            DeviceCall::Queue(_, Call::SetSlice(_) | Call::Park | Call::Unpark) => costs.set_slice,
        };
        calls.current = Some(CurrentCall { id, order, works: false, awaited: BTreeSet::new() });
        self.reach_after(device, cost);
    }

    /// The current call reaches the hardware, or its next step, after that time.
    pub(super) fn reach_after(&mut self, device: usize, cost: Duration) {
        let epoch = self.calls[device].epoch;
        self.gpu.event_queue.after(cost, SimEvent::CallReaches { device, epoch });
    }

    pub(super) fn call_reaches(&mut self, device: usize, epoch: u64) {
        let calls = &mut self.calls[device];
        let Some(current) = calls.current.as_mut().filter(|_| calls.epoch == epoch) else { return };
        let was_working = std::mem::replace(&mut current.works, true);
        let id = current.id;
        let (queue, call) = match &current.order {
            DeviceCall::Queue(queue, call) => (*queue, *call),
            DeviceCall::Remap(_) if was_working => {
                self.resume_listed(device);
                self.end_call(device, ExternalGpuEvent::Done(id));
                return;
            }
            DeviceCall::Remap(_) => {
                self.preempt_all(device);
                return;
            }
        };
        match call {
            Call::Stop => self.gpu.stop(queue),
            Call::Resume => {
                // The client may have written packets without ringing the doorbell.
                if let Some(queue) = self.gpu.queues.get_mut(&queue) {
                    queue.ring.look();
                }
                self.gpu.resume(queue);
            }
            Call::Park | Call::Unpark => {
                self.gpu.park(queue, call == Call::Park);
                self.end_call(device, ExternalGpuEvent::Done(id));
            }
            Call::SetSlice(slice) => {
                self.gpu.set_slice(queue, slice);
                self.end_call(device, ExternalGpuEvent::Done(id));
            }
        }
    }

    /// Ends the calls that waited for what the hardware finished.
    pub(super) fn handle_notices(&mut self) {
        while let Some(notice) = self.gpu.notices.pop_front() {
            let (queue, awaited) = match notice {
                Notice::Stopped(queue) => (queue, Call::Stop),
                Notice::Resumed(queue) => (queue, Call::Resume),
                Notice::StepEnded(process, result) => {
                    self.end_step(process, result);
                    continue;
                }
            };
            if awaited == Call::Stop {
                self.note_off(queue);
            }
            let waits = |calls: &CallQueue| {
                calls.current.as_ref().is_some_and(|current| current.awaits(queue, awaited))
            };
            let device = self.calls.iter().position(waits);
            if let Some(device) = device
                && let Some(id) = self.calls[device].current.as_ref().map(|current| current.id)
            {
                self.end_call(device, ExternalGpuEvent::Done(id));
            }
        }
    }

    /// Ends the calls for a queue that is gone.
    pub(super) fn end_calls_of(&mut self, queue: QueueId) {
        let concerns =
            |order: &DeviceCall| matches!(order, DeviceCall::Queue(own, _) if *own == queue);
        for device in 0..self.calls.len() {
            let waiting = std::mem::take(&mut self.calls[device].waiting);
            for (id, order) in waiting {
                if concerns(&order) {
                    self.events.push_back(ExternalGpuEvent::Gone(id));
                } else {
                    self.calls[device].waiting.push_back((id, order));
                }
            }
            let current = self.calls[device].current.as_ref();
            if let Some(id) = current.filter(|c| concerns(&c.order)).map(|current| current.id) {
                self.end_call(device, ExternalGpuEvent::Gone(id));
            }
        }
        self.note_off(queue);
    }

    fn end_call(&mut self, device: usize, event: ExternalGpuEvent) {
        self.calls[device].current = None;
        self.events.push_back(event);
        self.next_call(device);
    }
}

impl ExternalGpu {
    /// Opens a queue that is off until it is resumed or is on the list of a remap.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn open_stopped_queue(
        &mut self,
        id: QueueId,
        device: usize,
        memory: MemoryId,
        page: Box<dyn RingPage>,
    ) {
        self.open_queue(id, device, memory, page);
        if let Some(queue) = self.gpu.queues.get_mut(&id) {
            queue.stopped = true;
        }
    }

    /// Preempts every queue of a device and then resumes those on the list, as a driver does that
    /// can only replace the whole runlist. Its end, when all are off and the list is read, is an
    /// event; waves are restored after that.
    pub fn remap(&mut self, id: CallId, device: usize, runlist: BTreeSet<QueueId>) {
        if device < self.calls.len() {
            self.enqueue_call(device, id, DeviceCall::Remap(runlist));
        } else {
            self.events.push_back(ExternalGpuEvent::Gone(id));
        }
    }

    /// The first half of a remap.
    pub(super) fn preempt_all(&mut self, device: usize) {
        let on = self.gpu.queues_where(|queue| queue.device == device && !queue.stopped);
        let awaited: BTreeSet<QueueId> = on.into_iter().collect();
        if let Some(current) = self.calls[device].current.as_mut() {
            current.awaited.clone_from(&awaited);
        }
        for &queue in &awaited {
            self.gpu.stop(queue);
        }
        if awaited.is_empty() {
            self.reach_after(device, self.gpu.model.control.resume);
        }
    }

    /// A queue is off, or gone: a remap continues after the last one.
    pub(super) fn note_off(&mut self, queue: QueueId) {
        for device in 0..self.calls.len() {
            let Some(current) = self.calls[device].current.as_mut() else { continue };
            if current.awaited.remove(&queue) && current.awaited.is_empty() {
                self.reach_after(device, self.gpu.model.control.resume);
            }
        }
    }

    /// The second half of a remap.
    pub(super) fn resume_listed(&mut self, device: usize) {
        let current = self.calls[device].current.as_ref();
        let Some(DeviceCall::Remap(runlist)) = current.map(|current| &current.order) else {
            return;
        };
        let is_here =
            |id: &&QueueId| self.gpu.queues.get(id).is_some_and(|queue| queue.device == device);
        let queues: Vec<QueueId> = runlist.iter().filter(is_here).copied().collect();
        for id in queues {
            // The client may have written packets without ringing the doorbell.
            if let Some(queue) = self.gpu.queues.get_mut(&id) {
                queue.ring.look();
            }
            self.gpu.resume(id);
        }
    }
}
