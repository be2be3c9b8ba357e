//! What a client asks of the daemon.

use std::num::{NonZeroU16, NonZeroU32};

use gpreempt_core::priority::Priority;

use crate::header::DAEMON;
use crate::policy::PolicySettings;
use crate::process::Process;
use crate::queue::{QueueIds, QueueStop};
use crate::role::Role;
use crate::text::Text;
use crate::traits::TraitsChange;

// 14 and 15 are reserved: earlier releases sent hints with them instead of the hint page.
messages! {
    /// What a client asks for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Request of DAEMON, from 0 {
        /// The first message of every session, and only that. Answered with `Ok`. The same in
        /// every version of the protocol.
        1 = Hello {
            /// What the client is.
            role: Role; 7 zeros,
            /// What it is called, for the daemon's log.
            program: Text<32>,
        },
        /// Whether the daemon answers. Answered with `Ok`.
        2 = Ping,
        /// These traits are for a process and its children as soon as they use a device. Answered
        /// with `Ok`.
        3 = Register {
            /// The process.
            process: Process,
            /// Its new traits.
            change: TraitsChange,
        },
        /// A process has other traits from now on. Answered with `Ok`.
        4 = Set {
            /// The process.
            process: Process,
            /// Its new traits.
            change: TraitsChange,
        },
        /// Take a process off its devices, for so long at the most. Answered with `Ok`.
        5 = Suspend {
            /// The process.
            process: Process,
            /// After how many milliseconds it runs again by itself.
            lease_ms: NonZeroU32; 4 zeros,
        },
        /// End a suspension. Answered with `Ok`.
        6 = Resume {
            /// The process.
            process: Process,
        },
        /// End every suspension. Answered with `Ok`.
        7 = ResumeAll,
        /// Restore a process and leave it alone from now on. Answered with `Ok`.
        8 = Detach {
            /// The process.
            process: Process,
        },
        /// Which policy is in force. Answered with `Policy`.
        9 = PolicyRead,
        /// Change the policy. Answered with `Policy`, as it is then.
        10 = PolicySet(settings: PolicySettings),
        /// The whole state of the daemon, as JSON. Answered with `Snapshot`, in pieces.
        11 = Snapshot,
        /// Events from now on. Answered with `Ok`, then an `Event` for each, without end.
        12 = Follow,
        /// Events for a while. Answered with `Ok`, then an `Event` for each, then `End`.
        13 = Trace {
            /// For how long.
            seconds: NonZeroU16; 6 zeros,
        },
        /// A page to give hints with. Answered with `Page` and a descriptor.
        16 = OpenPage,
        /// Something changed on the page. Not answered, and its number is 0.
        17 = Wake,
        /// The queues after that number, in order; all of them after 0. Answered with `Queues`.
        18 = ListQueues {
            /// After which.
            after: u64,
        },
        /// One queue. Answered with `Queues`.
        19 = ReadQueue {
            /// Its number.
            queue: u64,
        },
        /// Take queues off their devices, all or none, for as long as this session lasts, and no
        /// longer than the lease. Answered with `Ok`, before they are off.
        20 = SuspendQueues(stop: QueueStop),
        /// End suspensions of queues by this session, all or none. Answered with `Ok`.
        21 = ResumeQueues {
            /// Their numbers.
            queues: QueueIds,
        },
        /// A queue has a priority of its own from now on, or again its process's. Answered with
        /// `Ok`.
        22 = SetQueue {
            /// Its number.
            queue: u64,
            /// The priority, or none for its process's.
            priority: Option<Priority>; 7 zeros,
        },
    }
}
