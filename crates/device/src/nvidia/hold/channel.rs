//! gpreempt's channel in another process's group: a ring of commands that wait.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use crate::hold_pages::{HoldSlot, LOADED, WORD};
use crate::mapping::SharedMap;

/// The offset of the channel's ring indices in the slot.
const INDICES: usize = 0;
const GET: usize = INDICES + 0x88;
const PUT: usize = INDICES + 0x8c;
/// The offset of its ring.
pub(super) const RING: usize = 0x1000;
pub(super) const ENTRIES: u32 = 512;
/// The offset of the commands that ring entries point to.
const COMMANDS: usize = 0x2000;
const COMMAND_SIZE: usize = 128;
const COMMANDS_MAX: u32 = 64;
/// The most commands that may wait to be fetched. More wait only if the group never runs.
const WAITING_MAX: u32 = 32;

// The parts do not overlap, and a command that waits is not overwritten.
const _: () = assert!(RING + ENTRIES as usize * 8 <= COMMANDS);
const _: () = assert!(COMMANDS + COMMANDS_MAX as usize * COMMAND_SIZE <= WORD);
const _: () = assert!(COMMANDS_MAX > WAITING_MAX);

/// Sets the class of the engine object, for subchannel 1.
const SET_OBJECT: u32 = 0x2001_2000;
/// No operation on the same subchannel: the context has to be on the engine for it.
const NO_OPERATION: u32 = 0x2001_2040;
/// Five words of a semaphore: address (low, high), payload (low, high), operation.
const SEMAPHORE: u32 = 0x2005_0017;
/// Writes the payload.
const RELEASE: u32 = 1;
/// Waits until the word has reached the payload, modulo 2^32, without switching to another group.
const WAIT_HERE: u32 = 3;

/// The page of a device through which its channels are notified of work.
#[derive(Debug)]
pub struct DoorbellMap(SharedMap);

impl DoorbellMap {
    pub const LENGTH: usize = 0x1_0000;
    /// The offset at which a channel's token is written.
    const BELL: usize = 0x90;

    /// Maps the beginning of a file that was prepared for it.
    pub fn new(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        SharedMap::new(file, Self::LENGTH).map(Self)
    }

    /// Notifies a channel of work. All stores before it are visible before it.
    fn ring(&self, token: u32) {
        fence(Ordering::SeqCst);
        self.0.store_register(Self::BELL, token);
    }
}

#[derive(Debug)]
pub struct HoldChannel {
    slot: HoldSlot,
    doorbell: DoorbellMap,
    token: u32,
    /// The address of the slot in the group's address space.
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

    /// Begins a hold: the device switches to the context, reports it, and waits. False if too many
    /// commands wait already.
    pub fn begin(&mut self, now_ns: u64) -> bool {
        let waiting = self.put.wrapping_sub(self.slot.load(GET)) % ENTRIES;
        if waiting >= WAITING_MAX {
            return false;
        }
        self.number = self.number.wrapping_add(1);
        // CAST: both are far below 2^32.
        let command = COMMANDS + (self.number % COMMANDS_MAX) as usize * COMMAND_SIZE;
        let words = command_words(self.compute_class, self.base, self.number);
        for (index, word) in words.iter().enumerate() {
            self.slot.store(command + index * 4, *word);
        }
        let entry = ring_entry(self.base + command as u64, words.len() as u64);
        self.slot.store_double(RING + self.put as usize * 8, entry);
        // From here on the keeper can end the hold.
        self.slot.begin(self.number, now_ns);
        self.put = (self.put + 1) % ENTRIES;
        self.slot.store(PUT, self.put);
        self.doorbell.ring(self.token);
        true
    }

    pub fn end(&self) {
        self.slot.end();
    }

    /// Whether the device has reached the wait: the context is on the engine.
    pub fn is_loaded(&self) -> bool {
        self.slot.load(LOADED) == self.number
    }

    /// Whether neither this process nor the keeper has ended the hold.
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// Tells the keeper that this process still watches the hold.
    pub fn beat(&self, now_ns: u64) {
        self.slot.beat(now_ns);
    }

    /// The slot: it may be reused when the channel has been removed.
    pub fn into_slot(self) -> HoldSlot {
        self.slot.end();
        self.slot
    }
}

/// The command: switch to the context, report it, wait.
fn command_words(compute_class: u32, base: u64, number: u32) -> [u32; 16] {
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

/// An entry of the ring: the address of a command, and its number of words.
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
    fn a_command_switches_reports_and_waits() {
        let words = command_words(0xcbc0, 0xe0_0040_0000, 9);
        assert_eq!(words[..4], [0x2001_2000, 0xcbc0, 0x2001_2040, 0]);
        assert_eq!(words[4..10], [0x2005_0017, 0x0040_4040, 0xe0, 9, 0, 1]);
        assert_eq!(words[10..], [0x2005_0017, 0x0040_4000, 0xe0, 9, 0, 3]);
        assert!(size_of_val(&words) <= COMMAND_SIZE);
    }

    #[test]
    fn an_entry_has_an_address_and_a_length() {
        assert_eq!(ring_entry(0xe0_0000_2080, 16), 0x0000_40e0_0000_2080);
    }
}
