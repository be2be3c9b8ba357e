//! The rings of this very process, to be emptied.

use gpreempt_device::nvidia::change;
use gpreempt_device::nvidia::process_discovery::inspect_process;
use gpreempt_device::nvidia::rm_objects::Engine;
use gpreempt_device::process::ProcessKey;

use crate::failure::Failure;

/// The channels on which our kernels run.
#[derive(Debug)]
pub(crate) struct OwnRings {
    process: ProcessKey,
    groups: Vec<OwnGroup>,
}

#[derive(Debug)]
struct OwnGroup {
    client: u32,
    subdevice: u32,
    channels: Vec<u32>,
}

impl OwnRings {
    /// Finds them, through our own open files. There must be a context already.
    pub(crate) fn find() -> Result<Self, Failure> {
        let found = inspect_process(std::process::id()).map_err(Failure::run)?;
        let clients = found.clients.as_ref().map_err(Failure::run)?;
        let mut groups = Vec::new();
        for client in clients {
            for device in &client.devices {
                let Some(subdevice) = device.subdevice else { continue };
                for group in device.groups.iter().filter(|group| group.engine == Engine::Compute) {
                    let (client, channels) = (client.handle, group.channels.clone());
                    groups.push(OwnGroup { client, subdevice, channels });
                }
            }
        }
        if groups.iter().all(|group| group.channels.is_empty()) {
            return Err(Failure::run("the channels of this process were not found"));
        }
        Ok(Self { process: found.info.key, groups })
    }

    /// Takes everything out of them that was not fetched yet.
    pub(crate) fn clear(&self) -> Result<(), Failure> {
        for group in &self.groups {
            change::clear_ring(self.process, group.client, group.subdevice, &group.channels)
                .map_err(|error| {
                    Failure::run(format_args!("the ring cannot be emptied: {error}"))
                })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_device_has_no_rings() {
        let Err(Failure::Run(message)) = OwnRings::find() else { panic!("there is no device") };
        assert!(message.contains("does not use an NVIDIA GPU"), "{message}");
    }
}
