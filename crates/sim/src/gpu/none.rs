//! A device that cannot preempt: whatever came first runs first, to its end.

use gpreempt_core::id::QueueId;

use super::Gpu;

impl Gpu {
    /// The queue whose current launch arrived first and has work-groups left to place.
    pub(super) fn first_come(&self, device: usize) -> Option<QueueId> {
        self.queues
            .iter()
            .filter(|(_, queue)| queue.device == device && queue.may_place())
            .min_by_key(|(id, queue)| {
                (queue.execution.as_ref().map(|execution| execution.packet.rung_at), **id)
            })
            .map(|(&id, _)| id)
    }
}
