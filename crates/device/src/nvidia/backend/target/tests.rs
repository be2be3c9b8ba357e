//! Whether a context whose rings look empty still runs something.

use super::*;

const RING: RingView = RingView { put: 7, get: 7, running: None };

fn counts(interrupted: u32, restored: u32) -> Counts {
    Counts { interrupted, restored }
}

fn running(doubt: &mut Doubt, is_off: bool) -> Option<bool> {
    doubt.judge(RING, is_off).running
}

#[test]
fn a_stop_that_interrupted_something_says_so_while_it_lasts() {
    let mut doubt = Doubt::default();
    assert_eq!(running(&mut doubt, false), None);
    doubt.stopped(RING, Some((counts(3, 9), counts(4, 9))));
    assert_eq!(running(&mut doubt, true), Some(true));
    assert_eq!(running(&mut doubt, false), None, "it may have ended since it goes on");
}

#[test]
fn a_stop_that_interrupted_nothing_is_believed_until_something_is_submitted() {
    let mut doubt = Doubt::default();
    doubt.stopped(RING, Some((counts(3, 9), counts(3, 9))));
    for is_off in [true, false] {
        assert_eq!(running(&mut doubt, is_off), Some(false));
    }
    let moved = RingView { put: 8, get: 8, running: None };
    assert_eq!(doubt.judge(moved, false).running, None);
    assert_eq!(running(&mut doubt, false), None, "and what was known is forgotten");
}

#[test]
fn a_context_that_was_put_back_was_not_idle() {
    let mut doubt = Doubt::default();
    doubt.stopped(RING, Some((counts(3, 9), counts(3, 9))));
    assert!(!doubt.wants_check(Instant::now()));
    let later = Instant::now() + Duration::from_secs(1);
    assert!(doubt.wants_check(later) && !doubt.wants_check(later));
    doubt.checked(Some(counts(3, 9)));
    assert_eq!(running(&mut doubt, false), Some(false));
    assert!(doubt.wants_check(later + Duration::from_secs(1)));
    doubt.checked(Some(counts(3, 10)));
    assert_eq!(running(&mut doubt, false), None);
    // The next stop is compared with what was known before.
    let before = doubt.baseline().unwrap();
    doubt.stopped(RING, Some((before, counts(3, 10))));
    assert_eq!(running(&mut doubt, true), Some(true));
}

#[test]
fn without_counts_nothing_is_known() {
    let mut doubt = Doubt::default();
    doubt.stopped(RING, None);
    assert_eq!(running(&mut doubt, true), None);
}
