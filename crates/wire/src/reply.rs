//! Replies of the daemon.

use std::fmt;

use crate::chunk::Chunk;
use crate::event::Event;
use crate::message::DAEMON;
use crate::policy::PolicySettings;
use crate::queue::QueueList;
use crate::text::Text;

codes! {
    /// Why a request was refused, for programs; the sentence beside it is for people.
    pub enum RefusalCode as u16, "between 1 and 16" {
        /// The message breaks a rule of the protocol. The session is closed.
        BadMessage = 1,
        /// The client speaks another version of the protocol. The session is closed.
        Version = 2,
        /// The client has no permission for the request.
        NotPermitted = 3,
        /// There is no such process, or its pid belongs to another process now.
        NoSuchProcess = 4,
        /// No such policy or parameter, or a value that it cannot have.
        BadSetting = 5,
        /// The same is in progress already.
        Busy = 6,
        /// A limit of messages, sessions or suspensions was reached. The session may be closed.
        Limit = 7,
        /// The daemon does not control the process.
        NotControlled = 8,
        /// The device cannot do that.
        Unsupported = 9,
        /// The device did not carry out the command.
        Failed = 10,
        /// The daemon is about to end.
        Stopping = 11,
        /// There is no such queue.
        NoSuchQueue = 12,
        /// This session has not suspended the queue.
        WrongState = 13,
        /// A GPU or the host is short of memory.
        NoRoom = 14,
        /// The GPU memory of the process cannot be moved.
        CannotEvict = 15,
        /// The GPU memory of the process is not on the host.
        NotEvicted = 16,
    }
}

record! {
    /// A request that was refused. Nothing was changed. The same in every version of the protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Refusal {
        /// Why, for programs.
        pub code: RefusalCode; 6 zeros,
        /// What happened, why, and what to do, in one sentence.
        pub sentence: Text<248>,
    }
}

impl Refusal {
    /// A refusal with as much of the sentence as fits.
    pub fn new(code: RefusalCode, sentence: &str) -> Self {
        Self { code, sentence: Text::new(sentence) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sentence.fmt(f)
    }
}

messages! {
    /// A reply of the daemon.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Reply of DAEMON, from 0 {
        /// The request was carried out, or will be.
        0x8001 = Ok,
        /// The request was refused.
        0x8002 = Refused(refusal: Refusal),
        /// A piece of a snapshot.
        0x8003 = Snapshot(chunk: Chunk),
        /// An event, for a session that follows them.
        0x8004 = Event(event: Event),
        /// The end of the events.
        0x8005 = End {
            /// How many events were dropped since the last one, because the reader was slow.
            dropped: u64,
        },
        /// The packet carries the descriptor of a hint page.
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
