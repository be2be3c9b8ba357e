//! The layouts of message bodies.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::WireError;

/// Reads a body of exactly its size.
pub(super) fn read<T>(kind: u16, bytes: &[u8]) -> Result<&T, WireError>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    T::ref_from_bytes(bytes).map_err(|_| WireError::Size { kind, bytes: bytes.len() })
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub(super) struct $name {
                $(pub(super) $field: $type,)*
            }
        )*
    };
}

bodies! {
    /// Introduces a peer. `role` 1 computes, 2 controls; `flags` bit 0 watches, bit 1 releases.
    Hello { role: U32, flags: U32, memory_bytes: U32, zero: U32 }
    /// About one queue.
    Queue { queue: U64 }
    /// About one task.
    Task { task: U64 }
    /// Opens a queue, or says that it is open.
    Open { device: U32, capacity: U32 }
    /// An open queue or its page.
    Opened { queue: U64, device: U32, capacity: U32 }
    /// Reads memory.
    Read { address: U32, bytes: U32 }
    /// The beginning of memory that was read.
    Data { address: U32, bytes: U32 }
    /// Sets a slice; 0 is the one the queue came with.
    SetSlice { queue: U64, slice_ns: U64 }
    /// Sets a priority.
    SetPriority { queue: U64, priority: U32, zero: U32 }
    /// Greets a peer.
    Welcome { instance: U64, task: U64, devices: U32, memory_bytes: U32 }
    /// Says no.
    Refused { code: U32, zero: U32 }
    /// A task. The memory of its process is named by the process, not by us.
    TaskEntry { task: U64, pid: U32, uid: U32 }
    /// A queue. `flags` bit 0 stopped.
    QueueEntry { queue: U64, task: U64, device: U32, flags: U32, slice_ns: U64 }
    /// The end of a queue. `flags` bit 0 faulted.
    QueueGone { queue: U64, flags: U32, zero: U32 }
    /// What a queue got. `flags` bit 0 stopped, bit 1 resident.
    Usage {
        queue: U64,
        busy_ns: U64,
        completed: U64,
        slice_ns: U64,
        priority: U32,
        flags: U32,
    }
    /// A device. `flags` bit 0 hold, bit 1 hardware priority, bit 2 can tell what runs.
    Device {
        device: U32,
        compute_units: U32,
        mechanism: U32,
        level: U32,
        preempt_ns: U64,
        resume_ns: U64,
        quiet_ns: U64,
        flags: U32,
        name_bytes: U32,
        name: [u8; 32],
    }
}
