//! The beginning of every message.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the protocol that this is.
pub const VERSION: u16 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = size_of::<Header>();

const MAGIC: u32 = u32::from_le_bytes(*b"GPEM");

/// The first 16 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: U32,
    version: U16,
    kind: U16,
    request: U64,
}

/// Why some bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than a header, or not ours.
    #[error("not a message of this protocol")]
    Foreign,
    /// Another version.
    #[error("version {0} of the protocol; this is version {VERSION}")]
    Version(u16),
    /// No such message.
    #[error("no message of kind {0}")]
    Kind(u16),
    /// Too short or too long for its kind.
    #[error("a message of kind {kind} with {bytes} bytes")]
    Size {
        /// Which kind.
        kind: u16,
        /// How long it was, without its header.
        bytes: usize,
    },
    /// A field that says something impossible.
    #[error("a field of a message of kind {0} says something impossible")]
    Value(u16),
}

/// A message's bytes.
pub(super) fn encode(kind: u16, request: u64, body: &[u8]) -> Vec<u8> {
    let header = Header {
        magic: MAGIC.into(),
        version: VERSION.into(),
        kind: kind.into(),
        request: request.into(),
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A message's kind, request and body.
pub(super) fn decode(bytes: &[u8]) -> Result<(u16, u64, &[u8]), WireError> {
    let (header, body) = Header::ref_from_prefix(bytes).map_err(|_| WireError::Foreign)?;
    if header.magic.get() != MAGIC {
        return Err(WireError::Foreign);
    }
    match header.version.get() {
        VERSION => Ok((header.kind.get(), header.request.get(), body)),
        other => Err(WireError::Version(other)),
    }
}
