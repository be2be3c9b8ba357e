//! What has to be known of a process before its memory is evicted: how much it has, on which GPU,
//! and the time slices that the driver forgets.

use super::change::{Member, SliceBefore};
use super::{EvictDevice, EvictTarget};
use crate::nvidia::process_discovery::inspect_process;
use crate::nvidia::rm_objects::{Client, Engine};

/// A process of which nothing is known yet.
pub(super) fn unmeasured(target: &EvictTarget) -> Member {
    Member {
        process: target.key,
        device: target.device.clone(),
        bytes: 0,
        gpu: None,
        lock_timeout_ms: 0,
        slices: Vec::new(),
    }
}

pub(super) fn measure(target: &EvictTarget) -> Result<Member, String> {
    let member = unmeasured(target);
    target.key.check().map_err(|error| error.to_string())?;
    match target.device {
        EvictDevice::Nvidia => measure_nvidia(member),
        EvictDevice::Emulated { .. } => Ok(member),
    }
}

fn measure_nvidia(member: Member) -> Result<Member, String> {
    let found = inspect_process(member.process.pid).map_err(|error| error.to_string())?;
    let gpu = found.uuids().into_iter().next();
    let clients = found.clients.map_err(|error| error.to_string())?;
    Ok(Member { gpu, slices: slices_of(&clients), ..member })
}

/// The time slices of the compute groups.
fn slices_of(clients: &[Client]) -> Vec<SliceBefore> {
    let mut slices = Vec::new();
    for client in clients {
        let groups = client.devices.iter().flat_map(|device| &device.groups);
        for group in groups.filter(|group| group.engine == Engine::Compute) {
            let (client, group, slice_us) = (client.handle, group.handle, group.slice_us);
            slices.extend(slice_us.map(|slice_us| SliceBefore { client, group, slice_us }));
        }
    }
    slices
}
