//! For programs that compute on the emulated GPU: queues, launches, results.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::time::Duration;

use crate::emulator::EmuError;
use crate::emulator::connection::{Connection, deadline};
use crate::emulator::launch::PACKET_BYTES;
use crate::emulator::ring_page::{Places, QueuePage, QueueState};
use crate::emulator::{DATA_BYTES_MAX, DeviceInfo, Reply, Request, Role};
use crate::shared_memory::Access;

pub use super::launch::{KERNEL_COUNT, Launch};

/// How long the emulator may take to answer.
const TIMEOUT: Duration = Duration::from_millis(10_000);

/// A program's connection to the emulated GPU. When it is dropped, its queues and its memory on
/// the device are gone.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    shared: Arc<Shared>,
    task: TaskId,
}

/// What the queues need.
#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    /// The connection, to see whether it still stands.
    socket: OwnedFd,
}

/// A queue of a program.
#[derive(Debug)]
pub struct Queue {
    id: QueueId,
    page: QueuePage,
    /// Packets written.
    put: u64,
    shared: Arc<Shared>,
}

impl Client {
    /// Connects, with that much memory on the device, all zero.
    ///
    /// # Errors
    /// There is no emulator, or it has no room.
    pub fn connect(path: &Path, memory_bytes: u32) -> Result<Self, EmuError> {
        let mut connection = Connection::connect(path)?;
        let hello = Request::Hello(Role::Client { memory_bytes });
        let (Reply::Welcome { task, .. }, Some(bell)) = connection.ask(&hello, TIMEOUT)? else {
            return Err(EmuError::Confused);
        };
        let socket = connection.socket().try_clone()?;
        Ok(Self { connection, shared: Arc::new(Shared { bell, socket }), task })
    }

    /// What the emulator calls this program.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// The devices there are.
    ///
    /// # Errors
    /// The emulator is gone.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, EmuError> {
        let device = |reply| if let Reply::Device(device) = reply { Some(device) } else { None };
        Ok(self.connection.list(TIMEOUT)?.into_iter().filter_map(device).collect())
    }

    /// Opens a queue whose ring holds `capacity` packets, a power of two.
    ///
    /// # Errors
    /// There is no such device, or no room, or the emulator is gone.
    pub fn open_queue(&mut self, device: DeviceId, capacity: u32) -> Result<Queue, EmuError> {
        Ok(self.open_queue_with_file(device, capacity)?.0)
    }

    /// The same with the file that the ring is in.
    pub(crate) fn open_queue_with_file(
        &mut self,
        device: DeviceId,
        capacity: u32,
    ) -> Result<(Queue, OwnedFd), EmuError> {
        let request = Request::OpenQueue { device, capacity };
        let (Reply::Opened { queue, .. }, Some(file)) = self.connection.ask(&request, TIMEOUT)?
        else {
            return Err(EmuError::Confused);
        };
        let page = QueuePage::open(file.as_fd(), capacity, Access::ReadWrite)?;
        Ok((Queue { id: queue, page, put: 0, shared: Arc::clone(&self.shared) }, file))
    }

    /// Closes a queue, whatever is in it.
    ///
    /// # Errors
    /// The emulator is gone.
    pub fn close_queue(&mut self, queue: &Queue) -> Result<(), EmuError> {
        self.connection.do_it(&Request::CloseQueue(queue.id), TIMEOUT)
    }

    /// Reads memory on the device.
    ///
    /// # Errors
    /// The memory is not that large, or the emulator is gone.
    pub fn read(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, EmuError> {
        let mut read = Vec::with_capacity(bytes);
        while read.len() < bytes {
            let piece = (bytes - read.len()).min(DATA_BYTES_MAX);
            // PANIC: both are below the sizes that fit into 32 bits, or the emulator refuses.
            let at = u32::try_from(read.len()).ok().and_then(|done| address.checked_add(done));
            let at = at.ok_or(EmuError::Refused(crate::emulator::Refusal::BadNumber))?;
            let piece = u32::try_from(piece).expect("a message's worth");
            let request = Request::Read { address: at, bytes: piece };
            let (Reply::Data { bytes, .. }, _) = self.connection.ask(&request, TIMEOUT)? else {
                return Err(EmuError::Confused);
            };
            read.extend_from_slice(&bytes);
        }
        Ok(read)
    }
}

impl Queue {
    /// What the emulator calls it.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Where its ring and its indices are in this process.
    pub(crate) fn places(&self) -> Places {
        self.page.places()
    }

    /// Kernels submitted so far.
    pub fn submitted(&self) -> u64 {
        self.put
    }

    /// Kernels complete so far.
    pub fn completed(&self) -> u64 {
        self.page.read().completed
    }

    /// Submits a kernel. Returns how many will be complete when it is.
    ///
    /// # Errors
    /// The ring is full, or the queue is gone.
    pub fn submit(&mut self, launch: &Launch) -> Result<u64, EmuError> {
        self.check()?;
        if self.put.wrapping_sub(self.page.read().get) >= u64::from(self.page.capacity()) {
            return Err(EmuError::Full);
        }
        self.write(&launch.encode(self.put));
        Ok(self.put)
    }

    /// Writes a packet, whatever it is, and tells the device.
    pub fn write(&mut self, packet: &[u8; PACKET_BYTES]) {
        let wanted = self.page.write(self.put, packet);
        self.put += 1;
        if wanted {
            self.ring_doorbell();
        }
    }

    fn ring_doorbell(&self) {
        // It can only fail if the bell has been ringing for four billion times.
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_le_bytes());
    }

    /// Waits until that many kernels are complete, at most so long. False: they are not.
    ///
    /// # Errors
    /// The queue is gone, or the emulator.
    pub fn wait(&self, count: u64, timeout: Duration) -> Result<bool, EmuError> {
        let until = deadline(timeout);
        loop {
            let completed = self.completed();
            if completed >= count {
                return Ok(true);
            }
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.page.wait_beyond(completed, left.min(LOOK));
            // An emulator that was killed cannot say so in the page. Whoever waits in short pieces
            // has to notice as well.
            let is_in_vain = self.completed() == completed;
            if is_in_vain && crate::packet_socket::has_ended(&self.shared.socket) {
                return Err(EmuError::Gone);
            }
        }
    }

    /// Whether the queue is still of use, and if that is asked for, whether there is still an
    /// emulator, which costs a system call.
    ///
    /// # Errors
    /// The queue is gone, or the emulator.
    pub fn check_thoroughly(&self, looks_at_connection: bool) -> Result<(), EmuError> {
        if looks_at_connection && crate::packet_socket::has_ended(&self.shared.socket) {
            return Err(EmuError::Gone);
        }
        self.check()
    }

    fn check(&self) -> Result<(), EmuError> {
        match self.page.state() {
            QueueState::Open => Ok(()),
            QueueState::Faulted => Err(EmuError::Faulted),
            QueueState::Closed => Err(EmuError::Gone),
        }
    }
}

/// How often whoever waits looks whether the emulator is still there.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);
