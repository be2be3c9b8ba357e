//! The ioctls that the patches in `kernel/` add: preempt and resume queues of several processes in
//! one call, and set priorities of the in-kernel scheduler.
//!
//! No released header has them, so `tests/kfd_headers.rs` compares them with the patches.

use rustix::ioctl::Opcode;

use super::table::{self, ALWAYS, Minors, exchanges};

crate::blocks! {
    for Minors, derive(Clone, Copy, Debug, Default, PartialEq, Eq);
    /// One queue to preempt or to resume.
    pub struct PreemptEntry = "struct kfd_preempt_queue_entry" in ALWAYS, 24 bytes {
        /// 0 is the caller.
        pub pid: u32 = "pid" at 0,
        pub queue_id: u32 = "queue_id" at 4,
        /// Never reused, unlike `queue_id`. 0 matches any queue with that id.
        pub serial: u64 = "serial" at 8,
        /// Output: 0 or a negative error number.
        pub result: i32 = "result" at 16,
        pub reserved: u32 = "reserved" at 20,
    }
    pub struct PreemptQueue = "struct kfd_ioctl_preempt_queue_args" in ALWAYS, 32 bytes {
        /// The address of an array of [`PreemptEntry`].
        pub entries: u64 = "entries_ptr" at 0,
        /// At most [`QUEUES_MAX`].
        pub count: u32 = "num_entries" at 8,
        pub entry_size: u32 = "entry_size" at 12,
        /// [`FLAG_GRACE`] or 0.
        pub flags: u32 = "flags" at 16,
        /// How long waves may continue first, in 1024 clocks, with [`FLAG_GRACE`].
        pub grace: u32 = "grace_period" at 20,
        /// KFD resumes the queues after this time; 0: when the caller ends.
        pub timeout_ms: u32 = "timeout_ms" at 24,
        /// Output: how many results are 0.
        pub done: u32 = "num_done" at 28,
    }
    pub struct ResumeQueue = "struct kfd_ioctl_resume_queue_args" in ALWAYS, 24 bytes {
        pub entries: u64 = "entries_ptr" at 0,
        pub count: u32 = "num_entries" at 8,
        pub entry_size: u32 = "entry_size" at 12,
        /// [`FLAG_ANY_OWNER`] or 0.
        pub flags: u32 = "flags" at 16,
        /// Output: how many results are 0.
        pub done: u32 = "num_done" at 20,
    }
    /// Sets the priority of queues for the in-kernel scheduler.
    pub struct SetPreemptPriority = "struct kfd_ioctl_set_preempt_priority_args"
        in ALWAYS, 32 bytes {
        /// 0 is the caller.
        pub pid: u32 = "pid" at 0,
        /// A queue, or [`ALL_QUEUES`].
        pub queue_id: u32 = "queue_id" at 4,
        pub serial: u64 = "serial" at 8,
        /// 0 to 15, or [`PRIORITY_DEFAULT`].
        pub priority: u32 = "priority" at 16,
        pub flags: u32 = "flags" at 20,
        /// Output: how many queues have another priority now.
        pub done: u32 = "num_done" at 24,
        pub reserved: u32 = "reserved" at 28,
    }
}

table::numbers! {
    constants {
        PREEMPT_QUEUE: Opcode =
            exchanges::<PreemptQueue>(0x40), "AMDKFD_IOC_PREEMPT_QUEUE" in ALWAYS;
        RESUME_QUEUE: Opcode =
            exchanges::<ResumeQueue>(0x41), "AMDKFD_IOC_RESUME_QUEUE" in ALWAYS;
        SET_PREEMPT_PRIORITY: Opcode =
            exchanges::<SetPreemptPriority>(0x42), "AMDKFD_IOC_SET_PREEMPT_PRIORITY" in ALWAYS;
        QUEUES_MAX: u32 = 1024, "KFD_IOC_PREEMPT_MAX_QUEUES" in ALWAYS;
        GRACE_MAX: u32 = 0xff, "KFD_IOC_PREEMPT_MAX_GRACE" in ALWAYS;
        TIMEOUT_MAX_MS: u32 = 3_600_000, "KFD_IOC_PREEMPT_MAX_TIMEOUT_MS" in ALWAYS;
        FLAG_GRACE: u32 = 1, "KFD_IOC_PREEMPT_FLAGS_ALL" in ALWAYS;
        /// Resume queues that another process preempted.
        FLAG_ANY_OWNER: u32 = 1, "KFD_IOC_RESUME_FLAGS_ALL" in ALWAYS;
        /// All queues of a process, including those it creates later.
        ALL_QUEUES: u32 = u32::MAX, "KFD_IOC_PREEMPT_ALL_QUEUES" in ALWAYS;
        /// Back to the priority of the process, or of a new process.
        PRIORITY_DEFAULT: u32 = 0xff, "KFD_IOC_PREEMPT_PRIORITY_DEFAULT" in ALWAYS;
        /// The highest priority that a process may set for itself without a capability.
        PRIORITY_UNPRIVILEGED: u32 = 7, "KFD_IOC_PREEMPT_PRIORITY_UNPRIVILEGED" in ALWAYS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_patches() {
        assert_eq!(PREEMPT_QUEUE, 0xc020_4b40);
        assert_eq!(RESUME_QUEUE, 0xc018_4b41);
        assert_eq!(SET_PREEMPT_PRIORITY, 0xc020_4b42);
    }
}
