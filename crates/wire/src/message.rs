//! One packet: its header, its body, and what can be wrong with it.
//!
//! ```text
//!   0  u32  magic: which protocol          4  u16  version of the protocol
//!   6  u16  kind of the message            8  u32  bytes of the body
//!  12  4 bytes of zero                    16  u64  number of the request
//! ```
//!
//! The header is the same in every version of a protocol, so that programs of different versions
//! can report that they do not understand each other.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A protocol between two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The first four bytes of its packets.
    pub magic: u32,
    /// The version of the protocol.
    pub version: u16,
    /// The length of the longest packet.
    pub packet_bytes_max: usize,
}

/// The protocol of `gpreemptd`: docs/reference/protocol.md.
pub const DAEMON: Protocol =
    Protocol { magic: MAGIC, version: VERSION, packet_bytes_max: PACKET_BYTES_MAX };

/// The version of the daemon's protocol.
pub const VERSION: u16 = 1;
/// The first bytes of a packet of the daemon's protocol: `GPRE`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"GPRE");
/// The longest packet of the daemon's protocol.
pub const PACKET_BYTES_MAX: usize = 4096;
/// The length of a header.
pub const HEADER_BYTES: usize = size_of::<Layout>();
/// The longest body of the daemon's protocol.
pub const BODY_BYTES_MAX: usize = PACKET_BYTES_MAX - HEADER_BYTES;

const _: () = assert!(HEADER_BYTES == 24);

/// Why some bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than a header has.
    #[error("{found} bytes are no message; a header alone has {HEADER_BYTES}")]
    NoHeader {
        /// How many bytes there are.
        found: usize,
    },
    /// A packet of another protocol.
    #[error("the packet begins with {0:#010x}; it is not one of gpreempt's")]
    Magic(u32),
    /// Another version of the protocol.
    #[error("the message has protocol version {theirs}, this program speaks version {ours}")]
    Version {
        /// The version of the sender.
        theirs: u16,
        /// The version of this program.
        ours: u16,
    },
    /// No such message in this direction.
    #[error("message kind {0:#06x} is not known here")]
    Kind(u16),
    /// The header and the packet disagree.
    #[error("the header announces {said} bytes of body, the packet has {found}")]
    Length {
        /// The length in the header.
        said: u32,
        /// The length of the rest of the packet.
        found: usize,
    },
    /// More than a packet may have.
    #[error("a body of {found} bytes is too long; the limit is {limit}")]
    TooLong {
        /// The length of the body.
        found: usize,
        /// The longest body of the protocol.
        limit: usize,
    },
    /// The body is not as long as its kind requires.
    #[error("the body has {found} bytes where its kind has {wanted}")]
    BodyLength {
        /// The length of the body.
        found: usize,
        /// The length that the kind requires.
        wanted: usize,
    },
    /// A field with a value that it cannot have.
    #[error("`{field}` must be {rule}")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The values that it can have.
        rule: &'static str,
    },
}

impl DecodeError {
    pub(crate) const fn field(field: &'static str, rule: &'static str) -> Self {
        Self::Field { field, rule }
    }
}

/// Reserved bytes are zero, so that a later version can use them.
pub(crate) fn check_zero(bytes: &[u8]) -> Result<(), DecodeError> {
    if bytes.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(DecodeError::field("reserved", "zero"))
    }
}

/// The variable part of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub kind: u16,
    /// The number that a request chose, and that its replies repeat.
    pub request: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: U32,
    version: U16,
    kind: U16,
    body_bytes: U32,
    reserved: [u8; 4],
    request: U64,
}

impl Header {
    /// The header of a packet, and its body. The packet must be whole and of this version.
    pub fn split<'a>(
        protocol: &Protocol,
        packet: &'a [u8],
    ) -> Result<(Self, &'a [u8]), DecodeError> {
        let (layout, body) = Layout::read_from_prefix(packet)
            .map_err(|_| DecodeError::NoHeader { found: packet.len() })?;
        if layout.magic.get() != protocol.magic {
            return Err(DecodeError::Magic(layout.magic.get()));
        }
        // Checked before everything that another version may define differently.
        let (theirs, ours) = (layout.version.get(), protocol.version);
        if theirs != ours {
            return Err(DecodeError::Version { theirs, ours });
        }
        check_length(protocol, body)?;
        let said = layout.body_bytes.get();
        if usize::try_from(said) != Ok(body.len()) {
            return Err(DecodeError::Length { said, found: body.len() });
        }
        check_zero(&layout.reserved)?;
        Ok((Self { kind: layout.kind.get(), request: layout.request.get() }, body))
    }

    /// A packet with this header and that body; an error if the body is too long.
    pub fn join(self, protocol: &Protocol, body: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let body_bytes = check_length(protocol, body)?;
        let layout = Layout {
            magic: U32::new(protocol.magic),
            version: U16::new(protocol.version),
            kind: U16::new(self.kind),
            body_bytes: U32::new(body_bytes),
            reserved: [0; 4],
            request: U64::new(self.request),
        };
        Ok([layout.as_bytes(), body].concat())
    }
}

