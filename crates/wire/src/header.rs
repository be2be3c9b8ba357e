//! The first 24 bytes of every packet, in every protocol of ours.
//!
//! ```text
//!   0  u32  magic: which protocol          4  u16  version of the protocol
//!   6  u16  kind of the message            8  u32  bytes of the body
//!  12  4 bytes of zero                    16  u64  number of the request
//! ```
//!
//! The layout is the same in every version of a protocol, so that two programs of different
//! versions can tell each other that they do not understand each other.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};

/// A protocol between two of our programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The first four bytes of its packets.
    pub magic: u32,
    /// Its version.
    pub version: u16,
    /// The length of its longest packet.
    pub packet_bytes_max: usize,
}

/// The protocol of `gpreemptd`: docs/protocol.md.
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

/// What a header says besides that it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which message this is.
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

const _: () = assert!(HEADER_BYTES == 24);

impl Protocol {
    /// The length of its longest body.
    pub const fn body_bytes_max(&self) -> usize {
        self.packet_bytes_max - HEADER_BYTES
    }
}

impl Header {
    /// The header of a packet, and its body.
    ///
    /// # Errors
    /// If the packet is not one of this version of the protocol, or not whole.
    pub fn split<'a>(
        protocol: &Protocol,
        packet: &'a [u8],
    ) -> Result<(Self, &'a [u8]), DecodeError> {
        let (layout, body) = Layout::read_from_prefix(packet)
            .map_err(|_| DecodeError::NoHeader { found: packet.len() })?;
        if layout.magic.get() != protocol.magic {
            return Err(DecodeError::Magic(layout.magic.get()));
        }
        // Before anything that another version may see differently.
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

    /// A packet with this header and that body.
    ///
    /// # Errors
    /// If the body is too long.
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
    let (found, limit) = (body.len(), protocol.body_bytes_max());
    let length = u32::try_from(found).ok().filter(|_| found <= limit);
    length.ok_or(DecodeError::TooLong { found, limit })
}

/// The number of the request in a packet of any version of the daemon's protocol, to answer it that
/// it was not understood; 0 if there is no telling.
pub fn request_of(packet: &[u8]) -> u64 {
    match Layout::read_from_prefix(packet) {
        Ok((layout, _)) if layout.magic.get() == MAGIC => layout.request.get(),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lie_in_a_header_has_its_own_error() {
        let packet = Header { kind: 7, request: 42 }.join(&DAEMON, b"body").unwrap();
        assert_eq!(
            Header::split(&DAEMON, &packet),
            Ok((Header { kind: 7, request: 42 }, &b"body"[..]))
        );
        assert_eq!(Header::split(&DAEMON, &packet[..23]), Err(DecodeError::NoHeader { found: 23 }));
        assert_eq!(
            Header::split(&DAEMON, &packet[..27]),
            Err(DecodeError::Length { said: 4, found: 3 })
        );
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
        let too_long = [0; BODY_BYTES_MAX + 1];
        let too_long_by_one =
            DecodeError::TooLong { found: BODY_BYTES_MAX + 1, limit: BODY_BYTES_MAX };
        assert_eq!(header.join(&DAEMON, &too_long), Err(too_long_by_one));
        let packet = [packet.as_slice(), &[0]].concat();
        assert_eq!(Header::split(&DAEMON, &packet), Err(too_long_by_one));
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
