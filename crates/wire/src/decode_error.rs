//! What is wrong with a packet.

use crate::header::HEADER_BYTES;

/// Why some bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is not even a header.
    #[error("{found} bytes are no message; a header alone has {HEADER_BYTES}")]
    NoHeader {
        /// How many bytes there are.
        found: usize,
    },
    /// Somebody else's protocol.
    #[error("the packet begins with {0:#010x}; it is not one of gpreempt's")]
    Magic(u32),
    /// Another version of ours.
    #[error("the message has protocol version {theirs}, this program speaks version {ours}")]
    Version {
        /// What the sender speaks.
        theirs: u16,
        /// What this program speaks.
        ours: u16,
    },
    /// No such message in this direction.
    #[error("message kind {0:#06x} is not known here")]
    Kind(u16),
    /// The header and the packet disagree.
    #[error("the header speaks of {said} bytes of body, the packet has {found}")]
    Length {
        /// What the header says.
        said: u32,
        /// What there is.
        found: usize,
    },
    /// More than a packet may have.
    #[error("a body of {found} bytes is too long; the limit is {limit}")]
    TooLong {
        /// What there is.
        found: usize,
        /// What the protocol allows.
        limit: usize,
    },
    /// The body is not as long as its kind.
    #[error("the body has {found} bytes where its kind has {wanted}")]
    BodyLength {
        /// What there is.
        found: usize,
        /// What that kind has.
        wanted: usize,
    },
    /// A field with a value that it cannot have.
    #[error("`{field}` must be {rule}")]
    Field {
        /// Which one.
        field: &'static str,
        /// What it has to be.
        rule: &'static str,
    },
}

impl DecodeError {
    pub(crate) const fn field(field: &'static str, rule: &'static str) -> Self {
        Self::Field { field, rule }
    }
}

/// Fields without a meaning are zero, so that a later version can give them one.
pub(crate) fn check_zero(bytes: &[u8]) -> Result<(), DecodeError> {
    if bytes.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(DecodeError::field("reserved", "zero"))
    }
}
