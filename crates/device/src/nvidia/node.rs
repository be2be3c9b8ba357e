//! NVIDIA's device nodes, and which of them a process has open.
//!
//! Nodes are recognised by their numbers, not their names, so that processes in containers with
//! another view of `/dev` are found as well.

use std::fs;
use std::io;

use crate::process::open_devices;

/// The name of unified memory's nodes in `/proc/devices`; the kernel chooses their major number.
const UNIFIED_MEMORY: &str = "nvidia-uvm";
/// The major number of all other nodes.
const MAJOR: u32 = 195;
const MINOR_CONTROL: u32 = 255;
const MINOR_MODESET: u32 = 254;

/// What an open file of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// `/dev/nvidiactl`: RM clients belong to open files of it.
    Control,
    /// `/dev/nvidiaN`, by its minor number.
    Device(u32),
    /// `/dev/nvidia-modeset`: display servers open it.
    Modeset,
    /// `/dev/nvidia-uvm`: address spaces belong to open files of it.
    UnifiedMemory,
}

/// One open file of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldNode {
    pub fd: i32,
    pub node: Node,
}

impl Node {
    fn of(device: u64, unified_memory: Option<u32>) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        match (major, minor) {
            (major, 0) if Some(major) == unified_memory => Some(Self::UnifiedMemory),
            (MAJOR, MINOR_CONTROL) => Some(Self::Control),
            (MAJOR, MINOR_MODESET) => Some(Self::Modeset),
            (MAJOR, minor) => Some(Self::Device(minor)),
            _ => None,
        }
    }
}

/// The NVIDIA nodes a process has open.
pub fn held_by(pid: u32) -> io::Result<Vec<HeldNode>> {
    held_among(pid, usize::MAX)
}

/// Whether a process drives a display, as far as its first open files tell. A process with more
/// files than any display server has cannot keep the answer from being found.
pub fn drives_display(pid: u32) -> bool {
    const FILES_MAX: usize = 1 << 16;
    held_among(pid, FILES_MAX).is_ok_and(|held| held.iter().any(|held| held.node == Node::Modeset))
}

fn held_among(pid: u32, files_max: usize) -> io::Result<Vec<HeldNode>> {
    let unified_memory =
        unified_memory_major(&fs::read_to_string("/proc/devices").unwrap_or_default());
    let open = open_devices(pid, files_max)?.into_iter();
    Ok(open
        .filter_map(|(fd, number)| Some(HeldNode { fd, node: Node::of(number, unified_memory)? }))
        .collect())
}

/// The major number of unified memory's nodes in a text like that of `/proc/devices`.
fn unified_memory_major(devices: &str) -> Option<u32> {
    let mut lines = devices.lines().filter_map(|line| line.trim().split_once(' '));
    lines.find(|(_, name)| *name == UNIFIED_MEMORY)?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_known_by_their_numbers() {
        let of = |major, minor| Node::of(rustix::fs::makedev(major, minor), Some(511));
        assert_eq!(of(195, 255), Some(Node::Control));
        assert_eq!(of(195, 3), Some(Node::Device(3)));
        assert_eq!(of(195, 254), Some(Node::Modeset));
        assert_eq!(of(511, 0), Some(Node::UnifiedMemory));
        assert_eq!(of(511, 1), None, "the node for tools");
        assert_eq!(of(1, 3), None);
        let devices = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n";
        assert_eq!(unified_memory_major(devices), Some(511));
        assert_eq!(unified_memory_major("195 nvidia\n"), None);
    }

    #[test]
    fn this_process_holds_no_gpu() {
        assert_eq!(held_by(std::process::id()).unwrap(), []);
        assert!(!drives_display(std::process::id()));
    }
}
