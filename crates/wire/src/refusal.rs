//! No, and why.

use std::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};
use crate::text::Text;

/// Why a request was refused: for programs. The sentence is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The message makes no sense. The session is closed.
    BadMessage,
    /// The client speaks another version of the protocol. The session is closed.
    Version,
    /// The client may not do that.
    NotPermitted,
    /// There is no such process, or it is not the one it was.
    NoSuchProcess,
    /// No such policy or parameter, or not that value.
    BadSetting,
    /// What was asked for is going on already.
    Busy,
    /// Too much: messages, sessions, suspensions. The session may be closed.
    Limit,
    /// The process is not under the daemon's control.
    NotControlled,
    /// The device cannot do that.
    Unsupported,
    /// The device was told and did not.
    Failed,
    /// The daemon is about to end.
    Stopping,
    /// There is no such queue.
    NoSuchQueue,
    /// Not as things stand: the queue was not suspended by this session.
    WrongState,
}

impl RefusalCode {
    /// Every code.
    pub const ALL: [Self; 13] = [
        Self::BadMessage,
        Self::Version,
        Self::NotPermitted,
        Self::NoSuchProcess,
        Self::BadSetting,
        Self::Busy,
        Self::Limit,
        Self::NotControlled,
        Self::Unsupported,
        Self::Failed,
        Self::Stopping,
        Self::NoSuchQueue,
        Self::WrongState,
    ];

    /// The number that stands for it.
    pub const fn number(self) -> u16 {
        match self {
            Self::BadMessage => 1,
            Self::Version => 2,
            Self::NotPermitted => 3,
            Self::NoSuchProcess => 4,
            Self::BadSetting => 5,
            Self::Busy => 6,
            Self::Limit => 7,
            Self::NotControlled => 8,
            Self::Unsupported => 9,
            Self::Failed => 10,
            Self::Stopping => 11,
            Self::NoSuchQueue => 12,
            Self::WrongState => 13,
        }
    }

    fn from_number(number: u16) -> Result<Self, DecodeError> {
        let code = Self::ALL.into_iter().find(|code| code.number() == number);
        code.ok_or(DecodeError::field("code", "between 1 and 13"))
    }
}

/// A request that was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// What happened, why, and what to do, in one sentence.
    pub sentence: Text<248>,
}

/// The same in every version of the protocol.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Layout {
    code: U16,
    reserved: [u8; 6],
    sentence: [u8; 248],
}

impl Refusal {
    /// A refusal with as much of the sentence as fits.
    pub fn new(code: RefusalCode, sentence: &str) -> Self {
        Self { code, sentence: Text::new(sentence) }
    }

    pub(crate) fn to_layout(self) -> Layout {
        Layout {
            code: U16::new(self.code.number()),
            reserved: [0; 6],
            sentence: self.sentence.to_bytes(),
        }
    }

    pub(crate) fn from_layout(layout: &Layout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        Ok(Self {
            code: RefusalCode::from_number(layout.code.get())?,
            sentence: Text::from_bytes("sentence", layout.sentence)?,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sentence.fmt(f)
    }
}
