//! The emulator's devices, as the driver controls them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_kfd::abi::trap::DeviceEntry;
use gpreempt_sim::external_gpu::{Call, CallId, ExternalGpu};
use gpreempt_wire::emulated_kfd::device_of;
use rustix::io::Errno;

use super::KfdOptions;
use crate::kfd::world::Devices;
use crate::server::connection::Connection;
use crate::server::queue::{DevicePage, ServedQueue, file_identity};

/// What of the emulator the driver reaches.
pub(super) struct ServedDevices<'a> {
    pub(super) gpu: &'a mut ExternalGpu,
    pub(super) queues: &'a mut BTreeMap<QueueId, ServedQueue>,
    pub(super) connections: &'a BTreeMap<u64, Connection>,
    /// Queues that are gone, and whose clients are still to be told.
    pub(super) closed: Vec<QueueId>,
    pub(super) options: &'a KfdOptions,
}

impl Devices for ServedDevices<'_> {
    /// The ring is named by the file it is in, which came from the emulator's own socket.
    fn open_queue(
        &mut self,
        pid: u32,
        block: &CreateQueue,
        ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno> {
        let ring = file_identity(&ring.ok_or(Errno::INVAL)?).ok_or(Errno::INVAL)?;
        let found = self.queues.iter_mut().find(|(_, served)| served.identity == ring);
        let (&queue, served) = found.ok_or(Errno::INVAL)?;
        let connection = self.connections.get(&served.connection);
        let connection = connection.filter(|connection| connection.pid == pid);
        let client = connection.and_then(Connection::client).ok_or(Errno::INVAL)?;
        let device = device_of(block.gpu_id).filter(|device| *device < self.gpu.devices());
        let device = device.ok_or(Errno::INVAL)?;
        if usize::try_from(served.device.0) != Ok(device) {
            return Err(Errno::INVAL);
        }
        if served.is_made {
            return Err(Errno::BUSY);
        }
        served.is_made = true;
        let page = Box::new(DevicePage(Arc::clone(&served.page)));
        self.gpu.open_stopped_queue(queue, device, client.memory, page);
        Ok(queue)
    }

    fn close_queue(&mut self, queue: QueueId) {
        self.gpu.close_queue(queue);
        self.closed.push(queue);
    }

    fn remap(&mut self, call: CallId, gpu_id: u32, runlist: BTreeSet<QueueId>) -> bool {
        let Some(device) = device_of(gpu_id) else { return true };
        self.gpu.remap(call, device, runlist);
        false
    }

    fn move_queue(&mut self, call: CallId, queue: QueueId, on: bool) -> bool {
        self.gpu.call(call, queue, if on { Call::Resume } else { Call::Stop });
        false
    }

    fn ring(&self, queue: QueueId) -> Option<RingView> {
        Some(self.queues.get(&queue)?.page.read().view(false))
    }

    fn describe(&self, gpu_id: u32) -> DeviceEntry {
        DeviceEntry {
            gpu_id,
            gfx_version: self.options.gfx,
            simds: self.gpu.model().compute_units.saturating_mul(4),
            waves_per_simd: 8,
            xccs: self.options.xccs,
            ..DeviceEntry::default()
        }
    }
}
