use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use super::*;
use crate::hold_pages::HoldPages;
use crate::nvidia::map::DoorbellMap;

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
    let unknown = QueueId(7);
    watcher.permit(unknown);
    watcher.forbid(unknown);
    assert!(watcher.remove(unknown).is_none());
    drop(watcher);
}

/// A page that says what the test says.
#[derive(Debug, Default)]
struct FakePage(Mutex<HintView>);

impl HintSight for FakePage {
    fn look(&self) -> HintView {
        *self.0.lock().unwrap()
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 20, "never: {what}");
        std::thread::sleep(Wait::from_millis(1));
    }
}

/// A file of zeros that stands for memory of a device.
fn memory(length: u64) -> std::fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::memfd_create("gpreempt-test", flags).unwrap());
    file.set_len(length).unwrap();
    file
}

#[test]
fn the_watcher_places_and_releases_a_hold_from_the_page_alone() {
    let (queue, token) = (QueueId(7), 0x5a);
    let slot = HoldPages::new().unwrap().take().unwrap();
    let bell = memory(DoorbellMap::LENGTH as u64);
    let doorbell = DoorbellMap::new(bell.as_fd()).unwrap();
    let channel = HoldChannel::new(slot, doorbell, token, 0xe0_0000_0000, 0xcbc0);
    let rings = Rings::in_file(memory(0x1_0000));
    // Longer than the test takes, so that only the page ends the hold.
    let hold_max = Duration::from_millis(60_000);
    let settings = GripSettings { hold_max, ..GripSettings::default() };
    let watcher = Watcher::start(settings, |_, _| {}).unwrap();
    let counts = Arc::new(HoldCounts::default());
    watcher.add(queue, channel, rings, Arc::clone(&counts));
    let page = Arc::new(FakePage::default());
    let sight: Arc<dyn HintSight> = Arc::<FakePage>::clone(&page);
    watcher.watch_hints(queue, Arc::downgrade(&sight));
    drop(sight);
    let say = |begun, is_active| *page.0.lock().unwrap() = HintView { begun, is_active };
    say(1, true);
    std::thread::sleep(Wait::from_millis(5));
    assert_eq!(counts.figures().placed, 0, "the core has not permitted it");
    watcher.permit(queue);
    eventually("it is held", || counts.figures().is_held);
    let mut rung = [0; 4];
    bell.read_exact_at(&mut rung, 0x90).unwrap();
    assert_eq!(u32::from_ne_bytes(rung), token);
    say(1, false);
    eventually("it is released", || !counts.figures().is_held);
    say(2, true);
    eventually("it is held again", || counts.figures().is_held);
    assert_eq!(counts.figures().placed, 2);
    drop(page);
    eventually("it ends with its page", || !counts.figures().is_held);
    assert!(watcher.remove(queue).is_some());
}
