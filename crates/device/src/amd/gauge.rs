//! What amdgpu shows of devices in sysfs: how busy they are, memory, power and temperature.
//!
//! The kernel counts no execution time of processes that use KFD, only that of whole devices, as a
//! percentage of about the last second. Memory of processes is in KFD's folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use super::probe::KfdPaths;
use super::topology::{Node, Topology};
use crate::gauge::{Busy, DeviceFacts, DeviceGauge, DeviceReading, ProcessReading};

pub(super) struct SysfsGauge {
    paths: KfdPaths,
}

impl SysfsGauge {
    pub(super) const fn new(paths: KfdPaths) -> Self {
        Self { paths }
    }

    fn device(&self, node: &Node) -> DeviceReading {
        let folder = self.paths.pci.join(node.pci());
        let busy = number::<f64>(&folder.join("gpu_busy_percent"));
        DeviceReading {
            uuid: node.uuid(),
            facts: facts(&folder),
            busy: busy.map(|percent| Busy::Part(percent / 100.0)),
            processes: self.processes(node.gpu_id),
        }
    }

    /// The memory of each process on a device.
    fn processes(&self, gpu_id: u32) -> BTreeMap<u32, ProcessReading> {
        let Ok(folder) = fs::read_dir(self.paths.sysfs.join("proc")) else {
            return BTreeMap::new();
        };
        let of_process = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let bytes: u64 = number(&entry.path().join(format!("vram_{gpu_id}")))?;
            Some((pid, ProcessReading { executed: None, memory_kib: Some(bytes / 1_024) }))
        };
        folder.flatten().filter_map(of_process).collect()
    }
}

impl DeviceGauge for SysfsGauge {
    fn read(&mut self) -> Vec<DeviceReading> {
        let topology = Topology::read(&self.paths.sysfs).unwrap_or_default();
        topology.devices().map(|node| self.device(node)).collect()
    }
}

fn facts(folder: &Path) -> DeviceFacts {
    let kib = |name| number::<u64>(&folder.join(name)).map(|bytes| bytes / 1_024);
    let name = fs::read_to_string(folder.join("product_name"));
    let sensors = || fs::read_dir(folder.join("hwmon")).ok()?.flatten().next();
    let sensors = sensors().map(|entry| entry.path());
    let sensor = |name| number::<u64>(&sensors.as_ref()?.join(name));
    // In microwatts; devices have one or the other.
    let power = sensor("power1_average").or_else(|| sensor("power1_input"));
    DeviceFacts {
        name: name.ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
        memory_used_kib: kib("mem_info_vram_used"),
        memory_total_kib: kib("mem_info_vram_total"),
        power_mw: power.map(|microwatts| microwatts / 1_000),
        temperature_c: sensor("temp1_input").map(|millidegrees| millidegrees / 1_000),
    }
}

fn number<T: FromStr>(file: &Path) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_amdgpu_are_read_and_missing_ones_are_absent() {
        let folder = gpreempt_stage::WorkFolder::new("gauge").unwrap();
        let paths = KfdPaths::emulated(folder.root());
        let write = |name: String, text: &str| {
            let path = folder.root().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (index, location) in [(1, 0x100), (2, 0x200)] {
            write(format!("sys/topology/nodes/{index}/gpu_id"), &format!("{index}7\n"));
            let properties = format!("location_id {location}\n");
            write(format!("sys/topology/nodes/{index}/properties"), &properties);
        }
        for (name, text) in [
            ("gpu_busy_percent", "16\n"),
            ("product_name", "AMD Instinct MI300X\n"),
            ("mem_info_vram_total", "2048\n"),
            ("mem_info_vram_used", "1024\n"),
            ("hwmon/hwmon3/power1_average", "750000000\n"),
            ("hwmon/hwmon3/temp1_input", "41000\n"),
        ] {
            write(format!("pci/0000:01:00.0/{name}"), text);
        }
        write("sys/proc/4250/vram_17".to_owned(), "4096\n");
        write("sys/proc/4251/vram_27".to_owned(), "nonsense\n");
        let readings = SysfsGauge::new(paths).read();
        let name = Some("AMD Instinct MI300X".to_owned());
        let facts = DeviceFacts {
            name,
            memory_used_kib: Some(1),
            memory_total_kib: Some(2),
            power_mw: Some(750_000),
            temperature_c: Some(41),
        };
        assert_eq!((&readings[0].facts, readings[0].busy), (&facts, Some(Busy::Part(0.16))));
        let process = ProcessReading { executed: None, memory_kib: Some(4) };
        assert_eq!(readings[0].processes, BTreeMap::from([(4250, process)]));
        let uuid = "AMD-00000200".to_owned();
        assert_eq!(readings[1], DeviceReading { uuid, ..DeviceReading::default() });
    }
}
