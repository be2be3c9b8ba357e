//! A ring in memory: bytes, a write index, a read index, a doorbell.
//!
//! The client writes packets and the write index and rings the doorbell; the device reads packets
//! and moves the read index. Nobody else has a method to call here: the scheduler gets a copy of
//! the two indices and nothing more. The one exception is `Ring::empty`, which exists for the
//! papers' design that empties rings, and for nothing else.
//!
//! A ring is memory of the simulation, or somebody else's memory behind a [`RingPage`]. In the
//! second case the client is a process that nobody vouches for, and its write index is a claim.

use std::fmt;

use gpreempt_core::ring::RingView;

use crate::packet::{PACKET_BYTES, Packet};

/// A ring in memory that a client shares with the device, and the device's words in it.
pub trait RingPage: fmt::Debug + Send {
    /// Packets that fit.
    fn capacity(&self) -> u64;

    /// The client's write index, whatever it says. If it is still `seen`, the device will not look
    /// again by itself: the client has to ring the doorbell after its next packet.
    fn put(&self, seen: u64) -> u64;

    /// What is in the slot of the packet with that index.
    fn packet(&self, index: u64) -> [u8; PACKET_BYTES];

    /// The device has fetched that many packets.
    fn fetched(&self, count: u64);

    /// The client may know that that many packets are complete.
    fn completed(&self, count: u64);
}

/// Packets between a client and the device.
#[derive(Debug)]
pub struct Ring {
    slots: Slots,
    write_index: u64,
    read_index: u64,
    /// The write index as of the last doorbell.
    doorbell: u64,
    /// The client's write index made no sense.
    is_bad: bool,
}

#[derive(Debug)]
enum Slots {
    Own(Vec<[u8; PACKET_BYTES]>),
    Mapped(Box<dyn RingPage>),
}

impl Ring {
    /// A ring of `capacity` packets.
    pub fn new(capacity: u32) -> Self {
        let slots = vec![[0; PACKET_BYTES]; capacity.max(1) as usize];
        Self::over(Slots::Own(slots))
    }

    /// A ring in memory of a client.
    pub fn mapped(page: Box<dyn RingPage>) -> Self {
        Self::over(Slots::Mapped(page))
    }

    fn over(slots: Slots) -> Self {
        Self { slots, write_index: 0, read_index: 0, doorbell: 0, is_bad: false }
    }

    /// Whether it is in memory of a client.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.slots, Slots::Mapped(_))
    }

    /// Whether the client's write index made no sense.
    pub(crate) fn is_bad(&self) -> bool {
        self.is_bad
    }

    /// Packets that fit.
    fn capacity(&self) -> u64 {
        match &self.slots {
            Slots::Own(slots) => slots.len() as u64,
            Slots::Mapped(page) => page.capacity(),
        }
    }

    /// Reads the client's write index, where it is in memory of a client.
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

    /// Tells the client that that many packets are complete, where it is not told otherwise.
    pub(crate) fn complete(&self, count: u64) {
        if let Slots::Mapped(page) = &self.slots {
            page.completed(count);
        }
    }

    /// Whether the client has to wait before it can put in more.
    pub fn is_full(&self) -> bool {
        self.write_index - self.read_index >= self.capacity()
    }

    /// The client puts a packet in and rings the doorbell.
    ///
    /// # Panics
    /// If the ring is full: the client has to look first. Or if it is in memory of a client, who
    /// writes there without asking.
    pub fn submit(&mut self, packet: &Packet) {
        assert!(!self.is_full(), "a client does not overwrite what was not fetched");
        let slot = self.slot_of(self.write_index);
        let Slots::Own(slots) = &mut self.slots else {
            unreachable!("nobody else writes into a client's memory");
        };
        slots[slot] = packet.encode();
        self.write_index += 1;
        self.doorbell = self.write_index;
    }

    /// The device takes the next packet, if the doorbell announced one.
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

    /// The packet the device would take next.
    pub(crate) fn peek(&self) -> Option<Packet> {
        let announced = self.read_index != self.doorbell;
        announced.then(|| Packet::decode(&self.next_bytes())).flatten()
    }

    /// Packets announced and not fetched.
    pub fn pending(&self) -> u64 {
        self.doorbell - self.read_index
    }

    /// What can be seen from outside.
    pub fn view(&self, running: Option<bool>) -> RingView {
        RingView { put: self.doorbell, get: self.read_index, running }
    }

    /// Forgets everything that was not fetched, as the original GPreempt does. Returns how much.
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

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::time::Instant;

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
}
