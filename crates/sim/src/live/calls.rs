//! Control calls: each device carries out one at a time, and each has its cost.

use std::collections::VecDeque;

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
    waiting: VecDeque<(CallId, QueueId, Call)>,
    current: Option<Current>,
    epoch: u64,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    id: CallId,
    queue: QueueId,
    call: Call,
    /// Whether the hardware is at it.
    works: bool,
}

impl LiveGpu {
    /// Begins a call. Its end is an event.
    pub fn call(&mut self, id: CallId, queue: QueueId, call: Call) {
        let Some(device) = self.gpu.queues.get(&queue).map(|queue| queue.device) else {
            self.events.push_back(LiveEvent::Gone(id));
            return;
        };
        self.calls[device].waiting.push_back((id, queue, call));
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
        let Some((id, queue, call)) = calls.waiting.pop_front() else { return };
        calls.epoch += 1;
        calls.current = Some(Current { id, queue, call, works: false });
        let epoch = calls.epoch;
        let costs = &self.gpu.model.control;
        let cost = match call {
            Call::Stop => costs.preempt,
            Call::Resume => costs.resume,
            Call::SetSlice(_) | Call::Park | Call::Unpark => costs.set_slice,
        };
        self.gpu.agenda.after(cost, What::CallReaches { device, epoch });
    }

    /// A call has reached the hardware.
    pub(super) fn call_reaches(&mut self, device: usize, epoch: u64) {
        let calls = &mut self.calls[device];
        let Some(current) = calls.current.as_mut().filter(|_| calls.epoch == epoch) else { return };
        current.works = true;
        let Current { id, queue, call, .. } = *current;
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
            let matches = |current: &Current| {
                current.works && current.queue == queue && current.call == awaited
            };
            let device =
                self.calls.iter().position(|calls| calls.current.is_some_and(|c| matches(&c)));
            if let Some(device) = device
                && let Some(current) = self.calls[device].current
            {
                self.end_call(device, LiveEvent::Done(current.id));
            }
        }
    }

    /// A queue is gone: nobody waits for it any longer.
    pub(super) fn end_calls_of(&mut self, queue: QueueId) {
        for device in 0..self.calls.len() {
            let waiting = std::mem::take(&mut self.calls[device].waiting);
            for (id, other, call) in waiting {
                if other == queue {
                    self.events.push_back(LiveEvent::Gone(id));
                } else {
                    self.calls[device].waiting.push_back((id, other, call));
                }
            }
            if let Some(current) = self.calls[device].current.filter(|c| c.queue == queue) {
                self.end_call(device, LiveEvent::Gone(current.id));
            }
        }
    }

    fn end_call(&mut self, device: usize, event: LiveEvent) {
        self.calls[device].current = None;
        self.events.push_back(event);
        self.next_call(device);
    }
}
