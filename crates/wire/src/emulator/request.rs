//! What can be asked of the emulator.

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use zerocopy::IntoBytes;

use super::header::{self, WireError};
use super::{body, body::read};

/// What a peer is here for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computes.
    Client {
        /// How much memory its kernels need.
        memory_bytes: u32,
    },
    /// Controls the queues of others.
    Control {
        /// Wants to be told of tasks and queues that appear and vanish.
        watches: bool,
        /// Whatever it has stopped or slowed goes on as before when it is gone.
        releases: bool,
    },
}

/// A question or a wish. Every one is answered once, apart from what [`Request::List`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message. Answer: Welcome; a client's carries its doorbell, an eventfd.
    Hello(Role),
    /// A client opens a queue. Answer: Opened, with the ring's page as a memfd.
    OpenQueue {
        /// Where.
        device: DeviceId,
        /// Packets its ring holds: a power of two.
        capacity: u32,
    },
    /// A client closes a queue. Answer: Done.
    CloseQueue(QueueId),
    /// A client reads its memory on the device. Answer: Data.
    Read {
        /// From where.
        address: u32,
        /// How much.
        bytes: u32,
    },
    /// Everything there is. Answers: Device and, if this is control, Task and Queue for each one;
    /// then Done.
    List,
    /// Take a queue off its device, in the middle of whatever it does. Answer: Done when it is.
    Stop(QueueId),
    /// Let it go on. Answer: Done when it does.
    Resume(QueueId),
    /// Fetch nothing more from its ring; what was fetched ends. Answer: Done when nothing is.
    Park(QueueId),
    /// Fetch again. Answer: Done when it is.
    Unpark(QueueId),
    /// Give it a slice. Answer: Done when it has.
    SetSlice {
        /// Which queue.
        queue: QueueId,
        /// How long, or none for the one it came with.
        slice: Option<Duration>,
    },
    /// This queue alone may be held across its gaps on its device, as long as this connection
    /// lasts. Answer: Done.
    PermitHold(QueueId),
    /// This queue may no longer be held. Answer: Done.
    ForbidHold(QueueId),
    /// Tells the hardware a queue's priority. Answer: Done.
    SetPriority {
        /// Which queue.
        queue: QueueId,
        /// How important it is.
        priority: Priority,
    },
    /// The page with a queue's indices, read-only. Answer: Page, with a memfd.
    Page(QueueId),
    /// What a queue got. Answer: Usage.
    Usage(QueueId),
}

const CLIENT: u32 = 1;
const CONTROL: u32 = 2;
const WATCHES: u32 = 1;
const RELEASES: u32 = 2;

impl Request {
    /// The message that asks this, under a number that is not 0.
    pub fn encode(&self, request: u64) -> Vec<u8> {
        let of = |queue: QueueId| body::Queue { queue: queue.0.into() };
        let (kind, body) = match *self {
            Self::Hello(role) => (1, hello(role).as_bytes().to_vec()),
            Self::OpenQueue { device, capacity } => {
                let body = body::Open { device: device.0.into(), capacity: capacity.into() };
                (2, body.as_bytes().to_vec())
            }
            Self::CloseQueue(queue) => (3, of(queue).as_bytes().to_vec()),
            Self::Read { address, bytes } => {
                let body = body::Read { address: address.into(), bytes: bytes.into() };
                (4, body.as_bytes().to_vec())
            }
            Self::List => (5, Vec::new()),
            Self::Stop(queue) => (6, of(queue).as_bytes().to_vec()),
            Self::Resume(queue) => (7, of(queue).as_bytes().to_vec()),
            Self::SetSlice { queue, slice } => {
                let slice_ns = slice.map_or(0, |slice| slice.as_nanos().max(1));
                let body = body::SetSlice { queue: queue.0.into(), slice_ns: slice_ns.into() };
                (8, body.as_bytes().to_vec())
            }
            Self::PermitHold(queue) => (9, of(queue).as_bytes().to_vec()),
            Self::ForbidHold(queue) => (10, of(queue).as_bytes().to_vec()),
            Self::SetPriority { queue, priority } => {
                let priority = u32::from(priority.level()).into();
                let body = body::SetPriority { queue: queue.0.into(), priority, zero: 0.into() };
                (11, body.as_bytes().to_vec())
            }
            Self::Page(queue) => (12, of(queue).as_bytes().to_vec()),
            Self::Usage(queue) => (13, of(queue).as_bytes().to_vec()),
            Self::Park(queue) => (14, of(queue).as_bytes().to_vec()),
            Self::Unpark(queue) => (15, of(queue).as_bytes().to_vec()),
        };
        header::encode(kind, request, &body)
    }

    /// The request in a message, and its number.
    ///
    /// # Errors
    /// The bytes are no request.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), WireError> {
        let (kind, request, rest) = header::decode(bytes)?;
        let queue = || read::<body::Queue>(kind, rest).map(|body| QueueId(body.queue.get()));
        let asked = match kind {
            1 => Self::Hello(role(kind, read(kind, rest)?)?),
            2 => {
                let body: &body::Open = read(kind, rest)?;
                let device = DeviceId(body.device.get());
                Self::OpenQueue { device, capacity: body.capacity.get() }
            }
            3 => Self::CloseQueue(queue()?),
            4 => {
                let body: &body::Read = read(kind, rest)?;
                Self::Read { address: body.address.get(), bytes: body.bytes.get() }
            }
            5 if rest.is_empty() => Self::List,
            5 => return Err(WireError::Size { kind, bytes: rest.len() }),
            6 => Self::Stop(queue()?),
            7 => Self::Resume(queue()?),
            8 => {
                let body: &body::SetSlice = read(kind, rest)?;
                let slice = Some(body.slice_ns.get()).filter(|&ns| ns > 0);
                let slice = slice.map(Duration::from_nanos);
                Self::SetSlice { queue: QueueId(body.queue.get()), slice }
            }
            9 => Self::PermitHold(queue()?),
            10 => Self::ForbidHold(queue()?),
            11 => {
                let body: &body::SetPriority = read(kind, rest)?;
                let level = u8::try_from(body.priority.get()).ok();
                let priority = level.and_then(Priority::new).ok_or(WireError::Value(kind))?;
                Self::SetPriority { queue: QueueId(body.queue.get()), priority }
            }
            12 => Self::Page(queue()?),
            13 => Self::Usage(queue()?),
            14 => Self::Park(queue()?),
            15 => Self::Unpark(queue()?),
            other => return Err(WireError::Kind(other)),
        };
        if request == 0 { Err(WireError::Value(kind)) } else { Ok((request, asked)) }
    }
}

fn hello(role: Role) -> body::Hello {
    let (role, flags, memory_bytes) = match role {
        Role::Client { memory_bytes } => (CLIENT, 0, memory_bytes),
        Role::Control { watches, releases } => {
            let flags = if watches { WATCHES } else { 0 } | if releases { RELEASES } else { 0 };
            (CONTROL, flags, 0)
        }
    };
    let memory_bytes = memory_bytes.into();
    body::Hello { role: role.into(), flags: flags.into(), memory_bytes, zero: 0.into() }
}

fn role(kind: u16, body: &body::Hello) -> Result<Role, WireError> {
    let (flags, memory_bytes) = (body.flags.get(), body.memory_bytes.get());
    match body.role.get() {
        CLIENT if flags == 0 => Ok(Role::Client { memory_bytes }),
        CONTROL if flags & !(WATCHES | RELEASES) == 0 => {
            Ok(Role::Control { watches: flags & WATCHES != 0, releases: flags & RELEASES != 0 })
        }
        _ => Err(WireError::Value(kind)),
    }
}
