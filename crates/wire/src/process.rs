//! Whom a message is about.

use std::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Field, Reader};
use crate::decode_error::{DecodeError, check_zero};

/// A process.
///
/// # Invariants
/// The pid is at most `i32::MAX`, which is what the kernel has; if it is 0, so is the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pid: u32,
    start_ticks: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    pid: U32,
    reserved: [u8; 4],
    start_ticks: U64,
}

const PID_MAX: u32 = i32::MAX.unsigned_abs();

impl Process {
    /// Whoever sends the message. The only way for a program in a container to name itself: it
    /// does not know the pid that it has outside.
    pub const SENDER: Self = Self { pid: 0, start_ticks: 0 };

    /// The process with that pid that started so many clock ticks after boot (field 22 of
    /// `/proc/PID/stat`), or with 0 ticks whoever has the pid now. Pid 0 is [`Self::SENDER`].
    ///
    /// Nothing if there cannot be such a process.
    pub const fn new(pid: u32, start_ticks: u64) -> Option<Self> {
        if pid > PID_MAX || (pid == 0 && start_ticks != 0) {
            None
        } else {
            Some(Self { pid, start_ticks })
        }
    }

    /// Its number; 0 for the sender.
    pub const fn pid(self) -> u32 {
        self.pid
    }

    /// When it started; 0 for whoever has the pid now.
    pub const fn start_ticks(self) -> u64 {
        self.start_ticks
    }

    fn to_layout(self) -> Layout {
        Layout {
            pid: U32::new(self.pid),
            reserved: [0; 4],
            start_ticks: U64::new(self.start_ticks),
        }
    }

    fn from_layout(layout: &Layout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        Self::new(layout.pid.get(), layout.start_ticks.get()).ok_or(DecodeError::field(
            "process",
            "a pid of at most 31 bits; its start is 0 if the pid is 0",
        ))
    }
}

field_by_layout!(Process, Layout);

/// [`Process::SENDER`] stands for none, where no message can be about its sender.
impl Field for Option<Process> {
    const BYTES: usize = Process::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        self.unwrap_or(Process::SENDER).put(body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let process = Process::take(name, reader)?;
        Ok(Some(process).filter(|process| *process != Process::SENDER))
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::SENDER { f.write_str("sender") } else { self.pid.fmt(f) }
    }
}
