//! What has to be known of a process before its memory is evicted: how much it has, on which GPU,
//! and the time slices that the driver forgets.

use super::change::Member;
use super::nvidia::slices_of;
use super::{EvictDevice, EvictTarget, check, emulated};
use crate::nvidia::gauge::{memory_of_process, open_nvml};
use crate::nvidia::process_discovery::inspect_process;

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
        EvictDevice::Emulated { ref socket, instance } => {
            emulated::measure(member, socket, instance)
        }
    }
}

fn measure_nvidia(member: Member) -> Result<Member, String> {
    let pid = member.process.pid;
    let found = inspect_process(pid).map_err(|error| error.to_string())?;
    let clients = found.clients.map_err(|error| error.to_string())?;
    let gpu = check::only_gpu(pid, &clients)?;
    let bytes = open_nvml().and_then(|nvml| memory_of_process(&nvml, &gpu, pid));
    // Without it no later restore could be known to have room.
    let bytes = bytes.ok_or_else(|| {
        format!("NVML does not tell how much GPU memory process {pid} has, so it is not evicted")
    })?;
    Ok(Member { bytes, gpu: Some(gpu), slices: slices_of(&clients), ..member })
}
