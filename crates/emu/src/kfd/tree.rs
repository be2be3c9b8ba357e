//! The files of an emulated KFD: what sysfs and debugfs show of the kernel's.
//!
//! Every file and folder appears and disappears atomically: it is created in a staging folder and
//! renamed. `queues`, `preempt` and the parameters exist only for a patched KFD.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use gpreempt_core::id::QueueId;
use gpreempt_wire::emulated_kfd::{DEBUGFS, PARAMETERS, PCI, SYSFS, gpu_id};

use crate::kfd::driver::{ProcessView, QueueView};
use crate::kfd::parameters::Parameters;

/// Marks a folder as an emulator's, so that its contents may be replaced.
const MARK: &str = ".gpreempt-kfd";
const STAGING: &str = ".making";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceShape {
    pub(crate) devices: usize,
    pub(crate) gfx: u32,
    pub(crate) xccs: u32,
    pub(crate) compute_units: u32,
}

#[derive(Debug)]
pub(crate) struct KfdTree {
    folder: PathBuf,
    /// The processes that the files show.
    shown: Vec<ProcessView>,
    made: u64,
}

impl KfdTree {
    /// Creates the files that do not change, replacing those of an earlier emulator.
    pub(crate) fn create(folder: &Path, shape: DeviceShape) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mark = folder.join(MARK);
        let parts = [SYSFS, DEBUGFS, PARAMETERS, PCI, STAGING].map(|part| folder.join(part));
        if !mark.exists() && parts.iter().any(|part| part.exists()) {
            let what = format!("{} has files that are not an emulator's", folder.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        fs::write(&mark, "")?;
        for part in &parts {
            match fs::remove_dir_all(part) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::create_dir(part)?,
            }
        }
        let nodes = folder.join(SYSFS).join("topology/nodes");
        write_node(&nodes.join("0"), 0, "cpu_cores_count 1\nsimd_count 0\n")?;
        for device in 0..shape.devices {
            let node = nodes.join((device + 1).to_string());
            write_node(&node, gpu_id(device).unwrap_or(0), &properties(shape, device))?;
            fs::write(node.join("name"), "emulated\n")?;
        }
        fs::create_dir_all(folder.join(SYSFS).join("proc"))?;
        let mut tree = Self { folder: folder.to_owned(), shown: Vec::new(), made: 0 };
        for device in 0..shape.devices {
            tree.show_remaps(device, 0)?;
            fs::create_dir_all(tree.folder.join(pci_folder(device)))?;
            tree.show_busy(device, 0)?;
        }
        tree.show_mqds("")?;
        Ok(tree)
    }

    /// Updates processes and their queues.
    pub(crate) fn show(&mut self, processes: &[ProcessView]) -> io::Result<()> {
        let proc = self.folder.join(SYSFS).join("proc");
        for old in std::mem::take(&mut self.shown) {
            let place = proc.join(old.pid.to_string());
            let Some(new) = processes.iter().find(|new| new.pasid == old.pasid) else {
                self.remove(&place)?;
                continue;
            };
            let names = |view: &ProcessView| -> Vec<u32> {
                view.queues.iter().map(|queue| queue.entry.queue_id).collect()
            };
            let (before, now) = (names(&old), names(new));
            for gone in before.iter().filter(|name| !now.contains(name)) {
                self.remove(&place.join(format!("queues/{gone}")))?;
            }
            for queue in new.queues.iter().filter(|q| !before.contains(&q.entry.queue_id)) {
                let name = queue.entry.queue_id;
                let made = self.make_queue(queue)?;
                fs::rename(made, place.join(format!("queues/{name}")))?;
            }
        }
        let is_new = |new: &&ProcessView| !proc.join(new.pid.to_string()).exists();
        for new in processes.iter().filter(is_new) {
            let made = self.next_place();
            fs::create_dir_all(made.join("queues"))?;
            fs::write(made.join("pasid"), format!("{}\n", new.pasid))?;
            for queue in &new.queues {
                let queue_made = self.make_queue(queue)?;
                fs::rename(queue_made, made.join(format!("queues/{}", queue.entry.queue_id)))?;
            }
            fs::rename(made, proc.join(new.pid.to_string()))?;
        }
        self.shown = processes.to_vec();
        Ok(())
    }

    pub(crate) fn show_remaps(&mut self, device: usize, count: u64) -> io::Result<()> {
        let place = format!("{SYSFS}/topology/nodes/{}/remaps", device + 1);
        self.replace(&place, &format!("{count}\n"))
    }

    /// How much of about the last second a device was busy.
    pub(crate) fn show_busy(&mut self, device: usize, percent: u64) -> io::Result<()> {
        let place = format!("{}/gpu_busy_percent", pci_folder(device));
        self.replace(&place, &format!("{percent}\n"))
    }

    pub(crate) fn show_mqds(&mut self, text: &str) -> io::Result<()> {
        self.replace(&format!("{DEBUGFS}/mqds"), text)
    }

