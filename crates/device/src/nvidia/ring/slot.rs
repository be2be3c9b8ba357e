//! One ring, with its indices made whole.

use gpreempt_core::ring::extend;

use super::ENTRIES;

/// What is known of one ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    indices: Option<(u64, u64)>,
    moved_in: Option<u32>,
}

impl Slot {
    /// Takes a reading in. Says whether something was submitted since the one before; nothing if
    /// there was none before.
    pub(super) fn take(&mut self, reading: u32, get: u32, put: u32) -> Option<bool> {
        let modulus = u64::from(ENTRIES);
        let Some((old_get, old_put)) = self.indices else {
            // What was submitted before we came counts as one round: put is never behind get.
            let put_whole = if put < get { u64::from(put) + modulus } else { u64::from(put) };
            self.indices = Some((u64::from(get), put_whole));
            return Some(false);
        };
        let put_whole = extend(old_put, u64::from(put), modulus);
        let get_whole = extend(old_get, u64::from(get), modulus);
        // The device never fetches what was not submitted: a get ahead of put means that the
        // program went round its ring between two readings.
        let put_whole = if get_whole > put_whole { put_whole + modulus } else { put_whole };
        // And no ring holds more than its entries: then the device went round as well.
        let get_whole =
            if put_whole - get_whole >= modulus { get_whole + modulus } else { get_whole };
        let moved = put_whole != old_put || get_whole != old_get;
        if moved {
            self.moved_in = Some(reading);
        }
        self.indices = Some((get_whole, put_whole));
        Some(put_whole != old_put)
    }

    pub(super) fn put(&self) -> u64 {
        self.indices.map_or(0, |(_, put)| put)
    }

    pub(super) fn get(&self) -> u64 {
        self.indices.map_or(0, |(get, _)| get)
    }

    /// How many readings ago it moved, if it ever did.
    pub(super) fn age(&self, reading: u32) -> Option<u32> {
        self.moved_in.map(|moved| reading.wrapping_sub(moved))
    }

    pub(super) fn is_hot(&self, reading: u32, readings: u32) -> bool {
        self.age(reading).is_some_and(|age| age <= readings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_grow_for_ever() {
        let mut slot = Slot::default();
        assert_eq!(slot.take(1, 1020, 1022), Some(false));
        assert_eq!(slot.take(2, 1022, 3), Some(true));
        assert_eq!((slot.get(), slot.put()), (1022, 1027));
        assert_eq!(slot.take(3, 3, 3), Some(false));
        assert_eq!((slot.get(), slot.put()), (1027, 1027));
        assert_eq!(slot.age(5), Some(2));
    }

    #[test]
    fn a_ring_that_was_wrapped_when_we_came_has_pending_work() {
        let mut slot = Slot::default();
        slot.take(1, 1000, 10);
        assert_eq!(slot.put() - slot.get(), 34);
    }

    #[test]
    fn put_is_never_behind_get() {
        let mut slot = Slot::default();
        slot.take(1, 5, 10);
        // A whole round of submissions between two readings.
        slot.take(2, 600, 10);
        assert_eq!((slot.get(), slot.put()), (600, 1034));
    }

    #[test]
    fn a_ring_never_holds_more_than_its_entries() {
        let mut slot = Slot::default();
        slot.take(1, 0, 100);
        // A thousand submitted and 1090 fetched between two readings.
        slot.take(2, (1090 % 1024) as u32, (1100 % 1024) as u32);
        assert_eq!(slot.put() - slot.get(), 10);
    }

    #[test]
    fn what_stands_still_cools_down() {
        let mut slot = Slot::default();
        assert!(!slot.is_hot(1, 400));
        slot.take(1, 0, 0);
        slot.take(2, 0, 1);
        assert!(slot.is_hot(402, 400) && !slot.is_hot(403, 400));
    }
}
