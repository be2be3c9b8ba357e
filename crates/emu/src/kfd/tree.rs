//! The files of an emulated KFD: what sysfs and debugfs show elsewhere.
//!
//! Everything appears and vanishes whole: it is made beside its place and moved there.

mod mqds;
mod own;

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gpreempt_wire::emulated_kfd::{DEBUGFS, PARAMETERS, SYSFS, gpu_id};

use super::driver::ProcessView;
pub(crate) use mqds::mqds;

/// Says that a folder is ours, so that what is in it may be replaced.
const MARK: &str = ".gpreempt-kfd";
/// Where things are made and broken up.
const WORKSHOP: &str = ".making";

/// What the devices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How many there are.
    pub(crate) devices: usize,
    /// The generation: 90402 is gfx942.
    pub(crate) gfx: u32,
    /// Dies with compute units.
    pub(crate) xccs: u32,
    /// Compute units.
    pub(crate) compute_units: u32,
}

/// The files of one KFD.
#[derive(Debug)]
pub(crate) struct Tree {
    folder: PathBuf,
    /// Processes as they are shown.
    shown: Vec<ProcessView>,
    /// How often something was made or broken up.
    made: u64,
}

impl Tree {
    /// Makes the files that do not change, in the place of those of an emulator before.
    ///
    /// # Errors
    /// If the folder has such files that are not an emulator's, or cannot be written.
    pub(crate) fn create(folder: &Path, shape: Shape) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mark = folder.join(MARK);
        let parts = [SYSFS, DEBUGFS, PARAMETERS, WORKSHOP].map(|part| folder.join(part));
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
        }
        tree.show_mqds("")?;
        Ok(tree)
    }

    /// Shows processes and their queues as they are now.
    ///
    /// # Errors
    /// If files cannot be written.
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

    /// Shows how often a device was remapped.
    ///
    /// # Errors
    /// If files cannot be written.
    pub(crate) fn show_remaps(&mut self, device: usize, count: u64) -> io::Result<()> {
        let place = format!("{SYSFS}/topology/nodes/{}/remaps", device + 1);
        self.replace(&place, &format!("{count}\n"))
    }

    /// Shows what the hardware has for every queue.
    ///
    /// # Errors
    /// If files cannot be written.
    pub(crate) fn show_mqds(&mut self, text: &str) -> io::Result<()> {
        self.replace(&format!("{DEBUGFS}/mqds"), text)
    }

    /// A queue's files, which have no ends of lines, made beside their place.
    fn make_queue(&mut self, queue: &super::driver::QueueView) -> io::Result<PathBuf> {
        let made = self.next_place();
        fs::create_dir(&made)?;
        // Queues of both kinds of packets are for kernels here; the others are for copies.
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
        self.folder.join(WORKSHOP).join(self.made.to_string())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for part in [SYSFS, DEBUGFS, PARAMETERS, WORKSHOP] {
            let _ = fs::remove_dir_all(self.folder.join(part));
        }
        let _ = fs::remove_file(self.folder.join(MARK));
    }
}

fn write_node(node: &Path, gpu_id: u32, properties: &str) -> io::Result<()> {
    fs::create_dir_all(node)?;
    fs::write(node.join("gpu_id"), format!("{gpu_id}\n"))?;
    fs::write(node.join("properties"), properties)
}

/// Bytes to save a queue's waves in, and those of them for the control stack.
pub(crate) const SAVE_AREA_BYTES: (u32, u32) = (0x16a_7000, 0x7000);

fn properties(shape: Shape, device: usize) -> String {
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

#[cfg(test)]
mod tests;
