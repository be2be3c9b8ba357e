//! Why a session ends.

use rustix::io::Errno;

use crate::decode_error::DecodeError;
use crate::refusal::{Refusal, RefusalCode};

/// Why a session ends. As text it is one line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Offence {
    /// None: the client left.
    #[error("it left")]
    Left,
    /// A packet that is no message.
    #[error("it sent a bad message: {error}")]
    BadMessage {
        /// What is wrong with it.
        error: DecodeError,
        /// The number of the request, as far as it can be read.
        request: u64,
    },
    /// A packet longer than any message.
    #[error("it sent a packet of {bytes} bytes; the limit is 4096")]
    TooLong {
        /// How long.
        bytes: usize,
    },
    /// It did not begin with a hello.
    #[error("its first message was not Hello")]
    NoHello {
        /// The number of the request.
        request: u64,
    },
    /// It said hello twice.
    #[error("it sent a second Hello")]
    SecondHello {
        /// The number of the request.
        request: u64,
    },
    /// The number of a request was not greater than that of the one before.
    #[error("it sent request {request} after request {last}; numbers must grow")]
    Replayed {
        /// The number.
        request: u64,
        /// The one before.
        last: u64,
    },
    /// Too much in too short a time.
    #[error("it sends more messages than it may")]
    Flood,
    /// It asks and does not listen.
    #[error("it does not read its replies")]
    NeverReads,
    /// The kernel refuses to go on.
    #[error("its connection failed: {0}")]
    Os(Errno),
}

impl Offence {
    /// Whether somebody did something wrong.
    pub const fn is_offence(&self) -> bool {
        !matches!(self, Self::Left)
    }

    /// What to tell the offender, if it can be told, and the number of the request.
    pub fn refusal(&self) -> Option<(u64, Refusal)> {
        let (request, code) = match *self {
            Self::Left | Self::NeverReads | Self::Os(_) => return None,
            Self::BadMessage { error: DecodeError::Version { .. }, request } => {
                (request, RefusalCode::Version)
            }
            Self::BadMessage { request, .. }
            | Self::NoHello { request }
            | Self::SecondHello { request }
            | Self::Replayed { request, .. } => (request, RefusalCode::BadMessage),
            Self::TooLong { .. } => (0, RefusalCode::BadMessage),
            Self::Flood => (0, RefusalCode::Limit),
        };
        let sentence = format!("gpreemptd closes this session because {self}");
        Some((request, Refusal::new(code, &sentence)))
    }
}
