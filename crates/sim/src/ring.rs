//! A ring in memory: bytes, a write index, a read index, a doorbell.
//!
//! The client writes packets and the write index and rings the doorbell; the device reads packets
//! and moves the read index. The scheduler gets a copy of the two indices. Only the reset design
//! empties rings.
//!
//! A ring is in memory of the simulation, or in memory of an external client behind a [`RingPage`].
//! An external client is not trusted: its write index is checked.
//!
//! A packet is one kernel launch in 64 bytes:
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

use std::fmt;

use gpreempt_core::busy_periods::BusyTime;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::{Duration, Instant};

/// Ring memory that is shared with a client.
pub trait RingPage: fmt::Debug + Send {
    /// In packets.
    fn capacity(&self) -> u64;

    /// The client's write index, unchecked. If it is still `seen`, the device stops reading it, and
    /// the client has to ring the doorbell after its next packet.
    fn put(&self, seen: u64) -> u64;

    /// The bytes of the packet with that index.
    fn packet(&self, index: u64) -> [u8; PACKET_BYTES];

    /// Publishes how many packets the device has fetched.
    fn fetched(&self, count: u64);

    /// Publishes how many packets are complete, that long after the last doorbell.
    fn completed(&self, count: u64, latency: Duration);

    /// Adds to the length of the queue's busy periods.
    fn measured(&self, time: BusyTime);
}

#[derive(Debug)]
pub struct Ring {
    slots: Slots,
    write_index: u64,
    read_index: u64,
    /// The write index as of the last doorbell.
    doorbell: u64,
    /// The client's write index was invalid.
    is_bad: bool,
}

#[derive(Debug)]
enum Slots {
    Own(Vec<[u8; PACKET_BYTES]>),
    Mapped(Box<dyn RingPage>),
}

impl Ring {
    pub fn new(capacity: u32) -> Self {
        let slots = vec![[0; PACKET_BYTES]; capacity.max(1) as usize];
        Self::over(Slots::Own(slots))
    }

    pub fn mapped(page: Box<dyn RingPage>) -> Self {
        Self::over(Slots::Mapped(page))
    }

    fn over(slots: Slots) -> Self {
        Self { slots, write_index: 0, read_index: 0, doorbell: 0, is_bad: false }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.slots, Slots::Mapped(_))
    }

    pub(crate) fn is_bad(&self) -> bool {
        self.is_bad
    }

    /// In packets.
    fn capacity(&self) -> u64 {
        match &self.slots {
            Slots::Own(slots) => slots.len() as u64,
            Slots::Mapped(page) => page.capacity(),
        }
    }

    /// Reads the write index of an external client.
    pub(crate) fn look(&mut self) {
        let Slots::Mapped(page) = &self.slots else { return };
        let put = page.put(self.doorbell);
        let room = page.capacity() - (self.doorbell - self.read_index).min(page.capacity());
        if put.wrapping_sub(self.doorbell) > room {
            self.is_bad = true;
        } else {
            self.write_index = put;
            self.doorbell = put;
        }
    }

    /// Publishes to an external client how many packets are complete, `latency` after its last
    /// doorbell.
    pub(crate) fn complete(&self, count: u64, latency: Duration) {
        if let Slots::Mapped(page) = &self.slots {
            page.completed(count, latency);
        }
    }

    /// Publishes to an external client how long the queue was busy. False for other rings.
    pub(crate) fn measured(&self, time: BusyTime) -> bool {
        let Slots::Mapped(page) = &self.slots else { return false };
        page.measured(time);
        true
    }

    pub fn is_full(&self) -> bool {
        self.write_index - self.read_index >= self.capacity()
    }

    /// Writes a packet and rings the doorbell, as the client.
    ///
    /// # Panics
    /// If the ring is full, or belongs to an external client.
    pub fn submit(&mut self, packet: &Packet) {
        assert!(!self.is_full(), "a client does not overwrite what was not fetched");
        let slot = self.slot_of(self.write_index);
        let Slots::Own(slots) = &mut self.slots else {
            unreachable!("only the client writes into its memory");
        };
        slots[slot] = packet.encode();
        self.write_index += 1;
        self.doorbell = self.write_index;
    }

    /// Fetches the next packet, if there is one.
    pub fn fetch(&mut self) -> Option<[u8; PACKET_BYTES]> {
        if self.read_index == self.doorbell {
            self.look();
        }
        if self.read_index == self.doorbell || self.is_bad {
            return None;
        }
        let bytes = self.next_bytes();
        self.read_index += 1;
        if let Slots::Mapped(page) = &self.slots {
            page.fetched(self.read_index);
        }
        Some(bytes)
    }

    fn next_bytes(&self) -> [u8; PACKET_BYTES] {
        match &self.slots {
            Slots::Own(slots) => slots[self.slot_of(self.read_index)],
            Slots::Mapped(page) => page.packet(self.read_index),
        }
    }

    pub(crate) fn peek(&self) -> Option<Packet> {
        let announced = self.read_index != self.doorbell;
        announced.then(|| Packet::decode(&self.next_bytes())).flatten()
    }

    pub fn pending(&self) -> u64 {
        self.doorbell - self.read_index
    }

    /// The reading of the ring.
    pub fn view(&self, running: Option<bool>) -> RingView {
        RingView { put: self.doorbell, get: self.read_index, running }
    }

    /// Discards unfetched packets, as the reset design does. Returns how many.
    pub(crate) fn empty(&mut self) -> u64 {
        let pending = self.pending();
        self.write_index = self.read_index;
        self.doorbell = self.read_index;
        pending
    }

    fn slot_of(&self, index: u64) -> usize {
        let length = self.capacity();
        // PANIC: a remainder of the length, which is a usize.
        usize::try_from(index % length).expect("below the length")
    }
}

/// One kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub kernel: u32,
    pub groups: u32,
    /// Per work-group.
    pub waves: u32,
    /// In `s4` to `s7` of the waves.
    pub arguments: [u32; 4],
    pub number: u64,
    pub rung_at: Instant,
}

pub const PACKET_BYTES: usize = 64;

const MAGIC: u32 = 0x5047_4b31;

impl Packet {
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

    /// None if the bytes are no packet.
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
    use gpreempt_core::time::Instant;

    use super::*;

    fn packet(number: u64) -> Packet {
        let arguments = [0; 4];
        Packet { kernel: 0, groups: 1, waves: 1, arguments, number, rung_at: Instant::ZERO }
    }

    #[test]
    fn packets_come_out_in_order_across_the_wrap() {
        let mut ring = Ring::new(4);
        for number in 0..11 {
            ring.submit(&packet(number));
            assert_eq!(ring.pending(), 1);
            let bytes = ring.fetch().unwrap();
            assert_eq!(Packet::decode(&bytes), Some(packet(number)));
        }
        assert_eq!(ring.fetch(), None);
        assert_eq!(ring.view(None), RingView { put: 11, get: 11, running: None });
    }

    #[test]
    fn a_full_ring_says_so_and_emptying_forgets_what_was_not_fetched() {
        let mut ring = Ring::new(2);
        ring.submit(&packet(0));
        ring.submit(&packet(1));
        assert!(ring.is_full());
        ring.fetch();
        assert_eq!(ring.empty(), 1);
        assert_eq!((ring.pending(), ring.fetch()), (0, None));
    }

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
