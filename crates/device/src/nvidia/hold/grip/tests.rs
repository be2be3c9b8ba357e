use super::*;

const TICK: u64 = 100;

/// A program and a device, in steps of a look.
struct Scene {
    grip: Grip,
    now_us: u64,
    placed_at: Option<u64>,
    moves: Vec<(u64, Move)>,
}

impl Scene {
    fn new() -> Self {
        let mut grip = Grip::new(GripSettings::default());
        assert_eq!(grip.permit(Instant::from_nanos(0)), None);
        Self { grip, now_us: 1_000_000, placed_at: None, moves: Vec::new() }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_us * 1_000)
    }

    fn take(&mut self, action: Option<Move>) {
        if let Some(action) = action {
            self.placed_at = (action == Move::Place).then_some(self.now_us);
            self.moves.push((self.now_us, action));
        }
    }

    /// One look. The device comes to our wait 200 us after it is asked to.
    fn look(&mut self, submitted: bool, pending: bool) {
        let loaded = self.placed_at.is_some_and(|at| self.now_us >= at + 200);
        let look = Look { submitted, fetched: submitted, pending, loaded };
        let action = self.grip.look(self.now(), look);
        self.take(action);
        self.now_us += TICK;
    }

    fn idle(&mut self, looks: u32) {
        for _ in 0..looks {
            self.look(false, false);
        }
    }

    /// A request of kernels that come so many looks apart, and then nothing for a while.
    fn request(&mut self, kernels: u32, apart: u32) {
        for _ in 0..kernels {
            self.look(true, false);
            self.idle(apart - 1);
        }
        self.idle(50);
    }

    fn places(&self) -> usize {
        self.moves.iter().filter(|(_, action)| *action == Move::Place).count()
    }

    fn releases(&self) -> Vec<Ending> {
        let ending = |(_, action): &(u64, Move)| match action {
            Move::Release(ending) => Some(*ending),
            Move::Place => None,
        };
        self.moves.iter().filter_map(ending).collect()
    }
}

#[test]
fn one_hold_bridges_all_gaps_of_a_request() {
    let mut scene = Scene::new();
    scene.request(20, 2);
    assert_eq!((scene.places(), scene.releases()), (1, vec![Ending::Quiet]));
    let (placed, released) = (scene.moves[0].0, scene.moves[1].0);
    assert!(released > placed + 20 * 2 * TICK, "{placed} to {released}");
}

#[test]
fn quiet_begins_when_the_context_is_there() {
    let mut scene = Scene::new();
    scene.request(1, 1);
    let (placed, released) = (scene.moves[0].0, scene.moves[1].0);
    assert_eq!(released - placed, 200 + 300);
}

#[test]
fn the_quiet_time_follows_the_programs_own_gaps() {
    let mut scene = Scene::new();
    for _ in 0..5 {
        scene.request(20, 1);
    }
    assert_eq!(scene.grip.quiet(), Duration::from_micros(175));
    let mut scene = Scene::new();
    for _ in 0..20 {
        scene.request(20, 3);
    }
    assert_eq!(scene.grip.quiet(), Duration::from_micros(375));
    let before = scene.places();
    scene.request(20, 3);
    assert_eq!(scene.places(), before + 1, "no gap was longer than the quiet time");
}

#[test]
fn lone_kernels_are_soon_not_held_for_and_requests_again_at_once() {
    let mut scene = Scene::new();
    for _ in 0..100 {
        scene.request(1, 1);
    }
    assert!(scene.places() < 20, "{}", scene.places());
    let before = scene.places();
    scene.request(20, 2);
    assert!(scene.places() > before);
    let before = scene.places();
    for _ in 0..10 {
        scene.request(20, 2);
    }
    assert_eq!(scene.places(), before + 10);
}

