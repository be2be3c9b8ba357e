//! gpreempt's channels in another process's group: one that waits, and one that tells when the
//! group's kernels have finished.

use super::command_ring::{CommandRing, DoorbellMap, FENCE, HOLD};
use crate::hold_pages::{FENCED, HoldSlot, LOADED, PROBED, WORD};

/// Sets the class of the engine object, for subchannel 1.
const SET_OBJECT: u32 = 0x2001_2000;
/// No operation on the same subchannel: the context has to be on the engine for it.
const NO_OPERATION: u32 = 0x2001_2040;
/// Five words of a semaphore: address (low, high), payload (low, high), operation.
const SEMAPHORE: u32 = 0x2005_0017;
/// Writes the payload.
const RELEASE: u32 = 1;
/// Writes the payload when the context's kernels have finished (`SEM_EXECUTE_RELEASE_WFI`).
const RELEASE_WHEN_IDLE: u32 = RELEASE | 1 << 20;
/// Waits until the word has reached the payload, modulo 2^32, without switching to another group.
const WAIT_HERE: u32 = 3;

#[derive(Debug)]
pub struct HoldChannel {
    slot: HoldSlot,
    doorbell: DoorbellMap,
    ring: CommandRing,
    /// The address of the slot in the group's address space.
    base: u64,
    compute_class: u32,
    number: u32,
    fence: Option<FenceChannel>,
    probe: u32,
}

/// The second channel: the hold's own is blocked while it waits.
#[derive(Debug)]
struct FenceChannel {
    ring: CommandRing,
    number: u32,
}

impl HoldChannel {
    /// The channels with these doorbell tokens: that of the hold, and that of idle fences if there
    /// is one.
    pub(super) fn new(
        slot: HoldSlot,
        doorbell: DoorbellMap,
        (token, fence_token): (u32, Option<u32>),
        base: u64,
        compute_class: u32,
    ) -> Self {
        let ring = CommandRing::new(HOLD, token, base);
        let fence = fence_token
            .map(|token| FenceChannel { ring: CommandRing::new(FENCE, token, base), number: 0 });
        Self { slot, doorbell, ring, base, compute_class, number: 0, fence, probe: 0 }
    }

    /// Begins a hold: the device switches to the context, reports it, and waits. False if too many
    /// commands wait already.
    pub fn begin(&mut self, now_ns: u64) -> bool {
        if !self.ring.has_room(&self.slot) {
            return false;
        }
        self.number = self.number.wrapping_add(1);
        // From here on the keeper can end the hold.
        self.slot.begin(self.number, now_ns);
        let words = command_words(self.compute_class, self.base, self.number);
        self.ring.submit(&self.slot, &self.doorbell, &words);
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

    pub fn has_fence(&self) -> bool {
        self.fence.is_some()
    }

    /// Asks the device to report when the context's kernels have finished. The context should be on
    /// the engine: otherwise the device switches to it. False if it cannot be asked.
    pub fn place_fence(&mut self) -> bool {
        let Some(fence) = &mut self.fence else { return false };
        if !fence.ring.has_room(&self.slot) {
            return false;
        }
        fence.number = fence.number.wrapping_add(1);
        let words = fence_words(self.base, fence.number);
        fence.ring.submit(&self.slot, &self.doorbell, &words);
        true
    }

    /// Whether the device has answered the last question.
    pub fn has_fence_answered(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| self.slot.load(FENCED) == fence.number)
    }

    /// Asks the device to report when the context is on the engine, which it should have work for:
    /// otherwise the device switches to it. False if it cannot be asked.
    pub fn place_probe(&mut self) -> bool {
        // During a hold its own channel waits, and no fence is placed.
        let ring = match &mut self.fence {
            Some(fence) if self.slot.is_held() => &mut fence.ring,
            Some(_) | None if self.slot.is_held() => return false,
            Some(_) | None => &mut self.ring,
        };
        if !ring.has_room(&self.slot) {
            return false;
        }
        self.probe = self.probe.wrapping_add(1);
        let words = switch_words(self.compute_class, self.base + PROBED as u64, self.probe);
        ring.submit(&self.slot, &self.doorbell, &words);
        true
    }

    /// Whether the context was on the engine since the last probe was placed.
    pub fn has_probe_answered(&self) -> bool {
        self.slot.load(PROBED) == self.probe
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
    let mut words = [0; 16];
    words[..10].copy_from_slice(&switch_words(compute_class, base + LOADED as u64, number));
    let [low, high] = halves(base + WORD as u64);
    words[10..].copy_from_slice(&[SEMAPHORE, low, high, number, 0, WAIT_HERE]);
    words
}

/// The command: switch to the context, and report it at that address.
fn switch_words(compute_class: u32, address: u64, number: u32) -> [u32; 10] {
    let [low, high] = halves(address);
    [SET_OBJECT, compute_class, NO_OPERATION, 0, SEMAPHORE, low, high, number, 0, RELEASE]
}

/// The command: report when everything has finished.
fn fence_words(base: u64, number: u32) -> [u32; 6] {
    let [low, high] = halves(base + FENCED as u64);
    [SEMAPHORE, low, high, number, 0, RELEASE_WHEN_IDLE]
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
    }

    #[test]
    fn a_probe_switches_and_reports() {
        let words = switch_words(0xcbc0, 0xe0_0040_0000 + PROBED as u64, 5);
        assert_eq!(words[..4], command_words(0xcbc0, 0, 0)[..4]);
        assert_eq!(words[4..], [0x2005_0017, 0x0040_40c0, 0xe0, 5, 0, 1]);
    }

    #[test]
    fn a_fence_waits_for_idle_and_reports() {
        let words = fence_words(0xe0_0040_0000, 7);
        assert_eq!(words, [0x2005_0017, 0x0040_4080, 0xe0, 7, 0, 0x10_0001]);
    }
}
