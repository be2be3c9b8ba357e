//! For programs that compute on the emulated GPU: queues, launches, results.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::time::Duration;

use super::connection::{Connection, deadline};
use super::ring_page::{QueuePage, QueueState, RingAddresses};
use super::{DATA_BYTES_MAX, DeviceInfo, EmuError, Refusal, Reply, Request, Role};
use crate::shared_memory::Access;

/// How long to wait for a reply that comes at once.
const TIMEOUT: Duration = Duration::from_millis(10_000);

/// How long to wait for a reply that comes when the process is no longer locked or checkpointed.
const TURN_MAX: Duration = Duration::from_nanos(u64::MAX);

/// A program's connection to the emulated GPU. Dropping it frees its queues and its memory on the
/// device.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    shared: Arc<Shared>,
    task: TaskId,
}

/// What a connection shares with its queues.
#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    /// A copy of the connection, to notice its end.
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
    /// Connects, with that much zeroed memory on the device.
    pub fn connect(path: &Path, memory_bytes: u32) -> Result<Self, EmuError> {
        let mut connection = Connection::connect(path)?;
        let hello = Request::Hello(Role::Client { memory_bytes });
        let (Reply::Welcome { task, .. }, Some(bell)) = connection.ask(&hello, TURN_MAX)? else {
            return Err(EmuError::UnexpectedReply);
        };
        let socket = connection.socket().try_clone()?;
        Ok(Self { connection, shared: Arc::new(Shared { bell, socket }), task })
    }

    /// The task id of this program in the emulator.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// The devices of the emulator.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, EmuError> {
        let device = |reply| if let Reply::Device(device) = reply { Some(device) } else { None };
        Ok(self.connection.list(&Request::List, TIMEOUT)?.into_iter().filter_map(device).collect())
    }

    /// Opens a queue whose ring holds `capacity` packets, a power of two.
    pub fn open_queue(&mut self, device: DeviceId, capacity: u32) -> Result<Queue, EmuError> {
        Ok(self.open_queue_with_file(device, capacity)?.0)
    }

    /// Opens a queue, and returns the file of its ring as well.
    pub(crate) fn open_queue_with_file(
        &mut self,
        device: DeviceId,
        capacity: u32,
    ) -> Result<(Queue, OwnedFd), EmuError> {
        let request = Request::OpenQueue { device, capacity };
        let (Reply::Opened { queue, .. }, Some(file)) = self.connection.ask(&request, TURN_MAX)?
        else {
            return Err(EmuError::UnexpectedReply);
        };
        let page = QueuePage::open(file.as_fd(), capacity, Access::ReadWrite)?;
        Ok((Queue { id: queue, page, put: 0, shared: Arc::clone(&self.shared) }, file))
    }

    /// Closes a queue, whatever its ring contains.
    pub fn close_queue(&mut self, queue: &Queue) -> Result<(), EmuError> {
        self.connection.expect_done(&Request::CloseQueue(queue.id), TURN_MAX)
    }

    /// Allocates memory of a device, which is counted and has no contents. Returns the id of the
    /// allocation. Refused with [`NoMemory`](Refusal::NoMemory) if it does not fit.
    pub fn allocate(&mut self, device: DeviceId, bytes: u64) -> Result<u64, EmuError> {
        match self.connection.ask(&Request::Allocate { device, bytes }, TURN_MAX)? {
            (Reply::Allocated { allocation }, _) => Ok(allocation),
            _ => Err(EmuError::UnexpectedReply),
        }
    }

    /// Frees an allocation.
    pub fn free(&mut self, allocation: u64) -> Result<(), EmuError> {
        self.connection.expect_done(&Request::Free(allocation), TURN_MAX)
    }

    /// Reads memory on the device.
    pub fn read(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, EmuError> {
        let mut read = Vec::with_capacity(bytes);
        while read.len() < bytes {
            let piece = (bytes - read.len()).min(DATA_BYTES_MAX);
            // PANIC: both are below the sizes that fit into 32 bits, or the emulator refuses.
            let at = u32::try_from(read.len()).ok().and_then(|done| address.checked_add(done));
            let at = at.ok_or(EmuError::Refused(Refusal::BadNumber))?;
            let piece = u32::try_from(piece).expect("at most the size of a message");
            let request = Request::Read { address: at, bytes: piece };
            let (Reply::Data { bytes, .. }, _) = self.connection.ask(&request, TURN_MAX)? else {
                return Err(EmuError::UnexpectedReply);
            };
            read.extend_from_slice(&bytes);
        }
        Ok(read)
    }
}

impl Queue {
    /// The id of the queue in the emulator.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The addresses of its ring and its indices in this process.
    pub(crate) fn addresses(&self) -> RingAddresses {
        self.page.addresses()
    }

    /// Kernels submitted so far.
    pub fn submitted(&self) -> u64 {
        self.put
    }

