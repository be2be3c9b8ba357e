//! The emulated GPU (`gpreempt-emu`): its messages, its rings in shared memory, its clients.
//!
//! A Unix socket of type `SOCK_SEQPACKET`: one message is one packet, with the header that all
//! protocols have. The first message must be [`Request::Hello`]. Any bytes are a message or a
//! [`DecodeError`]; the emulator closes a connection after the first error. The credentials of the
//! peer decide whether it may control: root, or the user that the emulator runs as.
//!
//! ```text
//!   client::Client    -- Request -->  the emulator
//!   control::Control  <-- Reply ----
//!   client::Queue     == ring_page::QueuePage (shared memory) ==  a device of the emulator
//! ```
//!
//! [`client`] is for programs that compute, [`control`] for the backend of a scheduler,
//! [`checkpoints`] for programs that move the memory of a process to the host and back.

pub mod checkpoints;
pub mod client;
mod connection;
pub mod control;
pub mod ring_page;

use std::fmt;

use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

pub use connection::EmuError;

use crate::codec::{Field, Reader};
use crate::message::{DecodeError, HEADER_BYTES, Protocol};
use crate::text::Text;

/// The protocol. Version 1 had a shorter header.
pub const PROTOCOL: Protocol =
    Protocol { magic: u32::from_le_bytes(*b"GPEM"), version: 2, packet_bytes_max: REPLY_BYTES_MAX };

/// The longest request.
pub const REQUEST_BYTES_MAX: usize = 64;

/// Most bytes of memory in one [`Reply::Data`].
pub const DATA_BYTES_MAX: usize = 32 * 1024;

/// The longest reply: address, length and bytes of [`Reply::Data`].
pub const REPLY_BYTES_MAX: usize = HEADER_BYTES + 8 + DATA_BYTES_MAX;

/// The kind of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A program that computes.
    Client {
        /// Memory of its kernels.
        memory_bytes: u32,
    },
    /// A scheduler, which controls the queues of other processes.
    Control {
        /// Whether it receives an event for each task and queue that appears or vanishes.
        watches: bool,
        /// Whether the emulator undoes everything that it stopped or slowed when the connection
        /// ends.
        releases: bool,
    },
    /// A program that takes processes of its user off the devices and brings them back.
    Checkpointer,
}

/// One byte for the role, two flags of control, a zero, and the memory of a client. Fields that a
/// role does not have are zero.
impl Field for Role {
    const BYTES: usize = 8;

    fn put(&self, body: &mut Vec<u8>) {
        let (role, watches, releases, memory_bytes) = match *self {
            Self::Client { memory_bytes } => (CLIENT, false, false, memory_bytes),
            Self::Control { watches, releases } => (CONTROL, watches, releases, 0),
            Self::Checkpointer => (CHECKPOINTER, false, false, 0),
        };
        role.put(body);
        watches.put(body);
        releases.put(body);
        0_u8.put(body);
        memory_bytes.put(body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let role = u8::take(name, reader)?;
        let watches = bool::take("watches", reader)?;
        let releases = bool::take("releases", reader)?;
        reader.zeros(1)?;
        let memory_bytes = u32::take("memory_bytes", reader)?;
        match (role, watches, releases, memory_bytes) {
            (CLIENT, false, false, _) => Ok(Self::Client { memory_bytes }),
            (CONTROL, _, _, 0) => Ok(Self::Control { watches, releases }),
            (CHECKPOINTER, false, false, 0) => Ok(Self::Checkpointer),
            _ => Err(DecodeError::field(name, "1 with memory, 2 with flags, or 3")),
        }
    }
}

const CLIENT: u8 = 1;
const CONTROL: u8 = 2;
const CHECKPOINTER: u8 = 3;

messages! {
    /// A request to the emulator. Each is answered once, apart from [`Request::List`] and
    /// [`Request::Memory`]. Those of a client wait while its process is locked or checkpointed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Request of PROTOCOL, from 1 {
        /// The first message. Answer: Welcome; a client's carries its doorbell, an eventfd.
        1 = Hello(role: Role),
        /// A client opens a queue. Answer: Opened, with the ring's page as a memfd.
        2 = OpenQueue {
            /// The device of the queue.
            device: DeviceId,
            /// Packets that the ring holds: a power of two.
            capacity: u32,
        },
        /// A client closes a queue. Answer: Done.
        3 = CloseQueue(queue: QueueId),
        /// A client reads its memory on the device. Answer: Data.
        4 = Read {
            /// The address.
            address: u32,
            /// The number of bytes.
            bytes: u32,
        },
        /// All devices and, for control, tasks and queues. Answers: Device, Task and Queue for each
        /// one; then Done.
        5 = List,
        /// Takes a queue off its device, in the middle of a kernel. Answer: Done when it is off.
        6 = Stop(queue: QueueId),
        /// Lets a queue run again. Answer: Done when it does.
        7 = Resume(queue: QueueId),
        /// Sets the slice of a queue. Answer: Done when it has it.
        8 = SetSlice {
            /// The queue.
            queue: QueueId,
            /// The slice; none for the one that the queue began with.
            slice: Option<Duration>,
        },
        /// Permits holds on the device for this queue alone, as long as this connection lasts.
        /// Answer: Done.
        9 = PermitHold(queue: QueueId),
        /// Forbids holds for this queue. Answer: Done.
        10 = ForbidHold(queue: QueueId),
        /// Sets the hardware priority of a queue. Answer: Done.
        11 = SetPriority {
            /// The queue.
            queue: QueueId,
            /// The priority.
            priority: Priority; 7 zeros,
        },
        /// Reads the page with a queue's indices. Answer: Page, with a read-only memfd.
        12 = Page(queue: QueueId),
        /// Reads how much a queue ran. Answer: Usage.
        13 = Usage(queue: QueueId),
        /// Stops fetching from a ring; fetched kernels finish. Answer: Done when they have.
        14 = Park(queue: QueueId),
        /// Fetches from a ring again. Answer: Done when it does.
        15 = Unpark(queue: QueueId),
        /// Reads how much a device ran. Answer: DeviceUsage.
        16 = DeviceUsage {
            /// The device.
            device: DeviceId; 4 zeros,
        },
        /// A client allocates memory, which is counted and has no contents. Answer: Allocated.
        17 = Allocate {
            /// The device.
            device: DeviceId; 4 zeros,
            /// How many bytes.
            bytes: u64,
        },
        /// A client frees an allocation. Answer: Done.
        18 = Free(allocation: u64),
        /// How the memory of all devices is used. Answers: DeviceMemory for each one and, for
        /// control, ProcessMemory for each process and device; then Done.
        19 = Memory,
        /// Where a process and its memory are. Answer: CheckpointState.
        20 = CheckpointState(pid: u32),
        /// Waits until the kernels of a process have finished and starts no more. Answer: Done when
        /// it is locked.
        21 = Lock {
            /// The process.
            pid: u32; 4 zeros,
            /// How long its kernels may take; none for no limit.
            timeout: Option<Duration>,
        },
        /// Moves the memory of a locked process to the host. Answer: Done when it is there.
        22 = Checkpoint(pid: u32),
        /// Moves the memory of a checkpointed process back. Answer: Done when the process is
        /// locked again.
        23 = Restore(pid: u32),
        /// Lets a locked process run. Answer: Done when it may.
        24 = Unlock(pid: u32),
    }
}

