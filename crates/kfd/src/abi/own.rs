//! The calls that the patches of `kernel/` add: queues of several processes in one call, and the
//! priorities of the scheduler inside of the kernel.
//!
//! No other header has them, so they are compared with the patches (`tests/kfd_own_header.rs`).

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::exchanges;
use super::table::{self, ALWAYS, Layout, Number};

/// One queue to preempt or to resume.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PreemptEntry {
    /// Its process; 0 is the caller.
    pub pid: u32,
    /// Its name in its process.
    pub queue_id: u32,
    /// Its serial number, which no other queue ever has; 0 is whichever has that name.
    pub serial: u64,
    /// What became of it: 0, or an error's number below zero. From KFD.
    pub result: i32,
    /// Zero.
    pub reserved: u32,
}

/// Takes queues off their devices.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PreemptQueue {
    /// The address of an array of [`PreemptEntry`].
    pub entries: u64,
    /// How many, at most [`QUEUES_MAX`].
    pub count: u32,
    /// Bytes of one.
    pub entry_size: u32,
    /// [`FLAG_GRACE`] or nothing.
    pub flags: u32,
    /// How long waves may go on first, in 1024 clocks, with [`FLAG_GRACE`].
    pub grace: u32,
    /// KFD resumes the queues after this time; 0 is for as long as the caller lives.
    pub timeout_ms: u32,
    /// How many results are 0. From KFD; zero.
    pub done: u32,
}

/// Lets preempted queues on again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ResumeQueue {
    /// As for preempting.
    pub entries: u64,
    /// How many.
    pub count: u32,
    /// Bytes of one.
    pub entry_size: u32,
    /// [`FLAG_ANY_OWNER`] or nothing.
    pub flags: u32,
    /// How many results are 0. From KFD; zero.
    pub done: u32,
}

/// Says how important queues are to the scheduler inside of the kernel.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SetPreemptPriority {
    /// Their process; 0 is the caller.
    pub pid: u32,
    /// One of its queues, or [`ALL_QUEUES`].
    pub queue_id: u32,
    /// The serial number of that one; 0 is whichever has that name.
    pub serial: u64,
    /// 0 to 15, or [`PRIORITY_DEFAULT`].
    pub priority: u32,
    /// Zero.
    pub flags: u32,
    /// How many queues have another priority now. From KFD; zero.
    pub done: u32,
    /// Zero.
    pub reserved: u32,
}

/// How many queues one call may name.
pub const QUEUES_MAX: u32 = 1024;
/// The longest grace period.
pub const GRACE_MAX: u32 = 0xff;
/// The longest time.
pub const TIMEOUT_MAX_MS: u32 = 3_600_000;
/// The grace period is to be used.
pub const FLAG_GRACE: u32 = 1;
/// Queues are resumed whoever preempted them.
pub const FLAG_ANY_OWNER: u32 = 1;
/// All queues of a process, also those it will have.
pub const ALL_QUEUES: u32 = u32::MAX;
/// Again what the process has, or what everybody begins with.
pub const PRIORITY_DEFAULT: u32 = 0xff;
/// The highest that a process may set for its own queues without a capability.
pub const PRIORITY_UNPRIVILEGED: u32 = 7;

/// `AMDKFD_IOC_PREEMPT_QUEUE`.
pub const PREEMPT_QUEUE: Opcode = exchanges::<PreemptQueue>(0x40);
/// `AMDKFD_IOC_RESUME_QUEUE`.
pub const RESUME_QUEUE: Opcode = exchanges::<ResumeQueue>(0x41);
/// `AMDKFD_IOC_SET_PREEMPT_PRIORITY`.
pub const SET_PREEMPT_PRIORITY: Opcode = exchanges::<SetPreemptPriority>(0x42);

table::layouts! {
    PreemptEntry = "struct kfd_preempt_queue_entry" in ALWAYS, 24 bytes:
        pid = "pid" at 0,
        queue_id = "queue_id" at 4,
        serial = "serial" at 8,
        result = "result" at 16,
        reserved = "reserved" at 20;
    PreemptQueue = "struct kfd_ioctl_preempt_queue_args" in ALWAYS, 32 bytes:
        entries = "entries_ptr" at 0,
        count = "num_entries" at 8,
        entry_size = "entry_size" at 12,
        flags = "flags" at 16,
        grace = "grace_period" at 20,
        timeout_ms = "timeout_ms" at 24,
        done = "num_done" at 28;
    ResumeQueue = "struct kfd_ioctl_resume_queue_args" in ALWAYS, 24 bytes:
        entries = "entries_ptr" at 0,
        count = "num_entries" at 8,
        entry_size = "entry_size" at 12,
        flags = "flags" at 16,
        done = "num_done" at 20;
    SetPreemptPriority = "struct kfd_ioctl_set_preempt_priority_args" in ALWAYS, 32 bytes:
        pid = "pid" at 0,
        queue_id = "queue_id" at 4,
        serial = "serial" at 8,
        priority = "priority" at 16,
        flags = "flags" at 20,
        done = "num_done" at 24,
        reserved = "reserved" at 28;
}

table::numbers! {
    "AMDKFD_IOC_PREEMPT_QUEUE" in ALWAYS => PREEMPT_QUEUE,
    "AMDKFD_IOC_RESUME_QUEUE" in ALWAYS => RESUME_QUEUE,
    "AMDKFD_IOC_SET_PREEMPT_PRIORITY" in ALWAYS => SET_PREEMPT_PRIORITY,
    "KFD_IOC_PREEMPT_MAX_QUEUES" in ALWAYS => QUEUES_MAX,
    "KFD_IOC_PREEMPT_MAX_GRACE" in ALWAYS => GRACE_MAX,
    "KFD_IOC_PREEMPT_MAX_TIMEOUT_MS" in ALWAYS => TIMEOUT_MAX_MS,
    "KFD_IOC_PREEMPT_FLAGS_ALL" in ALWAYS => FLAG_GRACE,
    "KFD_IOC_RESUME_FLAGS_ALL" in ALWAYS => FLAG_ANY_OWNER,
    "KFD_IOC_PREEMPT_ALL_QUEUES" in ALWAYS => ALL_QUEUES,
    "KFD_IOC_PREEMPT_PRIORITY_DEFAULT" in ALWAYS => PRIORITY_DEFAULT,
    "KFD_IOC_PREEMPT_PRIORITY_UNPRIVILEGED" in ALWAYS => PRIORITY_UNPRIVILEGED,
}

/// Every block of the patches.
pub const OWN_BLOCKS: &[Layout] = LAYOUTS;
/// Every number of the patches.
pub const OWN_NUMBERS: &[Number] = NUMBERS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_patches() {
        assert_eq!(PREEMPT_QUEUE, 0xc020_4b40);
        assert_eq!(RESUME_QUEUE, 0xc018_4b41);
        assert_eq!(SET_PREEMPT_PRIORITY, 0xc020_4b42);
    }
}