    /// The files of a queue, which have no newlines, in the staging folder.
    fn make_queue(&mut self, queue: &QueueView) -> io::Result<PathBuf> {
        let made = self.next_place();
        fs::create_dir(&made)?;
        // PM4 and AQL queues are both compute queues here.
        let kind = u32::from(!matches!(queue.entry.queue_type, 0 | 2));
        let files =
            [("size", queue.entry.ring_size), ("type", kind), ("gpuid", queue.entry.gpu_id)];
        for (name, value) in files {
            fs::write(made.join(name), value.to_string())?;
        }
        Ok(made)
    }

    fn replace(&mut self, place: &str, text: &str) -> io::Result<()> {
        let made = self.next_place();
        fs::write(&made, text)?;
        fs::rename(made, self.folder.join(place))
    }

    fn remove(&mut self, place: &Path) -> io::Result<()> {
        let broken = self.next_place();
        fs::rename(place, &broken)?;
        fs::remove_dir_all(broken)
    }

    fn next_place(&mut self) -> PathBuf {
        self.made += 1;
        self.folder.join(STAGING).join(self.made.to_string())
    }
}

impl Drop for KfdTree {
    fn drop(&mut self) {
        for part in [SYSFS, DEBUGFS, PARAMETERS, PCI, STAGING] {
            let _ = fs::remove_dir_all(self.folder.join(part));
        }
        let _ = fs::remove_file(self.folder.join(MARK));
    }
}

/// The PCI folder of a device, whose `location_id` is below.
fn pci_folder(device: usize) -> String {
    format!("{PCI}/0000:{:02x}:00.0", device + 1)
}

fn write_node(node: &Path, gpu_id: u32, properties: &str) -> io::Result<()> {
    fs::create_dir_all(node)?;
    fs::write(node.join("gpu_id"), format!("{gpu_id}\n"))?;
    fs::write(node.join("properties"), properties)
}

/// The size of a queue's save area, and of its control stack.
pub(crate) const SAVE_AREA_BYTES: (u32, u32) = (0x16a_7000, 0x7000);