record! {
    /// One device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceInfo {
        /// The id of the device.
        pub device: DeviceId,
        /// Compute units.
        pub compute_units: u32,
        /// The capabilities of the device.
        pub capabilities: Capabilities,
        /// Whether a reading of a ring tells that fetched work still runs.
        pub can_tell_running: bool; 3 zeros,
        /// The name of the device.
        pub name: Text<32>,
    }
}

impl Field for Capabilities {
    const BYTES: usize = 4 + 3 * Duration::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        self.mechanism.put(body);
        self.level.put(body);
        self.hold.put(body);
        self.hardware_priority.put(body);
        self.preempt_cost.put(body);
        self.resume_cost.put(body);
        self.quiet.put(body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            mechanism: Mechanism::take("mechanism", reader)?,
            level: PreemptLevel::take("level", reader)?,
            hold: bool::take("hold", reader)?,
            hardware_priority: bool::take("hardware_priority", reader)?,
            preempt_cost: Duration::take("preempt_cost", reader)?,
            resume_cost: Duration::take("resume_cost", reader)?,
            quiet: Duration::take("quiet", reader)?,
        })
    }
}

codes! {
    /// Why the emulator refused a request.
    pub enum Refusal as u32, "between 1 and 15" {
        /// Only root and the emulator's own user may control.
        NotAllowed = 1 "only root and its own user may control it",
        /// A peer of this role may not send it.
        WrongRole = 2 "a peer of this role may not ask for that",
        /// There is no such device.
        NoSuchDevice = 3 "there is no such device",
        /// There is no such queue, or no longer, or it is another client's.
        NoSuchQueue = 4 "there is no such queue",
        /// A limit was reached.
        TooMany = 5 "the limit of such objects was reached",
        /// A number is out of its range.
        BadNumber = 6 "a number is out of its range",
        /// The device has too little free memory.
        NoMemory = 7 "the device has too little free memory",
        /// No process with that pid has memory or queues.
        NoSuchProcess = 8 "the process does not use it",
        /// The kernels of a process did not finish before the timeout; it continues.
        NotReady = 9 "the kernels of the process did not finish in time",
        /// Another step of the process has not ended.
        Busy = 10 "another step of the process has not ended",
        /// The process is locked, and may not be for this request.
        IsLocked = 11 "the process is locked",
        /// The process is checkpointed, and may not be for this request.
        IsCheckpointed = 12 "the process is checkpointed",
        /// The process runs, and may not for this request.
        IsRunning = 13 "the process is not locked",
        /// The process ended during the request.
        ProcessGone = 14 "the process ended meanwhile",
        /// There is no such allocation, or it is another client's.
        NoSuchAllocation = 15 "there is no such allocation",
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

record! {
    /// One task: a client process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TaskInfo {
        /// The id of the task, never used twice by one emulator.
        pub task: TaskId,
        /// The process.
        pub pid: u32,
        /// The user of the process.
        pub uid: u32,
    }
}

record! {
    /// One queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QueueInfo {
        /// The id of the queue, never used twice by one emulator.
        pub queue: QueueId,
        /// The task of the queue.
        pub task: TaskId,
        /// The device of the queue.
        pub device: DeviceId,
        /// Whether it is stopped.
        pub is_stopped: bool; 3 zeros,
        /// The slice of the queue.
        pub slice: Duration,
    }
}

