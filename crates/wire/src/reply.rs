//! What the daemon answers.

use crate::event::Event;
use crate::header::DAEMON;
use crate::policy::PolicySettings;
use crate::queue::QueueList;
use crate::refusal::Refusal;
use crate::snapshot::Chunk;

messages! {
    /// What the daemon answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Reply of DAEMON, from 0 {
        /// Done, or going to be done.
        0x8001 = Ok,
        /// No, and why.
        0x8002 = Refused(refusal: Refusal),
        /// A piece of a snapshot.
        0x8003 = Snapshot(chunk: Chunk),
        /// Something happened.
        0x8004 = Event(event: Event),
        /// There will be no more events.
        0x8005 = End {
            /// How many were left out since the last one, because the reader was slow.
            dropped: u64,
        },
        /// The descriptor that comes with this packet is that of a hint page.
        0x8006 = Page {
            /// How many slots the page has.
            slots: u32,
        },
        /// The policy in force.
        0x8007 = Policy(settings: PolicySettings),
        /// Queues.
        0x8008 = Queues(list: QueueList),
    }
}
