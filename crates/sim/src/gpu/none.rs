//! A device that cannot preempt: whatever came first runs first, to its end.

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Instant;

use super::Gpu;
use super::queue::HardwareQueue;

impl Gpu {
    /// The queue whose launch arrived first and has work-groups left to place. A launch that came
    /// later waits even where there is room, because one that came earlier is still in a ring.
    pub(super) fn first_come(&self, device: usize) -> Option<QueueId> {
        let here = || self.queues.iter().filter(|(_, queue)| queue.device == device);
        let (arrived, id) = here()
            .filter(|(_, queue)| queue.may_place())
            .filter_map(|(&id, queue)| Some((queue.execution.as_ref()?.packet.rung_at, id)))
            .min()?;
        let earlier = here()
            .filter(|(other, _)| **other != id)
            .filter_map(|(_, queue)| queue.oldest_waiting())
            .any(|waiting| waiting < arrived);
        (!earlier).then_some(id)
    }
}

impl HardwareQueue {
    /// When the oldest launch arrived that has not begun.
    fn oldest_waiting(&self) -> Option<Instant> {
        let next = self.fetched.front().copied().or_else(|| self.ring.peek());
        next.map(|packet| packet.rung_at)
    }
}
