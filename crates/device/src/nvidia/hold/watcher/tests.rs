use super::*;

#[test]
fn turns_alternate() {
    for at in [0, 1, 99_999, 100_000, 150_000, 199_999, 200_000, 1_234_567_890] {
        let now = Instant::from_nanos(at);
        let first = next_turn(now, 0).since(now).as_nanos();
        let second = next_turn(now, LOOK_EVERY).since(now).as_nanos();
        assert!((1..=TURN).contains(&first) && (1..=TURN).contains(&second), "{at}");
        assert_eq!(first.abs_diff(second), LOOK_EVERY, "{at}");
        assert_eq!((at + first) % TURN, 0, "{at}");
    }
}

#[test]
fn with_nothing_to_look_at_both_sleep_take_orders_and_end() {
    let watcher = Watcher::start(GripSettings::default(), |_, _| {}).unwrap();
    assert_eq!(watcher.threads.len(), 2);
    let nobody = QueueId(7);
    watcher.permit(nobody);
    watcher.forbid(nobody);
    assert!(watcher.remove(nobody).is_none());
    drop(watcher);
}
