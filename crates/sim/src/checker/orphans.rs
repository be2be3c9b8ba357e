//! What a dead scheduler stopped, slowed or held is let go, by the keeper if by nobody else.

use gpreempt_core::time::{Duration, Instant};

use crate::control::Worker;
use crate::gpu::queue::HardwareQueue;
use crate::rig::Rig;

/// Watches the devices while nobody schedules.
#[derive(Debug, Default)]
pub(super) struct OrphanChecker {
    /// Since when there has been no scheduler and no call of one under way.
    since: Option<Instant>,
}

impl OrphanChecker {
    pub(super) fn check(&mut self, rig: &Rig) -> Result<(), String> {
        if rig.scheduler_up || !rig.workers.iter().all(Worker::is_idle) {
            self.since = None;
            return Ok(());
        }
        let now = rig.now();
        if now.since(*self.since.get_or_insert(now)) < KEEPER_MAX {
            return Ok(());
        }
        let slice = rig.gpu.model.tsg.slice;
        let changed = |queue: &HardwareQueue| queue.stopped || queue.held || queue.slice != slice;
        match rig.gpu.queues.iter().find(|(_, queue)| changed(queue)) {
            Some((id, _)) => Err(format!("{id} is still as a dead scheduler left it")),
            None => Ok(()),
        }
    }
}

/// The keeper acts within 1.7 ms; what was killed has to be submitted again after that.
const KEEPER_MAX: Duration = Duration::from_millis(5);