    /// Kernels complete so far.
    pub fn completed(&self) -> u64 {
        self.page.read().completed
    }

    /// The device's time from the submission of the last kernel to its end, of a queue with one
    /// kernel at a time: a delay of this process does not count.
    pub fn latency(&self) -> Duration {
        self.page.latency()
    }

    /// Submits a kernel. Returns the number of completed kernels that includes it.
    pub fn submit(&mut self, launch: &Launch) -> Result<u64, EmuError> {
        self.check()?;
        if self.put.wrapping_sub(self.page.read().get) >= u64::from(self.page.capacity()) {
            return Err(EmuError::Full);
        }
        self.write(&launch.encode(self.put));
        Ok(self.put)
    }

    /// Writes a packet with any content, and rings the doorbell if the device wants it.
    pub fn write(&mut self, packet: &[u8; PACKET_BYTES]) {
        let wanted = self.page.write(self.put, packet);
        self.put += 1;
        if wanted {
            self.ring_doorbell();
        }
    }

    fn ring_doorbell(&self) {
        // It fails only if the eventfd overflows, after 2^64 writes that the device did not read.
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_le_bytes());
    }

    /// Waits until that many kernels are complete. False if the timeout came first.
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
            self.page.wait_beyond(completed, left.min(CHECK));
            // An emulator that was killed does not change the page. A caller that waits in short
            // pieces has to notice as well.
            let has_no_progress = self.completed() == completed;
            if has_no_progress && crate::packet_socket::has_ended(&self.shared.socket) {
                return Err(EmuError::Gone);
            }
        }
    }

    /// Checks that the queue is open and, if asked, that the emulator runs, which costs a system
    /// call.
    pub fn check_thoroughly(&self, checks_connection: bool) -> Result<(), EmuError> {
        if checks_connection && crate::packet_socket::has_ended(&self.shared.socket) {
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

/// How often a wait checks whether the emulator still runs.
const CHECK: std::time::Duration = std::time::Duration::from_millis(100);

/// Bytes of a packet in a ring.
pub const PACKET_BYTES: usize = 64;

/// How many kernels the emulated GPU has loaded; launches name them by numbers from 0 on.
pub const KERNEL_COUNT: u32 = 5;

/// The number of the kernel `mix`, whose result [`MixedWord`] predicts.
pub const MIX: u32 = 1;

const MAGIC: u32 = 0x5047_4b31;

/// One launch of a kernel, as a program writes it into a ring.
///
/// ```text
///   0  u32  magic, so that the device never takes an empty slot for a launch
///   4  u32  kernel: index in the table of loaded programs
///   8  u32  work-groups          12  u32  waves in each
///  16  u32  arguments[4]: region, number, work in nanoseconds, bytes of the region
///  32  u64  number of the launch in its queue, counted by the client
///  40  u64  zero: the simulator keeps the time of the doorbell here
///  48  16 bytes of zero
/// ```
///
/// The simulator reads the same layout; a test of the emulator compares the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The number of the kernel, below [`KERNEL_COUNT`].
    pub kernel: u32,
    /// Work-groups.
    pub groups: u32,
    /// Waves in each work-group.
    pub waves: u32,
    /// The address of the kernel's region in memory.
    pub region: u32,
    /// The size of the region.
    pub region_bytes: u32,
    /// A number that the kernel mixes into its result.
    pub number: u32,
    /// How long each wave is busy.
    pub work_ns: u32,
}

impl Launch {
    /// The packet, as launch number `launch` of its queue.
    pub fn encode(&self, launch: u64) -> [u8; PACKET_BYTES] {
        let Self { kernel, groups, waves, region, region_bytes, number, work_ns } = *self;
        let words = [MAGIC, kernel, groups, waves, region, number, work_ns, region_bytes];
        let mut bytes = [0; PACKET_BYTES];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&launch.to_le_bytes());
        bytes
    }
}

/// The value of every word in the region of the kernel `mix` after some launches. It depends on
/// each of them and on their order; all words are equal because all begin as zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct MixedWord {
    word: u32,
    launches: u32,
}

impl MixedWord {
    /// The number that the next launch must mix in ([`Launch::number`]).
    pub fn next_number(self) -> u32 {
        self.launches
    }

    /// Adds one launch.
    pub fn launch(&mut self) {
        self.word = self
            .word
            .wrapping_mul(1_664_525)
            .wrapping_add(self.launches)
            .wrapping_add(1_013_904_223);
        self.launches = self.launches.wrapping_add(1);
    }

    /// The value.
    pub fn word(self) -> u32 {
        self.word
    }

    /// Whether every word of a region has the value. An empty region has none.
    pub fn fills(self, region: &[u8]) -> bool {
        !region.is_empty() && region.chunks(4).all(|word| word == self.word.to_le_bytes())
    }
}
