//! What the daemon answers.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::DecodeError;
use crate::event::{self, Event};
use crate::message::{Body, bytes_of, layout_of};
use crate::policy::{self, PolicySettings};
use crate::queue::QueueList;
use crate::refusal::{self, Refusal};
use crate::snapshot::Chunk;

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done, or going to be done.
    Ok,
    /// No, and why.
    Refused(Refusal),
    /// A piece of a snapshot.
    Snapshot(Chunk),
    /// Something happened.
    Event(Event),
    /// There will be no more events.
    End {
        /// How many were left out since the last one, because the reader was slow.
        dropped: u64,
    },
    /// The descriptor that comes with this packet is that of a hint page.
    Page {
        /// How many slots the page has.
        slots: u32,
    },
    /// The policy in force.
    Policy(PolicySettings),
    /// Queues.
    Queues(QueueList),
}

const OK: u16 = 0x8001;
const REFUSED: u16 = 0x8002;
const SNAPSHOT: u16 = 0x8003;
const EVENT: u16 = 0x8004;
const END: u16 = 0x8005;
const PAGE: u16 = 0x8006;
const POLICY: u16 = 0x8007;
const QUEUES: u16 = 0x8008;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EndLayout {
    dropped: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PageLayout {
    slots: U32,
}

impl Reply {
    /// What it is called, in logs and in docs/protocol.md.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ok => "Ok",
            Self::Refused(_) => "Refused",
            Self::Snapshot(_) => "Snapshot",
            Self::Event(_) => "Event",
            Self::End { .. } => "End",
            Self::Page { .. } => "Page",
            Self::Policy(_) => "Policy",
            Self::Queues(_) => "Queues",
        }
    }
}

impl Body for Reply {
    fn kind(&self) -> u16 {
        match self {
            Self::Ok => OK,
            Self::Refused(_) => REFUSED,
            Self::Snapshot(_) => SNAPSHOT,
            Self::Event(_) => EVENT,
            Self::End { .. } => END,
            Self::Page { .. } => PAGE,
            Self::Policy(_) => POLICY,
            Self::Queues(_) => QUEUES,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Ok => Vec::new(),
            Self::Refused(refusal) => bytes_of(&refusal.to_layout()),
            Self::Snapshot(chunk) => chunk.to_bytes(),
            Self::Event(event) => bytes_of(&event.to_layout()),
            Self::End { dropped } => bytes_of(&EndLayout { dropped: U64::new(*dropped) }),
            Self::Page { slots } => bytes_of(&PageLayout { slots: U32::new(*slots) }),
            Self::Policy(settings) => bytes_of(&settings.to_layout()),
            Self::Queues(list) => list.to_bytes(),
        }
    }

    fn from_bytes(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError> {
        match kind {
            OK => layout_of::<[u8; 0]>(bytes).map(|_| Self::Ok),
            REFUSED => {
                let layout = layout_of::<refusal::Layout>(bytes)?;
                Ok(Self::Refused(Refusal::from_layout(&layout)?))
            }
            SNAPSHOT => Ok(Self::Snapshot(Chunk::from_bytes(bytes)?)),
            EVENT => {
                let layout = layout_of::<event::Layout>(bytes)?;
                Ok(Self::Event(Event::from_layout(&layout)?))
            }
            END => {
                let layout: EndLayout = layout_of(bytes)?;
                Ok(Self::End { dropped: layout.dropped.get() })
            }
            PAGE => {
                let layout: PageLayout = layout_of(bytes)?;
                Ok(Self::Page { slots: layout.slots.get() })
            }
            POLICY => {
                let layout = layout_of::<policy::Layout>(bytes)?;
                Ok(Self::Policy(PolicySettings::from_layout(&layout)?))
            }
            QUEUES => Ok(Self::Queues(QueueList::from_bytes(bytes)?)),
            unknown => Err(DecodeError::Kind(unknown)),
        }
    }
}
