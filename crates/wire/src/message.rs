//! One packet, understood.

use crate::decode_error::DecodeError;
use crate::header::{Header, Protocol};

/// What one side says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<B> {
    /// The number that the client gave its request, from 1 on and growing. Replies repeat it. Only
    /// [`Wake`](crate::request::Request::Wake) has 0, because it is not answered.
    pub request: u64,
    /// What it is about.
    pub body: B,
}

/// What can be in a message: everything that goes in one direction of a protocol.
pub trait Body: Sized {
    /// The protocol.
    const PROTOCOL: Protocol;
    /// The smallest number that a message of this direction may have.
    const REQUEST_MIN: u64;

    /// Which message this is.
    fn kind(&self) -> u16;

    /// The bytes after the header.
    fn to_bytes(&self) -> Vec<u8>;

    /// The body of that kind.
    ///
    /// # Errors
    /// If there is no such kind, or the bytes are not one.
    fn from_bytes(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError>;

    /// The packet, under the number of a request.
    ///
    /// # Errors
    /// If the body is longer than the protocol allows.
    fn try_encode(&self, request: u64) -> Result<Vec<u8>, DecodeError> {
        Header { kind: self.kind(), request }.join(&Self::PROTOCOL, &self.to_bytes())
    }

    /// The packet, for bodies that always fit.
    fn encode(&self, request: u64) -> Vec<u8> {
        // PANIC: bodies are of fixed layouts, shorter than the longest packet, or are cut to it.
        self.try_encode(request).expect("a body fits into a packet")
    }

    /// The number and the body in a packet.
    ///
    /// # Errors
    /// Names the first thing that is wrong with it.
    fn decode(packet: &[u8]) -> Result<(u64, Self), DecodeError> {
        let (header, bytes) = Header::split(&Self::PROTOCOL, packet)?;
        if header.request < Self::REQUEST_MIN {
            return Err(DecodeError::field("request", "at least 1"));
        }
        Ok((header.request, Self::from_bytes(header.kind, bytes)?))
    }
}

impl<B: Body> Message<B> {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        self.body.encode(self.request)
    }

    /// What a packet says.
    ///
    /// # Errors
    /// Names the first thing that is wrong with it.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (request, body) = B::decode(packet)?;
        Ok(Self { request, body })
    }
}
