use super::*;

fn word(get: u32, put: u32) -> u64 {
    u64::from(put) << 32 | u64::from(get)
}

#[test]
fn rings_that_do_not_move_are_read_now_and_then_and_always_if_none_has_moved() {
    let pace = |cold_every| Pace { hot_readings: 1, cold_reads: 3, cold_every };
    let reads = |pace: Pace, has_moved| [4, 5, 6].map(|at| pace.cold_reads_at(at, has_moved));
    assert_eq!(reads(pace(1), true), [3, 3, 3]);
    assert_eq!(reads(pace(2), true), [3, 0, 3]);
    assert_eq!(reads(pace(2), false), [3, 3, 3]);
}

#[test]
fn memory_that_holds_something_else_is_not_taken_for_rings() {
    let at = |index: usize| FIRST + index * STRIDE + 0x88;
    let plausible = |words: &[u64]| {
        let load = |offset| (0..words.len()).find(|&i| at(i) == offset).map(|i| words[i]);
        is_plausible(&load, 0x88, 3)
    };
    assert!(plausible(&[word(3, 3), word(0, 0), word(1023, 5)]));
    assert!(!plausible(&[word(0, 0), word(0, 0), word(0, 0)]));
    assert!(!plausible(&[word(3, 3), word(0, 1024), word(0, 0)]));
    assert!(!plausible(&[u64::MAX, word(1, 1), word(1, 1)]));
    assert!(!plausible(&[word(3, 3), word(0, 0)]));
}

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