fn properties(shape: DeviceShape, device: usize) -> String {
    let (simds_per_unit, waves_per_simd, vendor) = (4, 8, 0x1002);
    let lines = [
        ("simd_count", u64::from(shape.compute_units) * simds_per_unit),
        ("simd_per_cu", simds_per_unit),
        ("max_waves_per_simd", waves_per_simd),
        ("num_xcc", u64::from(shape.xccs)),
        ("gfx_target_version", u64::from(shape.gfx)),
        ("vendor_id", vendor),
        ("location_id", 0x100 * (device as u64 + 1)),
        ("unique_id", 0x6770_7265_656d_0000 + device as u64 + 1),
        ("cwsr_size", u64::from(SAVE_AREA_BYTES.0)),
        ("ctl_stack_size", u64::from(SAVE_AREA_BYTES.1)),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

const WORDS: usize = 512;
const LINE: usize = 8;
const STACK_USED: u32 = 0x100;

/// The contents of `mqds`; `saved` returns the number of saved waves of a queue.
pub(crate) fn mqds(processes: &[ProcessView], xccs: u32, saved: impl Fn(QueueId) -> u64) -> String {
    let mut text = String::new();
    for process in processes {
        // Writing to a string does not fail.
        let _ = writeln!(text, "Process {} PASID 0x{:x}:", process.pid, process.pasid);
        for queue in process.queues.iter().rev() {
            let _ = writeln!(text, "  Compute queue on device {:x}", queue.entry.gpu_id);
            let words = words(queue, saved(queue.device_id) > 0);
            for _ in 0..xccs {
                dump(&mut text, &words);
            }
        }
    }
    text
}

fn dump(text: &mut String, words: &[u32; WORDS]) {
    for (line, words) in words.chunks_exact(LINE).enumerate() {
        let _ = write!(text, "    {:08x}:", line * LINE * size_of::<u32>());
        for word in words {
            let _ = write!(text, " {word:08x}");
        }
        text.push('\n');
    }
}

/// The known words of a descriptor.
fn words(queue: &QueueView, is_saved: bool) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    words[0] = 0xc031_0800;
    words[130] = u32::from(queue.is_on);
    words[133] = match queue.priority {
        0..=6 => 0,
        7..=10 => 1,
        _ => 2,
    };
    words[134] = queue.priority;
    let entry = &queue.entry;
    let addresses = [
        (136, entry.ring_base >> 8),
        (139, entry.read_pointer),
        (141, entry.write_pointer),
        (171, entry.save_area),
    ];
    for (at, address) in addresses {
        let bytes = address.to_le_bytes();
        let half = |from: usize| bytes[from..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        (words[at], words[at + 1]) = (half(0), half(4));
    }
    let stack = SAVE_AREA_BYTES.1;
    words[174] = if is_saved { stack - STACK_USED } else { stack };
    words[175] = stack;
    words[177] = entry.save_area_size;
    words
}

impl KfdTree {
    pub(crate) fn show_queues(&mut self, processes: &[ProcessView]) -> io::Result<()> {
        self.replace(&format!("{DEBUGFS}/queues"), &queues(processes))
    }

    pub(crate) fn show_scheduler(&mut self, text: &str) -> io::Result<()> {
        self.replace(&format!("{DEBUGFS}/preempt"), text)
    }

    pub(crate) fn show_parameters(&mut self, parameters: Parameters) -> io::Result<()> {
        parameters.write(&self.folder.join(PARAMETERS))
    }

    /// The parameters in the files, starting from the current ones.
    pub(crate) fn parameters(&self, before: Parameters) -> Parameters {
        before.read(&self.folder.join(PARAMETERS))
    }
}

fn queues(processes: &[ProcessView]) -> String {
    let mut text = String::new();
    for process in processes {
        for queue in &process.queues {
            let entry = &queue.entry;
            let (kind, format) = match entry.queue_type {
                0 => (0, 0),
                2 => (0, 1),
                _ => (1, 0),
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "pid {} queue {} serial {} gpu_id {} type {kind} format {format} ring {:x} \
                 size {} read {:x} write {:x}{}",
                process.pid,
                entry.queue_id,
                queue.serial,
                entry.gpu_id,
                entry.ring_base,
                entry.ring_size,
                entry.read_pointer,
                entry.write_pointer,
                if queue.is_preempted { " preempted" } else { "" },
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use gpreempt_core::id::QueueId;
    use gpreempt_kfd::abi::trap::QueueEntry;
    use gpreempt_stage::WorkFolder;

    use super::*;
    use crate::kfd::driver::QueueView;

    const SHAPE: DeviceShape = DeviceShape { devices: 2, gfx: 90_402, xccs: 4, compute_units: 304 };

    fn queue(name: u32) -> QueueView {
        let entry = QueueEntry {
            queue_id: name,
            gpu_id: 7,
            ring_size: 64,
            queue_type: 2,
            ..QueueEntry::default()
        };
        QueueView {
            entry,
            device_id: QueueId(name.into()),
            serial: u64::from(name) + 1,
            priority: 11,
            is_on: true,
            is_preempted: false,
        }
    }

    fn process(pid: u32, pasid: u32, queues: &[u32]) -> ProcessView {
        ProcessView { pid, pasid, queues: queues.iter().map(|name| queue(*name)).collect() }
    }

    #[test]
    fn files_follow_processes_and_queues() {
        let folder = WorkFolder::new("tree").unwrap();
        let folder = folder.root();
        let mut tree = KfdTree::create(folder, SHAPE).unwrap();
        let proc = folder.join("sys/proc");
        tree.show(&[process(42, 1, &[0, 3]), process(43, 2, &[])]).unwrap();
        assert_eq!(fs::read_to_string(proc.join("42/queues/3/type")).unwrap(), "0");
        assert_eq!(fs::read_to_string(proc.join("42/queues/3/gpuid")).unwrap(), "7");
        assert_eq!(fs::read_to_string(proc.join("43/pasid")).unwrap(), "2\n");
        tree.show(&[process(42, 1, &[3, 4])]).unwrap();
        assert!(!proc.join("43").exists() && !proc.join("42/queues/0").exists());
        assert!(proc.join("42/queues/4").exists());
        // Another process with the same pid.
        tree.show(&[process(42, 3, &[])]).unwrap();
        assert!(!proc.join("42/queues/4").exists());
        tree.show_remaps(1, 5).unwrap();
        assert_eq!(fs::read_to_string(folder.join("sys/topology/nodes/2/remaps")).unwrap(), "5\n");
        let properties =
            fs::read_to_string(folder.join("sys/topology/nodes/1/properties")).unwrap();
        assert!(properties.contains("gfx_target_version 90402\n"), "{properties}");
        drop(tree);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn foreign_files_are_not_replaced() {
        let folder = WorkFolder::new("precious").unwrap();
        let folder = folder.root();
        fs::create_dir_all(folder.join("sys")).unwrap();
        assert!(KfdTree::create(folder, SHAPE).is_err());
        assert!(folder.join("sys").exists());
        fs::remove_dir_all(folder.join("sys")).unwrap();
        // The files of a killed emulator are replaced.
        drop(KfdTree::create(folder, SHAPE).unwrap());
        fs::create_dir_all(folder.join("sys/old")).unwrap();
        fs::write(folder.join(MARK), "").unwrap();
        let tree = KfdTree::create(folder, SHAPE).unwrap();
        assert!(!folder.join("sys/old").exists());
        drop(tree);
    }

    #[test]
    fn mqds_lists_every_die_and_the_newest_queue_first() {
        let text = mqds(&[process(42, 0x8001, &[0, 1])], 4, |queue| queue.0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Process 42 PASID 0x8001:");
        assert_eq!(lines[1], "  Compute queue on device 7");
        assert!(lines[2].starts_with("    00000000: "));
        assert_eq!(lines.len(), 1 + 2 * (1 + 4 * 64));
        // Words 128 to 135: active, pipe priority, priority.
        let words: Vec<&str> = lines[2 + 16].split_whitespace().collect();
        assert_eq!(
            (words[0], words[3], words[6], words[7]),
            ("00000200:", "00000001", "00000002", "0000000b")
        );
    }
}
