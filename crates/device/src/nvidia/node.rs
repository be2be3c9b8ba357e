//! NVIDIA's device nodes, and which of them a process holds open.
//!
//! Nodes are recognised by their numbers, not their names, so that processes in containers with
//! another view of `/dev` are found as well.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::process::device_number;

/// What the kernel calls the nodes of unified memory, whose major number it chooses itself.
const UNIFIED_MEMORY: &str = "nvidia-uvm";
/// The major number of all others.
const MAJOR: u32 = 195;
const MINOR_CONTROL: u32 = 255;
const MINOR_MODESET: u32 = 254;

/// What an open file of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// `/dev/nvidiactl`: where RM clients live.
    Control,
    /// `/dev/nvidiaN`, by its minor number.
    Device(u32),
    /// `/dev/nvidia-modeset`: a display server.
    Modeset,
    /// `/dev/nvidia-uvm`: where address spaces are.
    UnifiedMemory,
}

/// One open file of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldNode {
    /// Its number in that process.
    pub fd: i32,
    /// What it is.
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

/// The NVIDIA nodes a process holds open.
///
/// # Errors
/// If its files are not shown to us.
pub fn held_by(pid: u32) -> io::Result<Vec<HeldNode>> {
    let mut held = Vec::new();
    let unified_memory =
        unified_memory_major(&fs::read_to_string("/proc/devices").unwrap_or_default());
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(entry) = entry else { continue };
        // A file that was closed meanwhile is simply not there.
        let Some(number) = device_number(&entry.path()) else { continue };
        let fd = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(fd), Some(node)) = (fd, Node::of(number, unified_memory)) {
            held.push(HeldNode { fd, node });
        }
    }
    held.sort_by_key(|held| held.fd);
    Ok(held)
}

/// The major number of unified memory's nodes in a text like that of `/proc/devices`.
fn unified_memory_major(devices: &str) -> Option<u32> {
    let mut lines = devices.lines().filter_map(|line| line.trim().split_once(' '));
    lines.find(|(_, name)| *name == UNIFIED_MEMORY)?.0.parse().ok()
}

/// A process, held so that nobody else can take its number while we talk to it.
#[derive(Debug)]
pub struct HeldProcess {
    pidfd: OwnedFd,
}

impl HeldProcess {
    /// Takes hold of a process.
    ///
    /// # Errors
    /// If there is none of that number.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self { pidfd: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// A second descriptor of one of its open files. While it is open, what the process has on
    /// the device stays even if the process ends: close it as soon as possible.
    ///
    /// # Errors
    /// If we may not (the rules are those of ptrace), or the file is closed.
    pub fn borrow_fd(&self, fd: i32) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(pidfd_getfd(self.pidfd.as_fd(), fd, PidfdGetfdFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn nodes_are_known_by_their_numbers() {
        let of = |major, minor| Node::of(rustix::fs::makedev(major, minor), Some(511));
        assert_eq!(of(195, 255), Some(Node::Control));
        assert_eq!(of(195, 3), Some(Node::Device(3)));
        assert_eq!(of(195, 254), Some(Node::Modeset));
        assert_eq!(of(511, 0), Some(Node::UnifiedMemory));
        assert_eq!(of(511, 1), None, "that one is for tools");
        assert_eq!(of(1, 3), None);
        let devices = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n";
        assert_eq!(unified_memory_major(devices), Some(511));
        assert_eq!(unified_memory_major("195 nvidia\n"), None);
    }

    #[test]
    fn a_file_of_a_process_can_be_borrowed() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let process = HeldProcess::open(std::process::id()).unwrap();
        let borrowed = process.borrow_fd(reader.as_raw_fd()).unwrap();
        assert_ne!(borrowed.as_raw_fd(), reader.as_raw_fd());
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut text = String::new();
        fs::File::from(borrowed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert!(process.borrow_fd(-1).is_err());
    }

    #[test]
    fn the_end_of_a_process_is_noticed_before_anybody_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = HeldProcess::open(child.id()).unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        let noticed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            process.has_ended()
        });
        child.wait().unwrap();
        assert!(noticed);
    }

    #[test]
    fn this_process_holds_no_gpu() {
        assert_eq!(held_by(std::process::id()).unwrap(), []);
    }
}
