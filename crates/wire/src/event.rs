//! Something that happened, for whoever follows.

use gpreempt_core::priority::Priority;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};
use crate::process::{self, Process};
use crate::text::Text;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum EventKind {
    /// A queue is to leave its device.
    Preempt = 1,
    /// It has left. The duration is what that took.
    Preempted,
    /// A queue may come back. The duration is how long it was off.
    Resume,
    /// It is back. The duration is what that took.
    Resumed,
    /// It starved and runs above everybody for a while. The duration is how long it waited.
    Boost,
    /// It is idle and keeps its device, because its next request is near. The duration is how long.
    Linger,
    /// Hardware or driver did not do what they were told. The duration is how long until the next
    /// try.
    Fault,
    /// A process or a queue of it was found.
    Appeared,
    /// A process or a queue of it is gone.
    Vanished,
    /// A process has other traits now.
    Changed,
    /// A process said that a request is coming. The duration is until its deadline.
    HintBegin,
    /// A process said that its request is done.
    HintEnd,
    /// A queue has work.
    Active,
    /// A queue has none any more.
    Idle,
    /// Somebody suspended a process. The duration is the lease.
    Suspended,
    /// A suspension is over: by command, or because its lease is.
    Released,
    /// Another policy, or other parameters.
    Policy,
}

impl EventKind {
    /// Every kind, in the order of their numbers, which begin with 1.
    pub const ALL: [Self; 17] = [
        Self::Preempt,
        Self::Preempted,
        Self::Resume,
        Self::Resumed,
        Self::Boost,
        Self::Linger,
        Self::Fault,
        Self::Appeared,
        Self::Vanished,
        Self::Changed,
        Self::HintBegin,
        Self::HintEnd,
        Self::Active,
        Self::Idle,
        Self::Suspended,
        Self::Released,
        Self::Policy,
    ];

    /// One word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preempt => "preempt",
            Self::Preempted => "preempted",
            Self::Resume => "resume",
            Self::Resumed => "resumed",
            Self::Boost => "boost",
            Self::Linger => "linger",
            Self::Fault => "fault",
            Self::Appeared => "appeared",
            Self::Vanished => "vanished",
            Self::Changed => "changed",
            Self::HintBegin => "hint-begin",
            Self::HintEnd => "hint-end",
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Suspended => "suspended",
            Self::Released => "released",
            Self::Policy => "policy",
        }
    }

    const fn number(self) -> u16 {
        // CAST: it is a `repr(u16)`, so nothing is lost.
        self as u16
    }

    fn from_number(number: u16) -> Result<Self, DecodeError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.number() == number);
        kind.ok_or(DecodeError::field("event", "between 1 and 17"))
    }
}

/// Something that happened, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds of the machine's monotonic clock. A preempt or resume: when its device
    /// was told.
    pub at_ns: u64,
    /// How many events before this one were left out because the reader was slow.
    pub dropped: u64,
    /// What.
    pub kind: EventKind,
    /// Where, if it is about one device. `u32::MAX` stands for none.
    pub device: Option<u32>,
    /// Whose, if it is about one process. [`Process::SENDER`] stands for none.
    pub process: Option<Process>,
    /// Which queue, as the daemon counts them from 1; 0 if it is about more than one.
    pub queue: u64,
    /// How important it is.
    pub priority: Option<Priority>,
    /// On whose account, if there is somebody.
    pub by_process: Option<Process>,
    /// On account of which queue; 0 if of none.
    pub by_queue: u64,
    /// How long something took or will take, as the kind says; 0 if it does not.
    pub duration_ns: u64,
    /// The process's name.
    pub name: Text<16>,
    /// Why, in a sentence.
    pub reason: Text<160>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Layout {
    at_ns: U64,
    dropped: U64,
    device: U32,
    kind: U16,
    priority: u8,
    reserved: [u8; 1],
    process: process::Layout,
    queue: U64,
    by_process: process::Layout,
    by_queue: U64,
    duration_ns: U64,
    name: [u8; 16],
    reason: [u8; 160],
}

/// In place of a device: none.
const NO_DEVICE: u32 = u32::MAX;
/// In place of a priority: none.
const NO_PRIORITY: u8 = u8::MAX;

impl Event {
    /// An event that is about nothing in particular, to begin with.
    pub const fn new(at_ns: u64, kind: EventKind) -> Self {
        Self {
            at_ns,
            dropped: 0,
            kind,
            device: None,
            process: None,
            queue: 0,
            priority: None,
            by_process: None,
            by_queue: 0,
            duration_ns: 0,
            name: Text::EMPTY,
            reason: Text::EMPTY,
        }
    }

    pub(crate) fn to_layout(self) -> Layout {
        let process = |process: Option<Process>| process.unwrap_or(Process::SENDER).to_layout();
        Layout {
            at_ns: U64::new(self.at_ns),
            dropped: U64::new(self.dropped),
            device: U32::new(self.device.unwrap_or(NO_DEVICE)),
            kind: U16::new(self.kind.number()),
            priority: self.priority.map_or(NO_PRIORITY, Priority::level),
            reserved: [0],
            process: process(self.process),
            queue: U64::new(self.queue),
            by_process: process(self.by_process),
            by_queue: U64::new(self.by_queue),
            duration_ns: U64::new(self.duration_ns),
            name: self.name.to_bytes(),
            reason: self.reason.to_bytes(),
        }
    }

    pub(crate) fn from_layout(layout: &Layout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        // Nobody follows on behalf of a sender: no pid means no process here.
        let process = |layout| {
            let process = Process::from_layout(layout)?;
            Ok(Some(process).filter(|process| *process != Process::SENDER))
        };
        let priority = match layout.priority {
            NO_PRIORITY => None,
            level => {
                let known = Priority::new(level);
                Some(known.ok_or(DecodeError::field("priority", "between 0 and 15, or 255"))?)
            }
        };
        Ok(Self {
            at_ns: layout.at_ns.get(),
            dropped: layout.dropped.get(),
            kind: EventKind::from_number(layout.kind.get())?,
            device: Some(layout.device.get()).filter(|device| *device != NO_DEVICE),
            process: process(layout.process)?,
            queue: layout.queue.get(),
            priority,
            by_process: process(layout.by_process)?,
            by_queue: layout.by_queue.get(),
            duration_ns: layout.duration_ns.get(),
            name: Text::from_bytes("name", layout.name)?,
            reason: Text::from_bytes("reason", layout.reason)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number_and_a_name_of_its_own() {
        let mut names: Vec<&str> = EventKind::ALL.map(EventKind::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EventKind::ALL.len());
        for (number, kind) in (1..).zip(EventKind::ALL) {
            assert_eq!(kind.number(), number);
            assert_eq!(EventKind::from_number(number), Ok(kind));
        }
        assert!(EventKind::from_number(0).is_err());
        assert!(EventKind::from_number(18).is_err());
    }
}