#[test]
fn lone_kernels_at_random_times_are_not_held_for_either() {
    let mut scene = Scene::new();
    // One look in forty finds a kernel; now and then two come so soon that it looks like a gap.
    let (mut state, mut requests) = (7_u64, 0);
    for _ in 0..80_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let is_kernel = (state >> 33).is_multiple_of(40);
        requests += usize::from(is_kernel);
        scene.look(is_kernel, false);
    }
    let held = scene.places();
    assert!(held < requests * 4 / 10, "{held} holds for {requests} requests");
    // Real gaps are held for at once, and believed in soon.
    scene.request(20, 2);
    let before = scene.places();
    for _ in 0..20 {
        scene.request(20, 2);
    }
    assert_eq!(scene.places(), before + 20);
    let last = scene.moves.iter().rev().find(|(_, action)| *action == Move::Place).unwrap().0;
    let begun = scene.now_us - (20 * 2 + 50) * TICK;
    assert_eq!(last, begun, "from the first kernel on");
}

#[test]
fn a_program_that_hangs_is_let_go_of() {
    let mut scene = Scene::new();
    scene.look(true, true);
    for _ in 0..600 {
        scene.look(false, true);
    }
    assert_eq!((scene.places(), scene.releases()), (1, vec![Ending::Expired]));
    assert_eq!(scene.moves[1].0 - scene.moves[0].0, 50_000);
}

#[test]
fn new_work_renews_the_maximum() {
    let mut scene = Scene::new();
    for _ in 0..1_000 {
        scene.look(true, true);
    }
    assert_eq!(scene.releases(), []);
}

#[test]
fn a_hint_places_ahead_and_its_end_lets_go_at_once() {
    let mut scene = Scene::new();
    let now = scene.now();
    let action = scene.grip.announce(now);
    scene.take(action);
    assert_eq!(scene.places(), 1);
    scene.idle(20);
    assert_eq!(scene.releases(), [], "it was announced, so it will come");
    scene.look(true, false);
    scene.idle(5);
    let action = scene.grip.conclude(false);
    scene.take(action);
    assert_eq!(scene.releases(), [Ending::Quiet]);
    let now = scene.now();
    assert_eq!(scene.grip.announce(now), Some(Move::Place));
    scene.placed_at = Some(scene.now_us);
    scene.idle(600);
    assert_eq!(scene.releases(), [Ending::Quiet, Ending::Expired], "announced and never come");
}

#[test]
fn who_may_not_hold_does_not() {
    let mut scene = Scene::new();
    scene.look(true, false);
    let action = scene.grip.forbid();
    assert_eq!(action, Some(Move::Release(Ending::Forbidden)));
    scene.take(action);
    scene.request(20, 2);
    assert_eq!(scene.places(), 1);
    scene.look(true, false);
    let now = scene.now();
    assert_eq!(scene.grip.permit(now), Some(Move::Place), "it is in the middle of a request");
    assert_eq!(scene.grip.forbid(), Some(Move::Release(Ending::Forbidden)));
    scene.idle(100);
    let now = scene.now();
    assert_eq!(scene.grip.permit(now), None);
}

#[test]
fn announcements_alone_hold_no_longer_than_the_maximum() {
    let mut grip = Grip::new(GripSettings::default());
    grip.permit(Instant::from_nanos(0));
    let at = |tick: u64| Instant::from_nanos(tick * 100_000);
    let quiet = Look { submitted: false, fetched: false, pending: false, loaded: true };
    let (mut held, mut holds) = (0, 0);
    for tick in 0..10_000 {
        // In every look there is a new one.
        holds += u32::from(grip.announce(at(tick)) == Some(Move::Place));
        held += u32::from(grip.is_held());
        grip.look(at(tick), quiet);
    }
    assert_eq!(holds, 1);
    assert!(held <= 501, "{held} looks of 100 us");
    // Work is worth a hold again, and so are announcements after it.
    let work = Look { submitted: true, ..quiet };
    assert_eq!(grip.look(at(10_000), work), Some(Move::Place));
    assert_eq!(grip.conclude(false), Some(Move::Release(Ending::Quiet)));
    assert_eq!(grip.announce(at(10_001)), Some(Move::Place));
}
