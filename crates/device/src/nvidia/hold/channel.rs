//! Our channel in somebody else's group: a ring with orders to wait.

use crate::hold_pages::{HoldSlot, LOADED, WORD};
use crate::nvidia::map::DoorbellMap;

/// Where in the slot the channel's indices are.
const INDICES: usize = 0;
const GET: usize = INDICES + 0x88;
const PUT: usize = INDICES + 0x8c;
/// Where its ring is, and how many entries that has.
pub(super) const RING: usize = 0x1000;
pub(super) const ENTRIES: u32 = 512;
/// Where the orders are: room for so many, so long.
const ORDERS: usize = 0x2000;
const ORDER_SIZE: usize = 128;
const ORDERS_MAX: u32 = 64;
/// So many orders may be waiting to be fetched. More are there only if the group never runs.
const WAITING_MAX: u32 = 32;

// Nothing lies on anything else, and an order that waits is not written over.
const _: () = assert!(RING + ENTRIES as usize * 8 <= ORDERS);
const _: () = assert!(ORDERS + ORDERS_MAX as usize * ORDER_SIZE <= WORD);
const _: () = assert!(ORDERS_MAX > WAITING_MAX);

/// The class of what runs kernels, for the device's part 1.
const SET_OBJECT: u32 = 0x2001_2000;
/// Do nothing, on the same part: the context has to be on the engine for it.
const NO_OPERATION: u32 = 0x2001_2040;
/// Five words about a semaphore: address (low, high), payload (low, high), what to do.
const SEMAPHORE: u32 = 0x2005_0017;
/// Write the payload.
const RELEASE: u32 = 1;
/// Wait until the word has reached the payload, counted around, and let no other group in.
const WAIT_HERE: u32 = 3;

/// The channel, with what it takes to use it.
#[derive(Debug)]
pub struct HoldChannel {
    slot: HoldSlot,
    doorbell: DoorbellMap,
    token: u32,
    /// Where the slot is in the group's address space.
    base: u64,
    compute_class: u32,
    put: u32,
    number: u32,
}

impl HoldChannel {
    pub(super) const fn new(
        slot: HoldSlot,
        doorbell: DoorbellMap,
        token: u32,
        base: u64,
        compute_class: u32,
    ) -> Self {
        Self { slot, doorbell, token, base, compute_class, put: 0, number: 0 }
    }

    /// Begins a hold: calls the context onto the engine, says when it is there, and waits. False if
    /// too many are waiting already.
    pub fn begin(&mut self, now_ns: u64) -> bool {
        let waiting = self.put.wrapping_sub(self.slot.load(GET)) % ENTRIES;
        if waiting >= WAITING_MAX {
            return false;
        }
        self.number = self.number.wrapping_add(1);
        // CAST: both are far below 2^32.
        let order = ORDERS + (self.number % ORDERS_MAX) as usize * ORDER_SIZE;
        let words = order_words(self.compute_class, self.base, self.number);
        for (index, word) in words.iter().enumerate() {
            self.slot.store(order + index * 4, *word);
        }
        let entry = ring_entry(self.base + order as u64, words.len() as u64);
        self.slot.store_wide(RING + self.put as usize * 8, entry);
        // From here on the keeper can end what we begin.
        self.slot.begin(self.number, now_ns);
        self.put = (self.put + 1) % ENTRIES;
        self.slot.store(PUT, self.put);
        self.doorbell.ring(self.token);
        true
    }

    /// Ends the hold.
    pub fn end(&self) {
        self.slot.end();
    }

    /// Whether the device has come to the wait: the context is on the engine.
    pub fn is_loaded(&self) -> bool {
        self.slot.load(LOADED) == self.number
    }

    /// Whether the hold was not ended, by us or by the keeper.
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// Tells the keeper that somebody looks after the hold.
    pub fn beat(&self, now_ns: u64) {
        self.slot.beat(now_ns);
    }

    /// The slot: it may be used again when the channel has been taken out.
    pub fn into_slot(self) -> HoldSlot {
        self.slot.end();
        self.slot
    }
}

/// What the device is told: come, say so, wait.
fn order_words(compute_class: u32, base: u64, number: u32) -> [u32; 16] {
    let [loaded_low, loaded_high] = halves(base + LOADED as u64);
    let [word_low, word_high] = halves(base + WORD as u64);
    [
        SET_OBJECT,
        compute_class,
        NO_OPERATION,
        0,
        SEMAPHORE,
        loaded_low,
        loaded_high,
        number,
        0,
        RELEASE,
        SEMAPHORE,
        word_low,
        word_high,
        number,
        0,
        WAIT_HERE,
    ]
}

/// An entry of the ring: where an order is, and how many words it has.
const fn ring_entry(address: u64, words: u64) -> u64 {
    address & !3 | words << 42
}

fn halves(address: u64) -> [u32; 2] {
    // CAST: the two halves of the address.
    [(address & 0xffff_ffff) as u32, (address >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_calls_says_and_waits() {
        let words = order_words(0xcbc0, 0xe0_0040_0000, 9);
        assert_eq!(words[..4], [0x2001_2000, 0xcbc0, 0x2001_2040, 0]);
        assert_eq!(words[4..10], [0x2005_0017, 0x0040_4040, 0xe0, 9, 0, 1]);
        assert_eq!(words[10..], [0x2005_0017, 0x0040_4000, 0xe0, 9, 0, 3]);
        assert!(size_of_val(&words) <= ORDER_SIZE);
    }

    #[test]
    fn an_entry_has_an_address_and_a_length() {
        assert_eq!(ring_entry(0xe0_0000_2080, 16), 0x0000_40e0_0000_2080);
    }
}
