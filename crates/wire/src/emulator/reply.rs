//! What the emulator says: answers, and to those who watch also events.

use std::fmt;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

use super::header::{self, WireError};
use super::{DATA_BYTES_MAX, DeviceInfo, body, body::read};

/// Why the emulator says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Only root and the emulator's own user control.
    NotAllowed,
    /// Not for a peer of this role.
    WrongRole,
    /// There is no such device.
    NoSuchDevice,
    /// There is no such queue, or no longer, or it is somebody else's.
    NoSuchQueue,
    /// There are as many of these as there can be.
    TooMany,
    /// A number is out of its range.
    BadNumber,
}

/// One task: a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// Its name, never used twice by one emulator.
    pub task: TaskId,
    /// Its process.
    pub pid: u32,
    /// Whose process.
    pub uid: u32,
}

/// One queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its name, never used twice by one emulator.
    pub queue: QueueId,
    /// Whose it is.
    pub task: TaskId,
    /// Where it is.
    pub device: DeviceId,
    /// Whether it is stopped.
    pub is_stopped: bool,
    /// Its slice.
    pub slice: Duration,
}

/// What a queue is given and has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageInfo {
    /// Which queue.
    pub queue: QueueId,
    /// How long it has had waves on compute units.
    pub busy: Duration,
    /// Kernels that are complete.
    pub completed: u64,
    /// Its slice.
    pub slice: Duration,
    /// Its priority, as the hardware was told.
    pub priority: Priority,
    /// Whether it is stopped.
    pub is_stopped: bool,
    /// Whether nothing more is fetched from its ring.
    pub is_parked: bool,
    /// Whether its waves may be on compute units, or are on their way.
    pub is_resident: bool,
}

/// A message from the emulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The peer is known now.
    Welcome {
        /// Differs from one emulator to the next: names of another are worth nothing.
        instance: u64,
        /// The client's task; 0 for control.
        task: TaskId,
        /// How many devices there are.
        devices: u32,
        /// The client's memory.
        memory_bytes: u32,
    },
    /// It is done.
    Done,
    /// It is not done and will not be.
    Refused(Refusal),
    /// A queue is open.
    Opened {
        /// Its name.
        queue: QueueId,
        /// Where it is.
        device: DeviceId,
        /// Packets its ring holds.
        capacity: u32,
    },
    /// Memory that was read.
    Data {
        /// From where.
        address: u32,
        /// What was there.
        bytes: Vec<u8>,
    },
    /// A device.
    Device(DeviceInfo),
    /// A task that appeared, or is there.
    Task(TaskInfo),
    /// A task that vanished.
    TaskGone(TaskId),
    /// A queue that appeared, or is there.
    Queue(QueueInfo),
    /// A queue that vanished.
    QueueGone {
        /// Which one.
        queue: QueueId,
        /// Whether the device gave it up because of what was in its ring.
        is_faulted: bool,
    },
    /// A queue's page.
    Page {
        /// Which queue.
        queue: QueueId,
        /// Where it is.
        device: DeviceId,
        /// Packets its ring holds.
        capacity: u32,
    },
    /// What a queue got.
    Usage(UsageInfo),
}

const FLAG: u32 = 1;
const RESIDENT: u32 = 2;
const PARKED: u32 = 4;

impl Reply {
    /// The message, as the answer to a request, or with 0 as an event.
    pub fn encode(&self, request: u64) -> Vec<u8> {
        let (kind, body) = self.parts();
        header::encode(kind, request, &body)
    }

