//! Pieces of a snapshot, whose JSON text is longer than a packet.

use crate::codec::{Field, Reader};
use crate::message::{BODY_BYTES_MAX, DecodeError};

/// The longest snapshot.
pub const SNAPSHOT_BYTES_MAX: usize = 8 << 20;
/// The longest piece.
pub const CHUNK_BYTES_MAX: usize = BODY_BYTES_MAX - Chunk::BYTES;

/// A piece of a snapshot.
///
/// # Invariants
/// It fits into a packet, lies within the snapshot, and is empty only if the snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    offset: u32,
    total: u32,
    bytes: Vec<u8>,
}

impl Chunk {
    /// The piece of `snapshot` that begins at `offset`. None if the offset is beyond the end, or
    /// the snapshot is too long.
    pub fn cut(snapshot: &[u8], offset: usize) -> Option<Self> {
        let end = snapshot.len().min(offset.checked_add(CHUNK_BYTES_MAX)?);
        let bytes = snapshot.get(offset..end)?.to_vec();
        let total = u32::try_from(snapshot.len()).ok()?;
        Self::new(u32::try_from(offset).ok()?, total, bytes).ok()
    }

    fn new(offset: u32, total: u32, bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let length = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        if length(total) > SNAPSHOT_BYTES_MAX {
            return Err(DecodeError::field("total", "at most 8 MiB"));
        }
        if bytes.len() > CHUNK_BYTES_MAX {
            return Err(DecodeError::TooLong { found: bytes.len(), limit: CHUNK_BYTES_MAX });
        }
        let is_inside = length(offset).saturating_add(bytes.len()) <= length(total);
        if !is_inside || (bytes.is_empty() && total != 0) {
            return Err(DecodeError::field("chunk", "a piece of its snapshot, and not empty"));
        }
        Ok(Self { offset, total, bytes })
    }

    /// The offset of the piece in the snapshot.
    pub const fn offset(&self) -> u32 {
        self.offset
    }

    /// The length of the snapshot.
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// The bytes of the piece.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Field for Chunk {
    const BYTES: usize = 2 * u32::BYTES;
    const IS_OPEN: bool = true;

    fn put(&self, body: &mut Vec<u8>) {
        self.offset.put(body);
        self.total.put(body);
        body.extend_from_slice(&self.bytes);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let offset = u32::take("offset", reader)?;
        let total = u32::take("total", reader)?;
        Self::new(offset, total, reader.rest().to_vec())
    }
}

/// Joins the pieces of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Adds the next piece; returns the snapshot if that was the last. An error if it is not the
    /// next piece, or the snapshot is not UTF-8.
    pub fn push(&mut self, chunk: &Chunk) -> Result<Option<String>, DecodeError> {
        if usize::try_from(chunk.offset) != Ok(self.bytes.len()) {
            return Err(DecodeError::field("offset", "where the piece before ended"));
        }
        self.bytes.extend_from_slice(&chunk.bytes);
        if u32::try_from(self.bytes.len()) != Ok(chunk.total) {
            return Ok(None);
        }
        let text = String::from_utf8(std::mem::take(&mut self.bytes));
        text.map(Some).map_err(|_| DecodeError::field("snapshot", "UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(snapshot: &[u8]) -> Vec<Chunk> {
        let offsets = (0..=snapshot.len()).step_by(CHUNK_BYTES_MAX);
        offsets.filter_map(|offset| Chunk::cut(snapshot, offset)).collect()
    }

    #[test]
    fn pieces_are_joined_to_the_snapshot() {
        for length in [0, 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 3 * CHUNK_BYTES_MAX] {
            let snapshot = "x".repeat(length);
            let pieces = pieces(snapshot.as_bytes());
            assert_eq!(pieces.len(), length.div_ceil(CHUNK_BYTES_MAX).max(1));
            let mut assembly = Assembly::default();
            let (last, others) = pieces.split_last().unwrap();
            assert!(others.iter().all(|piece| assembly.push(piece) == Ok(None)));
            assert_eq!(assembly.push(last), Ok(Some(snapshot)));
        }
    }

    #[test]
    fn pieces_out_of_order_and_snapshots_without_end_are_refused() {
        let pieces = pieces(&[b'x'; 2 * CHUNK_BYTES_MAX]);
        let wrong = Assembly::default().push(&pieces[1]);
        assert_eq!(wrong, Err(DecodeError::field("offset", "where the piece before ended")));
        assert_eq!(Chunk::cut(&vec![b'x'; SNAPSHOT_BYTES_MAX + 1], 0), None);
        let huge = Chunk::new(0, u32::MAX, vec![0]);
        assert_eq!(huge, Err(DecodeError::field("total", "at most 8 MiB")));
        // Offset and length would wrap around if they were added in 32 bits.
        assert!(Chunk::new(u32::MAX, 8, vec![0; 8]).is_err());
    }
}
