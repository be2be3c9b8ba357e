//! Ring indices against a model that never wraps.

use std::collections::VecDeque;

use gpreempt_core::ring::{RingView, extend};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_index_read_often_enough_is_never_lost(
        modulus in prop_oneof![1..5u64, Just(1 << 10), Just(1 << 32), 1..u64::from(u32::MAX)],
        start in 0..u64::from(u32::MAX),
        steps in proptest::collection::vec(any::<u64>(), 0..50),
    ) {
        let mut truth = start;
        let mut read = start;
        for step in steps {
            // Between two readings a ring moves by less than one round, or nobody could tell.
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
