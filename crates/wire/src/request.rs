//! Requests of clients to the daemon.

use std::num::{NonZeroU16, NonZeroU32};

use gpreempt_core::priority::Priority;

use crate::message::DAEMON;
use crate::policy::PolicySettings;
use crate::process::{Process, SchedAttrChange};
use crate::queue::{QueueIds, QueueStop};
use crate::text::Text;

codes! {
    /// The kind of program that connects. It grants no rights; the daemon expects less traffic of
    /// some than of others.
    pub enum Role as u8, "1, 2 or 3" {
        /// A command that a person or a script runs.
        Command = 1,
        /// A library in a process that uses devices and gives hints.
        Agent = 2,
        /// A program that observes for a long time: `top`, a log of events, metrics.
        Monitor = 3,
    }
}

codes! {
    /// Which processes an eviction is about.
    pub enum EvictScope as u8, "1 or 2" {
        /// The process alone.
        Process = 1,
        /// The process and its descendants. All of them are locked before the memory of the first
        /// one moves.
        Tree = 2,
    }
}

// 14 and 15 are reserved: earlier releases sent hints with them instead of the hint page.
messages! {
    /// A request to the daemon.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Request of DAEMON, from 0 {
        /// The first message of every session, and only that. Answered with `Ok`. The same in
        /// every version of the protocol.
        1 = Hello {
            /// The kind of program.
            role: Role; 7 zeros,
            /// The name of the program, for the daemon's log.
            program: Text<32>,
        },
        /// Asks whether the daemon answers. Answered with `Ok`.
        2 = Ping,
        /// Sets the attributes of a process and its children as soon as they use a device. Answered
        /// with `Ok`.
        3 = Register {
            /// The process.
            process: Process,
            /// Its new attributes.
            change: SchedAttrChange,
        },
        /// Changes the attributes of a process. Answered with `Ok`.
        4 = Set {
            /// The process.
            process: Process,
            /// Its new attributes.
            change: SchedAttrChange,
        },
        /// Suspends a process for the time of a lease. Answered with `Ok`.
        5 = Suspend {
            /// The process.
            process: Process,
            /// The process is resumed after this many milliseconds.
            lease_ms: NonZeroU32; 4 zeros,
        },
        /// Ends a suspension. Answered with `Ok`.
        6 = Resume {
            /// The process.
            process: Process,
        },
        /// Ends every suspension. Answered with `Ok`.
        7 = ResumeAll,
        /// Restores a process and stops scheduling it. Answered with `Ok`.
        8 = Detach {
            /// The process.
            process: Process,
        },
        /// Reads the policy in force. Answered with `Policy`.
        9 = PolicyRead,
        /// Changes the policy. Answered with `Policy`, as it is then.
        10 = PolicySet(settings: PolicySettings),
        /// Reads the state of the daemon as JSON. Answered with `Snapshot`, in pieces.
        11 = Snapshot,
        /// Subscribes to events. Answered with `Ok`, then an `Event` for each, without end.
        12 = Follow,
        /// Subscribes to events for a while. Answered with `Ok`, then an `Event` for each, then
        /// `End`.
        13 = Trace {
            /// How many seconds.
            seconds: NonZeroU16; 6 zeros,
        },
        /// Opens a hint page. Answered with `Page` and a descriptor.
        16 = OpenPage,
        /// Wakes the daemon because the hint page has changed. Not answered; its number is 0.
        17 = Wake,
        /// Lists the queues with greater ids, in order; all of them after 0. Answered with
        /// `Queues`.
        18 = ListQueues {
            /// The id after which the list begins.
            after: u64,
        },
        /// Reads one queue. Answered with `Queues`.
        19 = ReadQueue {
            /// The id of the queue.
            queue: u64,
        },
        /// Suspends queues, all or none, until the session ends and no longer than the lease.
        /// Answered with `Ok`, before they are off.
        20 = SuspendQueues(stop: QueueStop),
        /// Ends suspensions of queues by this session, all or none. Answered with `Ok`.
        21 = ResumeQueues {
            /// The ids of the queues.
            queues: QueueIds,
        },
        /// Gives a queue a priority of its own, or removes it. Answered with `Ok`.
        22 = SetQueue {
            /// The id of the queue.
            queue: u64,
            /// The priority; none for that of the process.
            priority: Option<Priority>; 7 zeros,
        },
        /// Moves the GPU memory of a process to the host. Answered with `Ok` when it is there,
        /// which takes seconds.
        23 = Evict {
            /// The process.
            process: Process,
            /// The memory returns after this many milliseconds; 0 if it stays until `Restore`.
            lease_ms: u32,
            /// The process alone, or its descendants too.
            scope: EvictScope; 3 zeros,
        },
        /// Ends an eviction. Answered with `Ok` when the memory is on the GPU again, which takes
        /// seconds, and longer while the GPU is full.
        24 = Restore {
            /// The process.
            process: Process,
        },
        /// Makes room for a process that needs GPU memory, by evicting processes with a lower
        /// priority that are evictable. Answered with `Ok` when the memory is free, which takes
        /// seconds. The evicted processes return when the claim ends: with the process, or with a
        /// claim of 0 bytes.
        25 = MakeRoom {
            /// The process that needs the memory.
            process: Process,
            /// How much; 0 ends the claim.
            bytes: u64,
            /// The GPU, by its number in the daemon. `u32::MAX` lets the daemon choose.
            device: Option<u32>; 4 zeros,
        },
    }
}
