//! The first 24 bytes of every packet.
//!
//! Their layout is the same in every version of the protocol, for ever, so that any two programs
//! can at least tell each other that they do not understand each other.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};

/// The version of the protocol that is described here.
pub const VERSION: u16 = 1;
/// How a packet begins: `GPRE`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"GPRE");
/// The longest packet.
pub const PACKET_BYTES_MAX: usize = 4096;
/// The length of a header.
pub const HEADER_BYTES: usize = size_of::<Layout>();
/// The longest body.
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

impl Header {
    /// The header of a packet, and its body.
    ///
    /// # Errors
    /// If the packet is not one of this version of the protocol, or not whole.
    pub fn split(packet: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (layout, body) = Layout::read_from_prefix(packet)
            .map_err(|_| DecodeError::NoHeader { found: packet.len() })?;
        if layout.magic.get() != MAGIC {
            return Err(DecodeError::Magic(layout.magic.get()));
        }
        // Before anything that another version may see differently.
        if layout.version.get() != VERSION {
            return Err(DecodeError::Version { theirs: layout.version.get() });
        }
        if body.len() > BODY_BYTES_MAX {
            return Err(DecodeError::TooLong(body.len()));
        }
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
    pub fn join(self, body: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let too_long = DecodeError::TooLong(body.len());
        if body.len() > BODY_BYTES_MAX {
            return Err(too_long);
        }
        let layout = Layout {
            magic: U32::new(MAGIC),
            version: U16::new(VERSION),
            kind: U16::new(self.kind),
            body_bytes: U32::new(u32::try_from(body.len()).map_err(|_| too_long)?),
            reserved: [0; 4],
            request: U64::new(self.request),
        };
        Ok([layout.as_bytes(), body].concat())
    }
}

/// The number of the request in a packet of any version, to answer it that it was not understood;
/// 0 if there is no telling.
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
        let packet = Header { kind: 7, request: 42 }.join(b"body").unwrap();
        assert_eq!(Header::split(&packet), Ok((Header { kind: 7, request: 42 }, &b"body"[..])));
        assert_eq!(Header::split(&packet[..23]), Err(DecodeError::NoHeader { found: 23 }));
        assert_eq!(Header::split(&packet[..27]), Err(DecodeError::Length { said: 4, found: 3 }));
        let with = |at: usize, byte: u8| {
            let mut changed = packet.clone();
            changed[at] = byte;
            Header::split(&changed).unwrap_err()
        };
        assert!(matches!(with(0, b'H'), DecodeError::Magic(_)));
        assert_eq!(with(5, 2), DecodeError::Version { theirs: 0x0201 });
        assert_eq!(with(8, 5), DecodeError::Length { said: 5, found: 4 });
        assert_eq!(with(12, 1), DecodeError::field("reserved", "zero"));
    }

    #[test]
    fn the_longest_body_fits_and_the_next_one_does_not() {
        let header = Header { kind: 1, request: 1 };
        let packet = header.join(&[0; BODY_BYTES_MAX]).unwrap();
        assert_eq!(packet.len(), PACKET_BYTES_MAX);
        assert!(Header::split(&packet).is_ok());
        let too_long = [0; BODY_BYTES_MAX + 1];
        assert_eq!(header.join(&too_long), Err(DecodeError::TooLong(BODY_BYTES_MAX + 1)));
        let packet = [packet.as_slice(), &[0]].concat();
        assert_eq!(Header::split(&packet), Err(DecodeError::TooLong(BODY_BYTES_MAX + 1)));
    }

    #[test]
    fn the_number_of_a_request_can_be_read_in_any_version() {
        let mut packet = Header { kind: 1, request: 77 }.join(b"").unwrap();
        packet[4] = 9;
        assert_eq!(request_of(&packet), 77);
        packet[0] = 0;
        assert_eq!(request_of(&packet), 0);
        assert_eq!(request_of(b"GPRE"), 0);
    }
}
