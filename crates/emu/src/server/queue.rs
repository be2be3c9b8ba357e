//! Queues: rings that clients share, on a device; and the events of the devices.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gpreempt_core::busy_periods::BusyTime;
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::time::Duration;
use gpreempt_sim::external_gpu::ExternalGpuEvent;
use gpreempt_sim::ring::{PACKET_BYTES, RingPage};
use gpreempt_wire::emulator::ring_page::{QueuePage, QueueState};
use gpreempt_wire::emulator::{QueueInfo, Refusal, Reply};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Server;
use crate::kfd::driver::Driver;

const TASK_QUEUES_MAX: usize = 64;
const QUEUES_MAX: usize = 4_096;
const CAPACITY_MAX: u32 = 4_096;

#[derive(Debug)]
pub(super) struct ServedQueue {
    pub(super) connection: u64,
    pub(super) device: DeviceId,
    pub(super) page: Arc<QueuePage>,
    file: OwnedFd,
    /// Device and inode of the page's file.
    pub(super) identity: (u64, u64),
    /// Whether the device has it: with a KFD, only after `CREATE_QUEUE`.
    pub(super) is_made: bool,
}

/// Device and inode of a file.
pub(super) fn file_identity(file: &OwnedFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// The page as the device uses it.
#[derive(Debug)]
pub(crate) struct DevicePage(pub(crate) Arc<QueuePage>);

impl RingPage for DevicePage {
    fn capacity(&self) -> u64 {
        self.0.capacity().into()
    }

    fn put(&self, seen: u64) -> u64 {
        self.0.look(seen)
    }

    fn packet(&self, index: u64) -> [u8; PACKET_BYTES] {
        self.0.packet(index)
    }

    fn fetched(&self, count: u64) {
        self.0.set_fetched(count);
    }

    fn completed(&self, count: u64, latency: Duration) {
        self.0.set_completed(count, latency);
    }

    fn measured(&self, time: BusyTime) {
        self.0.add_busy(time);
    }
}

impl ServedQueue {
    pub(super) fn read_only_file(&self) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    pub(super) fn capacity(&self) -> u32 {
        self.page.capacity()
    }
}

impl Server {
    /// Opens a queue for a client: the reply, and the page's file.
    pub(super) fn open_queue(
        &mut self,
        number: u64,
        device: DeviceId,
        capacity: u32,
    ) -> Result<(Reply, OwnedFd), Refusal> {
        let client = self.connections.get(&number).and_then(|connection| connection.client());
        let client = client.ok_or(Refusal::WrongRole)?;
        let index = usize::try_from(device.0).map_err(|_| Refusal::NoSuchDevice)?;
        if index >= self.gpu.devices() {
            return Err(Refusal::NoSuchDevice);
        }
        if !capacity.is_power_of_two() || capacity > CAPACITY_MAX {
            return Err(Refusal::BadNumber);
        }
        if client.queues.len() >= TASK_QUEUES_MAX || self.queues.len() >= QUEUES_MAX {
            return Err(Refusal::TooMany);
        }
        let memory = client.memory;
        // The process has no memory or descriptors left.
        let (page, file) = QueuePage::create(capacity).map_err(|_| Refusal::TooMany)?;
        let theirs = file.try_clone().map_err(|_| Refusal::TooMany)?;
        self.last_queue += 1;
        let queue = QueueId(self.last_queue);
        let page = Arc::new(page);
        let is_made = self.kfd.is_none();
        if is_made {
            self.gpu.open_queue(queue, index, memory, Box::new(DevicePage(Arc::clone(&page))));
        }
        let identity = file_identity(&file).ok_or(Refusal::TooMany)?;
        let served = ServedQueue { connection: number, device, page, file, identity, is_made };
        self.queues.insert(queue, served);
        if let Some(client) = self.connections.get_mut(&number).and_then(|c| c.client_mut()) {
            client.queues.insert(queue);
        }
        if let Some(info) = self.queue_info(queue) {
            self.announce(&Reply::Queue(info));
        }
        Ok((Reply::Opened { queue, device, capacity }, theirs))
    }

    pub(super) fn close_queue(&mut self, queue: QueueId) {
        self.gpu.close_queue(queue);
        self.forget_queue(queue, QueueState::Closed);
    }

    pub(super) fn forget_queue(&mut self, queue: QueueId, state: QueueState) {
        let Some(served) = self.queues.remove(&queue) else { return };
        served.page.set_state(state);
        for connection in self.connections.values_mut() {
            if let Some(client) = connection.client_mut() {
                client.queues.remove(&queue);
            } else if let Some(control) = connection.control_mut() {
                control.touched.remove(&queue);
                control.held.remove(&queue);
            }
        }
        let is_faulted = state == QueueState::Faulted;
        self.announce(&Reply::QueueGone { queue, is_faulted });
    }

    pub(super) fn queue_info(&self, queue: QueueId) -> Option<QueueInfo> {
        let served = self.queues.get(&queue)?;
        let usage = self.gpu.usage(queue)?;
        Some(QueueInfo {
            queue,
            task: TaskId(served.connection),
            device: served.device,
            is_stopped: usage.is_stopped,
            slice: usage.slice,
        })
    }

    /// Starts the fetch of all queues of the client.
    pub(super) fn answer_bell(&mut self, number: u64) {
        let Some(client) = self.connections.get(&number).and_then(|c| c.client()) else { return };
        let mut count = [0; 8];
        let _ = rustix::io::read(client.bell.as_fd(), &mut count);
        for &queue in &client.queues {
            self.gpu.ring_doorbell(queue);
        }
    }
}

impl Server {
    /// Sends device events to the connections that wait for them, and closes connections that
    /// cannot receive.
    pub(super) fn report_events(&mut self) {
        while let Some(event) = self.gpu.poll_event() {
            let (call, reply) = match event {
                ExternalGpuEvent::Done(call) | ExternalGpuEvent::Gone(call)
                    if Driver::is_ours(call) =>
                {
                    self.driver_call_done(call);
                    continue;
                }
                ExternalGpuEvent::StepEnded { call, process, result } => {
                    self.step_ended(call, process, result);
                    continue;
                }
                ExternalGpuEvent::Done(call) => (call, Reply::Done),
                ExternalGpuEvent::Gone(call) => (call, Reply::Refused(Refusal::NoSuchQueue)),
                ExternalGpuEvent::Faulted { queue, .. } => {
                    self.forget_queue(queue, QueueState::Faulted);
                    continue;
                }
            };
            let Some((number, request)) = self.calls.remove(&call) else { continue };
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            if let Some(control) = connection.control_mut() {
                control.calls -= 1;
            }
            connection.send(&self.epoll, request, &reply, None);
        }
        loop {
            let lost = self.connections.values().find(|connection| connection.is_lost);
            let Some(number) = lost.map(|lost| lost.number) else { return };
            self.close(number);
        }
    }

    /// Sends a message to all watching connections.
    pub(super) fn announce(&mut self, reply: &Reply) {
        for connection in self.connections.values_mut().filter(|c| c.watches()) {
            connection.send(&self.epoll, 0, reply, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_core::time::Instant;
    use gpreempt_sim::ring::Packet;
    use gpreempt_wire::emulator::client::Launch;

    #[test]
    fn the_simulator_reads_what_clients_write() {
        let launch = Launch {
            kernel: 1,
            groups: 2,
            waves: 3,
            region: 4,
            region_bytes: 5,
            number: 6,
            work_ns: 7,
        };
        let packet = Packet {
            kernel: 1,
            groups: 2,
            waves: 3,
            arguments: [4, 6, 7, 5],
            number: 1 << 40,
            rung_at: Instant::ZERO,
        };
        assert_eq!(Packet::decode(&launch.encode(1 << 40)), Some(packet));
        assert_eq!(launch.encode(1 << 40), packet.encode());
    }
}
