//! What a ring shows from the outside: two indices that only ever grow.
//!
//! The client moves `put`, the device moves `get`; we read both and write neither. Hardware
//! shows them in 32 bits, or modulo the number of entries; [`extend`] makes them whole again, so
//! that the rest of the scheduler never thinks about wrapping.

/// One reading of one ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingView {
    /// Packets the client has put in since the beginning.
    pub put: u64,
    /// Packets the device has fetched since the beginning.
    pub get: u64,
    /// Whether fetched work is still on the device, where the device can tell. Most cannot:
    /// `get == put` means fetched, not finished.
    pub running: Option<bool>,
}

impl RingView {
    /// Packets that were put in and not fetched. A reading torn by a concurrent update may show
    /// `get` ahead of `put`; that counts as nothing pending.
    pub const fn pending(self) -> u64 {
        self.put.saturating_sub(self.get)
    }

    /// Whether there is certainly something to do.
    pub fn has_work(self) -> bool {
        self.pending() > 0 || self.running == Some(true)
    }

    /// Whether there is certainly nothing to do.
    pub fn is_done(self) -> bool {
        self.pending() == 0 && self.running == Some(false)
    }
}

/// The full index behind a hardware index that counts modulo `modulus`, given the full index
/// read before. It is the smallest one that is not behind `previous`.
///
/// # Panics
/// If `modulus` is zero: such a ring has no entries.
pub const fn extend(previous: u64, shown: u64, modulus: u64) -> u64 {
    assert!(modulus > 0, "a ring has at least one entry");
    let shown = shown % modulus;
    let step = (shown + modulus - previous % modulus) % modulus;
    previous.saturating_add(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_indices_are_only_done_when_the_device_says_so() {
        let fetched = RingView { put: 7, get: 7, running: None };
        assert!(!fetched.has_work() && !fetched.is_done());
        assert!(RingView { running: Some(true), ..fetched }.has_work());
        assert!(RingView { running: Some(false), ..fetched }.is_done());
        assert!(RingView { put: 8, ..fetched }.has_work());
    }

    #[test]
    fn a_torn_reading_is_not_a_huge_backlog() {
        assert_eq!(RingView { put: 3, get: 4, running: None }.pending(), 0);
    }

    #[test]
    fn indices_are_extended_across_the_wrap() {
        assert_eq!(extend(1_020, 4, 1_024), 1_028);
        assert_eq!(extend(1_028, 4, 1_024), 1_028);
        assert_eq!(extend(u64::from(u32::MAX), 0, 1 << 32), 1 << 32);
        assert_eq!(extend(0, 0, 1), 0);
    }
}
