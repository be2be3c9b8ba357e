//! Control calls: each device carries out one at a time, and each has its cost.

use std::collections::{BTreeSet, VecDeque};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use super::{LiveEvent, LiveGpu};
use crate::agenda::What;
use crate::gpu::Notice;

/// What the owner calls a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Something that can be asked of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Take a queue off its device, in the middle of whatever it does.
    Stop,
    /// Let it go on.
    Resume,
    /// Fetch nothing more from its ring; what was fetched ends.
    Park,
    /// Fetch again.
    Unpark,
    /// Give it a slice; none is the one it came with.
    SetSlice(Option<Duration>),
}

/// The calls of one device.
#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: VecDeque<(CallId, Order)>,
    pub(super) current: Option<Current>,
    epoch: u64,
}

/// What a call is about.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// One queue.
    Queue(QueueId, Call),
    /// All of a device: those that are on afterwards.
    Remap(BTreeSet<QueueId>),
}

#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) id: CallId,
    pub(super) order: Order,
    /// Whether the hardware is at it.
    pub(super) works: bool,
    /// Of all of a device: those that are not off yet.
    pub(super) awaited: BTreeSet<QueueId>,
}

impl Current {
    /// Whether it waits for that queue to be stopped or resumed.
    fn awaits(&self, queue: QueueId, awaited: Call) -> bool {
        let Order::Queue(own, call) = self.order else { return false };
        self.works && own == queue && call == awaited
    }
}

impl LiveGpu {
    /// Begins a call. Its end is an event.
    pub fn call(&mut self, id: CallId, queue: QueueId, call: Call) {
        let Some(device) = self.gpu.queues.get(&queue).map(|queue| queue.device) else {
            self.events.push_back(LiveEvent::Gone(id));
            return;
        };
        self.order(device, id, Order::Queue(queue, call));
    }

    /// A call for a device comes behind those that wait.
    pub(super) fn order(&mut self, device: usize, id: CallId, order: Order) {
        self.calls[device].waiting.push_back((id, order));
        self.next_call(device);
    }

    /// Whoever made a call is gone: if it has not begun, it never will.
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
            Order::Queue(_, Call::Stop) | Order::Remap(_) => costs.preempt,
            Order::Queue(_, Call::Resume) => costs.resume,
            Order::Queue(_, Call::SetSlice(_) | Call::Park | Call::Unpark) => costs.set_slice,
        };
        calls.current = Some(Current { id, order, works: false, awaited: BTreeSet::new() });
        self.reach_after(device, cost);
    }

    /// The current call reaches the hardware, or its next step, after that time.
    pub(super) fn reach_after(&mut self, device: usize, cost: Duration) {
        let epoch = self.calls[device].epoch;
        self.gpu.agenda.after(cost, What::CallReaches { device, epoch });
    }

    /// A call has reached the hardware.
    pub(super) fn call_reaches(&mut self, device: usize, epoch: u64) {
        let calls = &mut self.calls[device];
        let Some(current) = calls.current.as_mut().filter(|_| calls.epoch == epoch) else { return };
        let was_at_it = std::mem::replace(&mut current.works, true);
        let id = current.id;
        let (queue, call) = match &current.order {
            Order::Queue(queue, call) => (*queue, *call),
            Order::Remap(_) if was_at_it => {
                self.map_again(device);
                self.end_call(device, LiveEvent::Done(id));
                return;
            }
            Order::Remap(_) => {
                self.take_all_off(device);
                return;
            }
        };
        match call {
            Call::Stop => self.gpu.stop(queue),
            Call::Resume => {
                // The client may have gone on writing without a doorbell.
                if let Some(queue) = self.gpu.queues.get_mut(&queue) {
                    queue.ring.look();
                }
                self.gpu.resume(queue);
            }
            Call::Park | Call::Unpark => {
                self.gpu.park(queue, call == Call::Park);
                self.end_call(device, LiveEvent::Done(id));
            }
            Call::SetSlice(slice) => {
                self.gpu.set_slice(queue, slice);
                self.end_call(device, LiveEvent::Done(id));
            }
        }
    }

    /// What the hardware finished ends the call that waited for it.
    pub(super) fn take_notices(&mut self) {
        while let Some(notice) = self.gpu.notices.pop_front() {
            let (queue, awaited) = match notice {
                Notice::Stopped(queue) => (queue, Call::Stop),
                Notice::Resumed(queue) => (queue, Call::Resume),
            };
            if awaited == Call::Stop {
                self.is_off(queue);
            }
            let waits = |calls: &Calls| {
                calls.current.as_ref().is_some_and(|current| current.awaits(queue, awaited))
            };
            let device = self.calls.iter().position(waits);
            if let Some(device) = device
                && let Some(id) = self.calls[device].current.as_ref().map(|current| current.id)
            {
                self.end_call(device, LiveEvent::Done(id));
            }
        }
    }

    /// A queue is gone: nobody waits for it any longer.
    pub(super) fn end_calls_of(&mut self, queue: QueueId) {
        let concerns = |order: &Order| matches!(order, Order::Queue(own, _) if *own == queue);
        for device in 0..self.calls.len() {
            let waiting = std::mem::take(&mut self.calls[device].waiting);
            for (id, order) in waiting {
                if concerns(&order) {
                    self.events.push_back(LiveEvent::Gone(id));
                } else {
                    self.calls[device].waiting.push_back((id, order));
                }
            }
            let current = self.calls[device].current.as_ref();
            if let Some(id) = current.filter(|c| concerns(&c.order)).map(|current| current.id) {
                self.end_call(device, LiveEvent::Gone(id));
            }
        }
        self.is_off(queue);
    }

    fn end_call(&mut self, device: usize, event: LiveEvent) {
        self.calls[device].current = None;
        self.events.push_back(event);
        self.next_call(device);
    }
}
