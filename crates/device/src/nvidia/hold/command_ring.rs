//! A channel of gpreempt in another process's group: its ring, and the commands in it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use crate::hold_pages::{HoldSlot, WORD};
use crate::mapping::SharedMap;

/// Where the parts of a channel are in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingLayout {
    /// The ring indices.
    pub(super) indices: usize,
    pub(super) ring: usize,
    /// The commands that ring entries point to.
    pub(super) commands: usize,
}

/// The channel that waits.
pub(super) const HOLD: RingLayout = RingLayout { indices: 0, ring: 0x1000, commands: 0x2000 };
/// The channel of idle fences.
pub(super) const FENCE: RingLayout = RingLayout { indices: 0x6000, ring: 0x7000, commands: 0x8000 };

/// The offsets of get and put in the indices.
const GET: usize = 0x88;
const PUT: usize = 0x8c;
pub(super) const ENTRIES: u32 = 512;
const COMMAND_SIZE: usize = 128;
const COMMANDS_MAX: u32 = 64;
/// The most commands that may wait to be fetched. More wait only if the group never runs.
const WAITING_MAX: u32 = 32;

// The parts do not overlap, and a command that waits is not overwritten.
const _: () = assert!(HOLD.ring + ENTRIES as usize * 8 <= HOLD.commands);
const _: () = assert!(HOLD.commands + COMMANDS_MAX as usize * COMMAND_SIZE <= WORD);
const _: () = assert!(FENCE.ring + ENTRIES as usize * 8 <= FENCE.commands);
const _: () = assert!(FENCE.indices > WORD + 0x1000 && FENCE.indices + 0x1000 <= FENCE.ring);
const _: () =
    assert!(FENCE.commands + COMMANDS_MAX as usize * COMMAND_SIZE <= crate::hold_pages::SLOT_SIZE);
const _: () = assert!(COMMANDS_MAX > WAITING_MAX);

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

/// The ring of one channel.
#[derive(Debug)]
pub(super) struct CommandRing {
    layout: RingLayout,
    token: u32,
    /// The address of the slot in the group's address space.
    base: u64,
    put: u32,
    count: u32,
}

impl CommandRing {
    pub(super) const fn new(layout: RingLayout, token: u32, base: u64) -> Self {
        Self { layout, token, base, put: 0, count: 0 }
    }

    /// Whether there is room for a command.
    pub(super) fn has_room(&self, slot: &HoldSlot) -> bool {
        let get = slot.load(self.layout.indices + GET);
        self.put.wrapping_sub(get) % ENTRIES < WAITING_MAX
    }

    /// Submits a command, for which there is room.
    pub(super) fn submit(&mut self, slot: &HoldSlot, doorbell: &DoorbellMap, words: &[u32]) {
        debug_assert!(size_of_val(words) <= COMMAND_SIZE);
        self.count = self.count.wrapping_add(1);
        // CAST: far below 2^32.
        let command = (self.count % COMMANDS_MAX) as usize * COMMAND_SIZE + self.layout.commands;
        for (index, word) in words.iter().enumerate() {
            slot.store(command + index * 4, *word);
        }
        let entry = ring_entry(self.base + command as u64, words.len() as u64);
        slot.store_double(self.layout.ring + self.put as usize * 8, entry);
        self.put = (self.put + 1) % ENTRIES;
        slot.store(self.layout.indices + PUT, self.put);
        doorbell.ring(self.token);
    }
}

/// An entry of the ring: the address of a command, and its number of words.
const fn ring_entry(address: u64, words: u64) -> u64 {
    address & !3 | words << 42
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_an_address_and_a_length() {
        assert_eq!(ring_entry(0xe0_0000_2080, 16), 0x0000_40e0_0000_2080);
    }
}
