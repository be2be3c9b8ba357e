//! The processes that use the selected devices, for readers that control nothing: `gpreemptd
//! --check` and `gpreempt doctor`.
//!
//! Makes no controller and changes nothing. What a controller of the same selection would report as
//! its users is found here in the same places: the driver's clients, KFD's sysfs, the emulator.

use std::collections::BTreeMap;
use std::path::Path;

use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::{Control, Options};

use crate::amd::queue::{queues_of, users};
use crate::amd::topology::{Node, Topology};
use crate::emulated;
use crate::nvidia::process_discovery::{GpuProcess, gpu_processes};
use crate::process::{ProcessInfo, ProcessKey};
use crate::registry::{Selection, sites};

/// A process's use of the selected devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// The devices that it uses, as far as is known.
    pub uuids: Vec<String>,
    /// Whether it has what a controller needs to adopt it; monitoring tools only open the driver.
    pub is_adoptable: bool,
}

/// Every process that uses a selected device, and the places that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsers {
    pub users: BTreeMap<ProcessKey, DeviceUse>,
    pub problems: Vec<String>,
}

impl DeviceUsers {
    pub fn find(selection: &Selection) -> Self {
        let mut found = Self::default();
        if selection.nvidia {
            found.add_nvidia();
        }
        for site in sites(selection) {
            found.add_amd(&site.paths().sysfs);
        }
        for socket in &selection.emulated {
            if let Err(error) = found.add_emulated(socket) {
                let socket = socket.display();
                found.problems.push(format!(
                    "the processes on the emulated GPU at {socket} are unknown: {error}"
                ));
            }
        }
        found
    }

    fn add(
        &mut self,
        key: ProcessKey,
        uuids: impl IntoIterator<Item = String>,
        is_adoptable: bool,
    ) {
        let entry = self.users.entry(key).or_default();
        for uuid in uuids {
            if !entry.uuids.contains(&uuid) {
                entry.uuids.push(uuid);
            }
        }
        entry.is_adoptable |= is_adoptable;
    }

    fn add_nvidia(&mut self) {
        for process in gpu_processes().unwrap_or_default() {
            self.add(process.info.key, GpuProcess::uuids(&process), process.has_groups());
        }
    }

    fn add_amd(&mut self, sysfs: &Path) {
        let pids = users(sysfs).unwrap_or_default();
        let topology = match pids.is_empty() {
            true => return,
            false => Topology::read(sysfs).unwrap_or_default(),
        };
        for pid in pids {
            // A process may end meanwhile.
            let Ok(info) = ProcessInfo::read(pid) else { continue };
            let queues = queues_of(sysfs, pid).unwrap_or_default();
            let uuids = queues.iter().filter_map(|queue| topology.device(queue.gpu_id));
            self.add(info.key, uuids.map(Node::uuid), !queues.is_empty());
        }
    }

    fn add_emulated(&mut self, socket: &Path) -> Result<(), EmuError> {
        let options = Options { timeout: emulated::ANSWER_MAX, ..Options::default() };
        let listing = Control::connect(socket, options)?.list()?;
        for task in &listing.tasks {
            let Ok(info) = ProcessInfo::read(task.pid) else { continue };
            let own = listing.queues.iter().filter(|queue| queue.task == task.task);
            let devices = own.filter_map(|queue| usize::try_from(queue.device.0).ok());
            self.add(info.key, devices.map(|device| emulated::uuid(socket, device)), true);
        }
        Ok(())
    }
}
