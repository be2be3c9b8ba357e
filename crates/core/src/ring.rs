//! Readings of rings: two indices that only grow.
//!
//! The client moves `put`, the device moves `get`; gpreempt reads both and writes neither. Hardware
//! shows them in 32 bits, or modulo the number of entries; [`extend`] restores the full index, so
//! that no other code has to handle wrapping.

/// One reading of one ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingView {
    /// Packets submitted since the ring was created.
    pub put: u64,
    /// Packets fetched by the device since the ring was created.
    pub get: u64,
    /// Whether fetched work is still running, where the device reports it. Most do not:
    /// `get == put` means fetched, not finished.
    pub running: Option<bool>,
}

impl RingView {
    /// Packets submitted and not fetched. A reading torn by a concurrent update may show `get`
    /// ahead of `put`, which counts as none.
    pub const fn pending(self) -> u64 {
        self.put.saturating_sub(self.get)
    }

    /// Whether there is certainly work.
    pub fn has_work(self) -> bool {
        self.pending() > 0 || self.running == Some(true)
    }

    /// Whether all work is certainly finished.
    pub fn is_done(self) -> bool {
        self.pending() == 0 && self.running == Some(false)
    }
}

/// The full index of a hardware index that counts modulo `modulus`, given the full index read
/// before: the smallest one that is not less than `previous`.
///
/// # Panics
/// If `modulus` is zero.
pub const fn extend(previous: u64, shown: u64, modulus: u64) -> u64 {
    assert!(modulus > 0, "a ring has at least one entry");
    let shown = shown % modulus;
    let step = (shown + modulus - previous % modulus) % modulus;
    previous.saturating_add(step)
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_indices_mean_done_only_if_the_device_reports_it() {
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

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn an_index_read_often_enough_is_never_lost(
            modulus in prop_oneof![1..5u64, Just(1 << 10), Just(1 << 32), 1..u64::from(u32::MAX)],
            start in 0..u64::from(u32::MAX),
            steps in proptest::collection::vec(any::<u64>(), 0..50),
        ) {
            let mut truth = start;
            let mut read = start;
            for step in steps {
                // Between two readings a ring moves by less than one round, or the round would be
                // lost.
                truth += step % modulus;
                read = extend(read, truth % modulus, modulus);
                prop_assert_eq!(read, truth);
            }
        }

        #[test]
        fn an_index_never_moves_back_nor_by_a_whole_round(
            previous in 0..u64::MAX / 2,
            shown in 0..u64::MAX / 2,
            modulus in 1..u64::MAX / 2,
        ) {
            let next = extend(previous, shown, modulus);
            prop_assert!(next >= previous && next - previous < modulus);
            prop_assert_eq!(next % modulus, shown % modulus);
        }

        #[test]
        fn a_ring_of_packets_shows_its_length(
            entries_log2 in 1..8u32,
            steps in proptest::collection::vec((any::<bool>(), 1..9usize), 0..200),
        ) {
            let entries = 1usize << entries_log2;
            let modulus = 1u64 << entries_log2;
            let (mut packets, mut put, mut get) = (VecDeque::new(), 0u64, 0u64);
            let mut view = RingView::default();
            for (submit, count) in steps {
                if submit {
                    // A ring that is full would look empty, so clients leave one entry free.
                    for _ in 0..count.min(entries - 1 - packets.len()) {
                        packets.push_back(put);
                        put += 1;
                    }
                } else {
                    for _ in 0..count.min(packets.len()) {
                        prop_assert_eq!(packets.pop_front(), Some(get));
                        get += 1;
                    }
                }
                view.put = extend(view.put, put % modulus, modulus);
                view.get = extend(view.get, get % modulus, modulus);
                prop_assert_eq!(view.pending(), u64::try_from(packets.len()).unwrap());
                prop_assert_eq!(view.has_work(), !packets.is_empty());
            }
        }
    }
}
