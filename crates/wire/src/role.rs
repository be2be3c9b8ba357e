//! What a session is for.

use crate::decode_error::DecodeError;

/// What the program at the other end is. It gives no rights; it tells the daemon what to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A command that a person or a script runs.
    Command,
    /// A library in a process that uses devices: hints.
    Agent,
    /// Something that looks for a long time: `top`, a log of events, metrics.
    Monitor,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Command, Self::Agent, Self::Monitor];

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Command => 1,
            Self::Agent => 2,
            Self::Monitor => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Result<Self, DecodeError> {
        let role = Self::ALL.into_iter().find(|role| role.code() == code);
        role.ok_or(DecodeError::field("role", "1, 2 or 3"))
    }
}
