//! No, and why.

use std::fmt;

use crate::text::Text;

codes! {
    /// Why a request was refused: for programs. The sentence is for people.
    pub enum RefusalCode as u16, "between 1 and 13" {
        /// The message makes no sense. The session is closed.
        BadMessage = 1,
        /// The client speaks another version of the protocol. The session is closed.
        Version = 2,
        /// The client may not do that.
        NotPermitted = 3,
        /// There is no such process, or it is not the one it was.
        NoSuchProcess = 4,
        /// No such policy or parameter, or not that value.
        BadSetting = 5,
        /// What was asked for is going on already.
        Busy = 6,
        /// Too much: messages, sessions, suspensions. The session may be closed.
        Limit = 7,
        /// The process is not under the daemon's control.
        NotControlled = 8,
        /// The device cannot do that.
        Unsupported = 9,
        /// The device was told and did not.
        Failed = 10,
        /// The daemon is about to end.
        Stopping = 11,
        /// There is no such queue.
        NoSuchQueue = 12,
        /// Not as things stand: the queue was not suspended by this session.
        WrongState = 13,
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
