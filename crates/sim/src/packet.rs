//! What a client puts into a ring: one kernel launch in 64 bytes.
//!
//! ```text
//!   0  u32  magic, so that an empty slot is never taken for a launch
//!   4  u32  kernel: index in the table of loaded programs
//!   8  u32  work-groups          12  u32  waves in each
//!  16  u32  arguments[4]
//!  32  u64  number of the launch in its queue, counted by the client
//!  40  u64  time of the doorbell in nanoseconds: arrival order across queues
//!  48  16 bytes of zero
//! ```

use gpreempt_core::time::Instant;

/// One kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Index in the table of loaded programs.
    pub kernel: u32,
    /// Work-groups.
    pub groups: u32,
    /// Waves in each work-group.
    pub waves: u32,
    /// What the waves find in `s4` to `s7`.
    pub arguments: [u32; 4],
    /// Number of the launch in its queue.
    pub number: u64,
    /// When the doorbell was rung.
    pub rung_at: Instant,
}

/// Bytes of a packet.
pub const PACKET_BYTES: usize = 64;

const MAGIC: u32 = 0x5047_4b31;

impl Packet {
    /// The packet as the ring holds it.
    pub fn encode(&self) -> [u8; PACKET_BYTES] {
        let mut bytes = [0; PACKET_BYTES];
        let [a, b, c, d] = self.arguments;
        let words = [MAGIC, self.kernel, self.groups, self.waves, a, b, c, d];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.rung_at.as_nanos().to_le_bytes());
        bytes
    }

    /// Reads a packet back, unless the bytes are not one.
    pub fn decode(bytes: &[u8; PACKET_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let chunk: Option<&[u8; 4]> = bytes.get(at..).and_then(<[u8]>::first_chunk);
            chunk.map(|chunk| u32::from_le_bytes(*chunk))
        };
        let long = |at: usize| {
            let chunk: Option<&[u8; 8]> = bytes.get(at..).and_then(<[u8]>::first_chunk);
            chunk.map(|chunk| u64::from_le_bytes(*chunk))
        };
        if word(0)? != MAGIC || bytes[48..].iter().any(|&byte| byte != 0) {
            return None;
        }
        Some(Self {
            kernel: word(4)?,
            groups: word(8)?,
            waves: word(12)?,
            arguments: [word(16)?, word(20)?, word(24)?, word(28)?],
            number: long(32)?,
            rung_at: Instant::from_nanos(long(40)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_the_ring_and_garbage_does_not() {
        let packet = Packet {
            kernel: 3,
            groups: 132,
            waves: 2,
            arguments: [4096, 7, 20_000, 8192],
            number: 1 << 40,
            rung_at: Instant::from_nanos(123_456_789),
        };
        let mut bytes = packet.encode();
        assert_eq!(Packet::decode(&bytes), Some(packet));
        bytes[0] ^= 1;
        assert_eq!(Packet::decode(&bytes), None);
        assert_eq!(Packet::decode(&[0; PACKET_BYTES]), None);
    }
}
