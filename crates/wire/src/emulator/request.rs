//! What can be asked of the emulator.

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use super::PROTOCOL;
use crate::codec::{Field, Reader};
use crate::decode_error::DecodeError;

/// What a peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computes.
    Client {
        /// How much memory its kernels need.
        memory_bytes: u32,
    },
    /// Controls the queues of other processes.
    Control {
        /// Receives an event for each task and queue that appears or vanishes.
        watches: bool,
        /// When the connection ends, the emulator undoes everything that it stopped or slowed.
        releases: bool,
    },
}

/// One byte for the role, two flags of control, a zero, and the memory of a client. What a role
/// does not have is zero.
impl Field for Role {
    const BYTES: usize = 8;

    fn put(&self, body: &mut Vec<u8>) {
        let (role, watches, releases, memory_bytes) = match *self {
            Self::Client { memory_bytes } => (CLIENT, false, false, memory_bytes),
            Self::Control { watches, releases } => (CONTROL, watches, releases, 0),
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
            _ => Err(DecodeError::field(name, "1 with memory, or 2 with flags")),
        }
    }
}

const CLIENT: u8 = 1;
const CONTROL: u8 = 2;

messages! {
    /// A request to the emulator. Each is answered once, apart from [`Request::List`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Request of PROTOCOL, from 1 {
        /// The first message. Answer: Welcome; a client's carries its doorbell, an eventfd.
        1 = Hello(role: Role),
        /// A client opens a queue. Answer: Opened, with the ring's page as a memfd.
        2 = OpenQueue {
            /// Its device.
            device: DeviceId,
            /// Packets its ring holds: a power of two.
            capacity: u32,
        },
        /// A client closes a queue. Answer: Done.
        3 = CloseQueue(queue: QueueId),
        /// A client reads its memory on the device. Answer: Data.
        4 = Read {
            /// From where.
            address: u32,
            /// How much.
            bytes: u32,
        },
        /// All devices and, for control, tasks and queues. Answers: Device, Task and Queue for each
        /// one; then Done.
        5 = List,
        /// Take a queue off its device, in the middle of a kernel. Answer: Done when it is off.
        6 = Stop(queue: QueueId),
        /// Let a queue run again. Answer: Done when it does.
        7 = Resume(queue: QueueId),
        /// Give a queue a slice. Answer: Done when it has it.
        8 = SetSlice {
            /// The queue.
            queue: QueueId,
            /// How long, or none for the slice that the queue began with.
            slice: Option<Duration>,
        },
        /// This queue alone may be held across its gaps on its device, as long as this connection
        /// lasts. Answer: Done.
        9 = PermitHold(queue: QueueId),
        /// This queue may no longer be held. Answer: Done.
        10 = ForbidHold(queue: QueueId),
        /// Tells the hardware a queue's priority. Answer: Done.
        11 = SetPriority {
            /// The queue.
            queue: QueueId,
            /// Its priority.
            priority: Priority; 7 zeros,
        },
        /// The page with a queue's indices, read-only. Answer: Page, with a memfd.
        12 = Page(queue: QueueId),
        /// How much a queue ran. Answer: Usage.
        13 = Usage(queue: QueueId),
        /// Fetch nothing more from a queue's ring; what was fetched ends. Answer: Done when it has.
        14 = Park(queue: QueueId),
        /// Fetch again. Answer: Done when it does.
        15 = Unpark(queue: QueueId),
    }
}
