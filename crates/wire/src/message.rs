//! One packet, understood.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::decode_error::DecodeError;
use crate::header::Header;

/// What one side says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<B> {
    /// The number that the client gave its request, from 1 on and growing. Replies repeat it. Only
    /// [`Wake`](crate::request::Request::Wake) has 0, because nobody answers it.
    pub request: u64,
    /// What it is about.
    pub body: B,
}

/// What can be in a message: everything that goes in one direction.
pub trait Body: Sized {
    /// Which message this is.
    fn kind(&self) -> u16;

    /// The bytes after the header; at most [`BODY_BYTES_MAX`](crate::header::BODY_BYTES_MAX).
    fn to_bytes(&self) -> Vec<u8>;

    /// The body of that kind.
    ///
    /// # Errors
    /// If there is no such kind, or the bytes are not one.
    fn from_bytes(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError>;
}

impl<B: Body> Message<B> {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let header = Header { kind: self.body.kind(), request: self.request };
        // PANIC: bodies are of fixed layouts, all shorter than that, or a chunk, which is cut so.
        header.join(&self.body.to_bytes()).expect("a body fits into a packet")
    }

    /// What a packet says.
    ///
    /// # Errors
    /// Names the first thing that is wrong with it.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (header, bytes) = Header::split(packet)?;
        Ok(Self { request: header.request, body: B::from_bytes(header.kind, bytes)? })
    }
}

/// A body of fixed layout.
pub(crate) fn layout_of<T: FromBytes + KnownLayout + Immutable>(
    bytes: &[u8],
) -> Result<T, DecodeError> {
    T::read_from_bytes(bytes)
        .map_err(|_| DecodeError::BodyLength { found: bytes.len(), wanted: size_of::<T>() })
}

/// A fixed layout as a body.
pub(crate) fn bytes_of(layout: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    layout.as_bytes().to_vec()
}