    fn parts(&self) -> (u16, Vec<u8>) {
        let opened = |queue: QueueId, device: DeviceId, capacity: u32| {
            let (queue, device) = (queue.0.into(), device.0.into());
            body::Opened { queue, device, capacity: capacity.into() }.as_bytes().to_vec()
        };
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        match self {
            Self::Welcome { instance, task, devices, memory_bytes } => {
                let (instance, task) = ((*instance).into(), task.0.into());
                let (devices, memory_bytes) = ((*devices).into(), (*memory_bytes).into());
                let body = body::Welcome { instance, task, devices, memory_bytes };
                (101, body.as_bytes().to_vec())
            }
            Self::Done => (102, Vec::new()),
            Self::Refused(refusal) => {
                let body = body::Refused { code: refusal.code().into(), zero: 0.into() };
                (103, body.as_bytes().to_vec())
            }
            &Self::Opened { queue, device, capacity } => (104, opened(queue, device, capacity)),
            Self::Data { address, bytes } => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let body = body::Data { address: (*address).into(), bytes: length.into() };
                (105, [body.as_bytes(), bytes].concat())
            }
            Self::Device(device) => (106, device.body().as_bytes().to_vec()),
            Self::Task(TaskInfo { task, pid, uid }) => {
                let (pid, uid) = ((*pid).into(), (*uid).into());
                (107, body::TaskEntry { task: task.0.into(), pid, uid }.as_bytes().to_vec())
            }
            Self::TaskGone(task) => (108, body::Task { task: task.0.into() }.as_bytes().to_vec()),
            Self::Queue(queue) => {
                let body = body::QueueEntry {
                    queue: queue.queue.0.into(),
                    task: queue.task.0.into(),
                    device: queue.device.0.into(),
                    flags: flag(queue.is_stopped, FLAG).into(),
                    slice_ns: queue.slice.as_nanos().into(),
                };
                (109, body.as_bytes().to_vec())
            }
            Self::QueueGone { queue, is_faulted } => {
                let flags = flag(*is_faulted, FLAG).into();
                let body = body::QueueGone { queue: queue.0.into(), flags, zero: 0.into() };
                (110, body.as_bytes().to_vec())
            }
            &Self::Page { queue, device, capacity } => (111, opened(queue, device, capacity)),
            Self::Usage(usage) => {
                let flags = flag(usage.is_stopped, FLAG)
                    | flag(usage.is_resident, RESIDENT)
                    | flag(usage.is_parked, PARKED);
                let body = body::Usage {
                    queue: usage.queue.0.into(),
                    busy_ns: usage.busy.as_nanos().into(),
                    completed: usage.completed.into(),
                    slice_ns: usage.slice.as_nanos().into(),
                    priority: u32::from(usage.priority.level()).into(),
                    flags: flags.into(),
                };
                (112, body.as_bytes().to_vec())
            }
        }
    }

    /// The reply in a message, and the request it answers.
    ///
    /// # Errors
    /// The bytes are no reply.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), WireError> {
        let (kind, request, rest) = header::decode(bytes)?;
        let reply = match kind {
            101 => {
                let body: &body::Welcome = read(kind, rest)?;
                Self::Welcome {
                    instance: body.instance.get(),
                    task: TaskId(body.task.get()),
                    devices: body.devices.get(),
                    memory_bytes: body.memory_bytes.get(),
                }
            }
            102 if rest.is_empty() => Self::Done,
            102 => return Err(WireError::Size { kind, bytes: rest.len() }),
            103 => {
                let body: &body::Refused = read(kind, rest)?;
                let refusal = Refusal::ALL.into_iter().find(|r| r.code() == body.code.get());
                Self::Refused(refusal.ok_or(WireError::Value(kind))?)
            }
            105 => data(kind, rest)?,
            106 => Self::Device(DeviceInfo::from_body(kind, read(kind, rest)?)?),
            107 => {
                let body: &body::TaskEntry = read(kind, rest)?;
                let (pid, uid) = (body.pid.get(), body.uid.get());
                Self::Task(TaskInfo { task: TaskId(body.task.get()), pid, uid })
            }
            108 => Self::TaskGone(TaskId(read::<body::Task>(kind, rest)?.task.get())),
            104 | 109..=112 => Self::decode_queue(kind, rest)?,
            other => return Err(WireError::Kind(other)),
        };
        Ok((request, reply))
    }

    /// Replies about one queue.
    fn decode_queue(kind: u16, rest: &[u8]) -> Result<Self, WireError> {
        let is_set = |flags: u32, flag: u32| flags & flag != 0;
        Ok(match kind {
            104 | 111 => {
                let body: &body::Opened = read(kind, rest)?;
                let queue = QueueId(body.queue.get());
                let (device, capacity) = (DeviceId(body.device.get()), body.capacity.get());
                match kind {
                    104 => Self::Opened { queue, device, capacity },
                    _ => Self::Page { queue, device, capacity },
                }
            }
            109 => {
                let body: &body::QueueEntry = read(kind, rest)?;
                Self::Queue(QueueInfo {
                    queue: QueueId(body.queue.get()),
                    task: TaskId(body.task.get()),
                    device: DeviceId(body.device.get()),
                    is_stopped: is_set(body.flags.get(), FLAG),
                    slice: Duration::from_nanos(body.slice_ns.get()),
                })
            }
            110 => {
                let body: &body::QueueGone = read(kind, rest)?;
                let queue = QueueId(body.queue.get());
                Self::QueueGone { queue, is_faulted: is_set(body.flags.get(), FLAG) }
            }
            _ => {
                let body: &body::Usage = read(kind, rest)?;
                let level = u8::try_from(body.priority.get()).ok();
                Self::Usage(UsageInfo {
                    queue: QueueId(body.queue.get()),
                    busy: Duration::from_nanos(body.busy_ns.get()),
                    completed: body.completed.get(),
                    slice: Duration::from_nanos(body.slice_ns.get()),
                    priority: level.and_then(Priority::new).ok_or(WireError::Value(kind))?,
                    is_stopped: is_set(body.flags.get(), FLAG),
                    is_resident: is_set(body.flags.get(), RESIDENT),
                    is_parked: is_set(body.flags.get(), PARKED),
                })
            }
        })
    }
}

fn data(kind: u16, rest: &[u8]) -> Result<Reply, WireError> {
    let size = WireError::Size { kind, bytes: rest.len() };
    let (body, bytes) = body::Data::ref_from_prefix(rest).map_err(|_| size)?;
    let is_whole = usize::try_from(body.bytes.get()) == Ok(bytes.len());
    if !is_whole || bytes.len() > DATA_BYTES_MAX {
        return Err(size);
    }
    Ok(Reply::Data { address: body.address.get(), bytes: bytes.to_vec() })
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::NotAllowed,
        Self::WrongRole,
        Self::NoSuchDevice,
        Self::NoSuchQueue,
        Self::TooMany,
        Self::BadNumber,
    ];

    const fn code(self) -> u32 {
        match self {
            Self::NotAllowed => 1,
            Self::WrongRole => 2,
            Self::NoSuchDevice => 3,
            Self::NoSuchQueue => 4,
            Self::TooMany => 5,
            Self::BadNumber => 6,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllowed => "only root and its own user may control it",
            Self::WrongRole => "that is not for a peer of this role",
            Self::NoSuchDevice => "there is no such device",
            Self::NoSuchQueue => "there is no such queue",
            Self::TooMany => "there are as many of these as there can be",
            Self::BadNumber => "a number is out of its range",
        })
    }
}
