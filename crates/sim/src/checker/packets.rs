//! Packets: every one is in exactly one place, and rings are as their owners left them.

use gpreempt_core::id::QueueId;

use crate::client::Life;
use crate::gpu::queue::HardwareQueue;
use crate::model::MachineKind;
use crate::rig::Rig;

/// The first thing that is wrong with the packets, if any.
pub(crate) fn check(rig: &Rig) -> Result<(), String> {
    for (&id, queue) in &rig.gpu.queues {
        if rig.clients[queue.task].life != Life::Alive {
            return Err(format!("{id} is still on the device although its task is gone"));
        }
        // The papers' design moves packets about; there only the totals at the end count.
        if rig.gpu.machine != MachineKind::Reset {
            check_queue(id, queue)?;
        }
    }
    for (index, device) in rig.gpu.devices.iter().enumerate() {
        let here = || rig.gpu.queues.values().filter(|queue| queue.device == index);
        let resident: u64 = here().map(HardwareQueue::resident_waves).sum();
        let leaving: u64 =
            here().map(|queue| queue.leaving.0.len() as u64 * u64::from(queue.leaving.1)).sum();
        let used = u64::from(device.units.used());
        if resident + leaving != used {
            return Err(format!(
                "device{index}: {used} wave slots are taken by {resident} waves and {leaving} \
                 that leave"
            ));
        }
    }
    super::released::check(rig)?;
    super::requests::check(rig)
}

fn check_queue(id: QueueId, queue: &HardwareQueue) -> Result<(), String> {
    let view = queue.ring.view(None);
    let launched = queue.launches.len() as u64;
    let backlog = queue.backlog.len() as u64;
    if view.put + backlog != launched {
        return Err(format!(
            "{id}: its client launched {launched}, but its ring has seen {} and {backlog} wait",
            view.put
        ));
    }
    let (completed, in_flight) = (queue.completed, queue.in_flight());
    if completed + in_flight != view.get {
        return Err(format!(
            "{id}: {} were fetched, but {completed} are complete and {in_flight} in flight",
            view.get
        ));
    }
    Ok(())
}

/// Launches of surviving tasks that never completed.
pub(crate) fn lost(rig: &Rig) -> u64 {
    rig.all_queues()
        .filter(|(_, queue)| rig.clients[queue.task].life != Life::Dead)
        .map(|(_, queue)| queue.launches.iter().filter(|launch| launch.completed == 0).count())
        .sum::<usize>() as u64
}