fn check_length(protocol: &Protocol, body: &[u8]) -> Result<u32, DecodeError> {
    let (found, limit) = (body.len(), protocol.packet_bytes_max - HEADER_BYTES);
    let length = u32::try_from(found).ok().filter(|_| found <= limit);
    length.ok_or(DecodeError::TooLong { found, limit })
}

/// The number of the request in a packet of any version of the daemon's protocol, for the refusal
/// of a packet that cannot be decoded; 0 if the packet has no readable number.
pub fn request_of(packet: &[u8]) -> u64 {
    match Layout::read_from_prefix(packet) {
        Ok((layout, _)) if layout.magic.get() == MAGIC => layout.request.get(),
        Ok(_) | Err(_) => 0,
    }
}

/// A body with the number of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<B> {
    /// The number that the client gave its request, from 1 on and growing. Replies repeat it. Only
    /// [`Wake`](crate::request::Request::Wake) has 0, because it is not answered.
    pub request: u64,
    /// The request or the reply.
    pub body: B,
}

/// The messages of one direction of a protocol.
pub trait Body: Sized {
    /// The protocol.
    const PROTOCOL: Protocol;
    /// The smallest number that a message of this direction may have.
    const REQUEST_MIN: u64;

    /// The number of the message's kind.
    fn kind(&self) -> u16;

    /// The bytes after the header.
    fn to_bytes(&self) -> Vec<u8>;

    /// The body of that kind; an error if there is no such kind, or the bytes do not fit it.
    fn from_bytes(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError>;

    /// The packet, under the number of a request; an error if the body is too long.
    fn try_encode(&self, request: u64) -> Result<Vec<u8>, DecodeError> {
        Header { kind: self.kind(), request }.join(&Self::PROTOCOL, &self.to_bytes())
    }

    /// The packet, for bodies that always fit.
    fn encode(&self, request: u64) -> Vec<u8> {
        // PANIC: bodies are of fixed layouts, shorter than the longest packet, or are cut to it.
        self.try_encode(request).expect("a body fits into a packet")
    }

    /// The number and the body in a packet. The error names the first mistake.
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

    /// The message in a packet. The error names the first mistake.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (request, body) = B::decode(packet)?;
        Ok(Self { request, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_value_in_a_header_has_its_own_error() {
        let packet = Header { kind: 7, request: 42 }.join(&DAEMON, b"body").unwrap();
        let header = Header { kind: 7, request: 42 };
        assert_eq!(Header::split(&DAEMON, &packet), Ok((header, &b"body"[..])));
        assert_eq!(Header::split(&DAEMON, &packet[..23]), Err(DecodeError::NoHeader { found: 23 }));
        let short = DecodeError::Length { said: 4, found: 3 };
        assert_eq!(Header::split(&DAEMON, &packet[..27]), Err(short));
        let with = |at: usize, byte: u8| {
            let mut changed = packet.clone();
            changed[at] = byte;
            Header::split(&DAEMON, &changed).unwrap_err()
        };
        assert!(matches!(with(0, b'H'), DecodeError::Magic(_)));
        assert_eq!(with(5, 2), DecodeError::Version { theirs: 0x0201, ours: 1 });
        assert_eq!(with(8, 5), DecodeError::Length { said: 5, found: 4 });
        assert_eq!(with(12, 1), DecodeError::field("reserved", "zero"));
    }

    #[test]
    fn the_longest_body_fits_and_the_next_one_does_not() {
        let header = Header { kind: 1, request: 1 };
        let packet = header.join(&DAEMON, &[0; BODY_BYTES_MAX]).unwrap();
        assert_eq!(packet.len(), PACKET_BYTES_MAX);
        assert!(Header::split(&DAEMON, &packet).is_ok());
        let too_long =
            Err(DecodeError::TooLong { found: BODY_BYTES_MAX + 1, limit: BODY_BYTES_MAX });
        assert_eq!(header.join(&DAEMON, &[0; BODY_BYTES_MAX + 1]), too_long);
        let packet = [packet.as_slice(), &[0]].concat();
        assert_eq!(Header::split(&DAEMON, &packet).map(|_| Vec::new()), too_long);
    }

    #[test]
    fn the_number_of_a_request_can_be_read_in_any_version() {
        let mut packet = Header { kind: 1, request: 77 }.join(&DAEMON, b"").unwrap();
        packet[4] = 9;
        assert_eq!(request_of(&packet), 77);
        packet[0] = 0;
        assert_eq!(request_of(&packet), 0);
        assert_eq!(request_of(b"GPRE"), 0);
    }
}
