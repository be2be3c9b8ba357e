//! Who is off the device is off it: the dead leave nothing behind, and no preempt is over before
//! its waves are saved.

use gpreempt_core::id::QueueId;

use crate::gpu::queue::{HardwareQueue, Residency};
use crate::rig::Rig;

/// The first thing that is left where nothing should be, if any.
pub(super) fn check(rig: &Rig) -> Result<(), String> {
    for (id, queue) in &rig.gpu.closed {
        let permitted = rig.holds.iter().any(|watcher| watcher.permits(*id));
        if queue.execution.is_some() || !queue.leaving.0.is_empty() || permitted {
            return Err(format!("{id} is closed, but the device still has something of it"));
        }
    }
    for (&id, queue) in &rig.gpu.queues {
        check_stopped(rig, id, queue)?;
    }
    Ok(())
}

/// A worker that waits for nothing has seen every preempt of its device through.
fn check_stopped(rig: &Rig, id: QueueId, queue: &HardwareQueue) -> Result<(), String> {
    let through = queue.stopped && rig.workers[queue.device].is_idle();
    let there = queue.residency == Residency::Saving || queue.resident_waves() > 0;
    if through && there {
        let residency = queue.residency;
        return Err(format!("the preempt of {id} is over, but its context is {residency:?}"));
    }
    Ok(())
}
