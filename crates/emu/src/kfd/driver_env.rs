//! What the driver gets from its caller: devices, tracers and the time; and what `/proc` tells
//! about real processes.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::{fmt, fs};

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Instant;
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_kfd::abi::trap::DeviceEntry;
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;

pub struct DriverEnv<'a> {
    pub devices: &'a mut dyn Devices,
    pub tracer_of: &'a dyn Fn(u32) -> Option<u32>,
    pub now: Instant,
}

/// Devices that a driver controls. Calls may be asynchronous: the caller reports their completion
/// to the driver.
pub trait Devices {
    /// Creates a queue that is not mapped yet. `EINVAL`: no such device, or `ring` is not a ring.
    fn open_queue(
        &mut self,
        pid: u32,
        block: &CreateQueue,
        ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno>;

    fn close_queue(&mut self, queue: QueueId);

    /// Unmaps all queues of a device and maps those of the run list. Returns whether it is done.
    fn remap(&mut self, call: CallId, gpu_id: u32, runlist: BTreeSet<QueueId>) -> bool;

    /// Maps or unmaps one queue. Returns whether it is done.
    fn move_queue(&mut self, call: CallId, queue: QueueId, on: bool) -> bool;

    fn ring(&self, _queue: QueueId) -> Option<RingView> {
        None
    }

    fn describe(&self, gpu_id: u32) -> DeviceEntry {
        DeviceEntry { gpu_id, xccs: 1, ..DeviceEntry::default() }
    }
}

/// Devices that complete every call at once and run nothing.
#[derive(Debug, Default)]
pub struct InstantDevices {
    last: u64,
}

impl Devices for InstantDevices {
    fn open_queue(
        &mut self,
        _pid: u32,
        _block: &CreateQueue,
        _ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno> {
        self.last += 1;
        Ok(QueueId(self.last))
    }

    fn close_queue(&mut self, _queue: QueueId) {}

    fn remap(&mut self, _call: CallId, _gpu_id: u32, _runlist: BTreeSet<QueueId>) -> bool {
        true
    }

    fn move_queue(&mut self, _call: CallId, _queue: QueueId, _on: bool) -> bool {
        true
    }
}

impl fmt::Debug for DriverEnv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriverEnv")
    }
}

/// `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`.
const MAY_CHECKPOINT: u64 = 1 << 40 | IS_ADMIN;
/// `CAP_SYS_ADMIN`.
const IS_ADMIN: u64 = 1 << 21;

pub(crate) fn tracer_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "TracerPid:")?.parse().ok().filter(|tracer| *tracer != 0)
}

pub(crate) fn is_thread_of(thread: u32, pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
}

pub(crate) fn may_checkpoint(pid: u32) -> bool {
    has_any(pid, MAY_CHECKPOINT)
}

pub(crate) fn is_admin(pid: u32) -> bool {
    has_any(pid, IS_ADMIN)
}

fn has_any(pid: u32, wanted: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let capabilities = field(&status, "CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok());
    capabilities.is_some_and(|set| set & wanted != 0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_capabilities_are_read_from_proc() {
        let own = std::process::id();
        assert!(is_thread_of(own, own) && !is_thread_of(u32::MAX, own));
        assert!(!may_checkpoint(u32::MAX) && !is_admin(u32::MAX));
        assert_eq!(tracer_of(u32::MAX), None);
    }
}