record! {
    /// The settings of a queue, and how much it ran.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UsageInfo {
        /// The queue.
        pub queue: QueueId,
        /// How long the queue has had waves on compute units.
        pub busy: Duration,
        /// Kernels that are complete.
        pub completed: u64,
        /// The slice of the queue.
        pub slice: Duration,
        /// The hardware priority of the queue.
        pub priority: Priority,
        /// Whether it is stopped.
        pub is_stopped: bool,
        /// Whether the device fetches nothing from its ring.
        pub is_parked: bool,
        /// Whether its waves may be on compute units, or are about to be.
        pub is_resident: bool,
        /// How often the device saved the queue in the middle of a kernel.
        pub preemptions: u32,
    }
}

codes! {
    /// Where a process is between running and being off its devices, by the numbers of NVIDIA's
    /// driver.
    pub enum CheckpointState as u32, "between 0 and 3" {
        /// It runs.
        Running = 0 "running",
        /// Its kernels have finished, and no more are started.
        Locked = 1 "locked",
        /// Its memory is on the host.
        Checkpointed = 2 "checkpointed",
        /// Neither can be reached. The emulated GPU never reports it.
        Failed = 3 "failed",
    }
}

record! {
    /// Where a process and its memory are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CheckpointInfo {
        /// The process.
        pub pid: u32,
        /// The state of the process.
        pub state: CheckpointState,
        /// Bytes that it has on all devices.
        pub device_bytes: u64,
        /// Bytes whose contents are on the host.
        pub host_bytes: u64,
    }
}

record! {
    /// The memory of a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceMemory {
        /// The device.
        pub device: DeviceId; 4 zeros,
        /// All of its memory.
        pub bytes: u64,
        /// What is allocated.
        pub used: u64,
    }
}

record! {
    /// What a process has on a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ProcessMemory {
        /// The process.
        pub pid: u32,
        /// The device.
        pub device: DeviceId,
        /// Bytes on the device; during a restore, those that it will have.
        pub device_bytes: u64,
        /// Bytes whose contents are on the host.
        pub host_bytes: u64,
    }
}

messages! {
    /// A message from the emulator: the answer to a request, or with the number 0 an event.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Reply of PROTOCOL, from 0 {
        /// The answer to Hello.
        101 = Welcome {
            /// Differs between emulators: ids of another emulator are invalid.
            instance: u64,
            /// The client's task; 0 for control.
            task: TaskId,
            /// How many devices there are.
            devices: u32,
            /// The memory of the client.
            memory_bytes: u32,
        },
        /// The request was carried out.
        102 = Done,
        /// The request was refused.
        103 = Refused(refusal: Refusal),
        /// A queue is open.
        104 = Opened {
            /// The id of the queue.
            queue: QueueId,
            /// The device of the queue.
            device: DeviceId,
            /// Packets that the ring holds.
            capacity: u32,
        },
        /// Memory that was read.
        105 = Data {
            /// The address.
            address: u32,
            /// The content.
            bytes: Vec<u8>,
        },
        /// A device.
        106 = Device(device: DeviceInfo),
        /// A task that appeared, or exists.
        107 = Task(task: TaskInfo),
        /// A task that vanished.
        108 = TaskGone(task: TaskId),
        /// A queue that appeared, or exists.
        109 = Queue(queue: QueueInfo),
        /// A queue that vanished.
        110 = QueueGone {
            /// The id of the queue.
            queue: QueueId,
            /// Whether the device closed it because of an error in its ring.
            is_faulted: bool; 7 zeros,
        },
        /// The page of a queue.
        111 = Page {
            /// The id of the queue.
            queue: QueueId,
            /// The device of the queue.
            device: DeviceId,
            /// Packets that the ring holds.
            capacity: u32,
        },
        /// How much a queue ran.
        112 = Usage(usage: UsageInfo),
        /// How much a device ran.
        113 = DeviceUsage {
            /// The device.
            device: DeviceId; 4 zeros,
            /// How long at least one queue has had waves on compute units.
            busy: Duration,
        },
        /// Memory was allocated.
        114 = Allocated {
            /// The id of the allocation, never used twice by one emulator.
            allocation: u64,
        },
        /// How much of a device's memory is used.
        115 = DeviceMemory(memory: DeviceMemory),
        /// What a process has on a device.
        116 = ProcessMemory(memory: ProcessMemory),
        /// Where a process and its memory are.
        117 = CheckpointState(info: CheckpointInfo),
    }
}
