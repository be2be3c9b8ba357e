//! Whatever happens in whatever order, the scheduler stays sound; and when the world calms down,
//! the right queues run.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test is a panic")]

mod liveness;
mod world;

use gpreempt_core::capability::Mechanism;
use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::event::{Event, TaskTraits};
use gpreempt_core::id::{DeviceId, GangId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use world::{World, capabilities};

/// Something that happens. Names are slots, taken or not; what makes no sense is tried as well.
#[derive(Clone, Debug)]
enum Step {
    AddDevice(u32, Mechanism),
    DropDevice(u32),
    Cost(u32, u64),
    AddTask(u64, TaskTraits),
    ChangeTask(u64, TaskTraits),
    SuspendTask(u64, bool),
    DropTask(u64),
    AddQueue(u64, u64, u32, bool),
    ChangeQueue(u64, Option<Priority>),
    SuspendQueue(u64, bool),
    DropQueue(u64),
    Work(u64),
    Fetch(u64),
    Finish(u64),
    HintBegin(u64, Option<Duration>),
    HintEnd(u64),
    Complete(Index, bool),
    Completions(u64),
    Wait(Duration),
    Configure(PolicyKind, Option<Aging>),
}

const DEVICES: u32 = 3;
const TASKS: u64 = 6;
const QUEUES: u64 = 12;

fn duration(us: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    us.prop_map(Duration::from_micros)
}

fn priority() -> impl Strategy<Value = Priority> {
    (0..Priority::LEVELS).prop_map(|level| Priority::new(level).unwrap())
}

fn traits(gangs: bool) -> impl Strategy<Value = TaskTraits> {
    (
        priority(),
        prop_oneof![20 => 1..4u32, 1 => Just(0)],
        proptest::option::of(duration(1..20_000)),
        proptest::option::of((0..2u64).prop_map(GangId)),
    )
        .prop_map(move |(priority, weight, deadline, gang)| TaskTraits {
            priority,
            weight,
            deadline,
            gang: gang.filter(|_| gangs),
        })
}

fn mechanism() -> impl Strategy<Value = Mechanism> {
    select(vec![
        Mechanism::Stop,
        Mechanism::Stop,
        Mechanism::Slice,
        Mechanism::Slice,
        Mechanism::Watch,
    ])
}

fn aging() -> impl Strategy<Value = Option<Aging>> {
    let aging = (duration(1..50_000), duration(1..20_000));
    proptest::option::of(aging.prop_map(|(after, grant)| Aging { after, grant }))
}

fn step(gangs: bool) -> impl Strategy<Value = Step> {
    let (device, task, queue) = (|| 0..DEVICES, || 0..TASKS, || 0..QUEUES);
    prop_oneof![
        2 => (device(), mechanism()).prop_map(|(id, kind)| Step::AddDevice(id, kind)),
        1 => device().prop_map(Step::DropDevice),
        // Turns last twenty switches, and everybody has to come in the time that is looked at.
        2 => (device(), 1..2_000_u64).prop_map(|(id, us)| Step::Cost(id, us)),
        4 => (task(), traits(gangs)).prop_map(|(id, traits)| Step::AddTask(id, traits)),
        4 => (task(), traits(gangs)).prop_map(|(id, traits)| Step::ChangeTask(id, traits)),
        2 => (task(), any::<bool>()).prop_map(|(id, off)| Step::SuspendTask(id, off)),
        1 => task().prop_map(Step::DropTask),
        8 => (queue(), task(), device(), proptest::bool::weighted(0.2))
            .prop_map(|(id, task, device, stopped)| Step::AddQueue(id, task, device, stopped)),
        3 => (queue(), proptest::option::of(priority()))
            .prop_map(|(id, priority)| Step::ChangeQueue(id, priority)),
        2 => (queue(), any::<bool>()).prop_map(|(id, off)| Step::SuspendQueue(id, off)),
        1 => queue().prop_map(Step::DropQueue),
        20 => queue().prop_map(Step::Work),
        5 => queue().prop_map(Step::Fetch),
        10 => queue().prop_map(Step::Finish),
        4 => (task(), proptest::option::of(duration(1..20_000)))
            .prop_map(|(id, deadline)| Step::HintBegin(id, deadline)),
        3 => task().prop_map(Step::HintEnd),
        20 => (any::<Index>(), proptest::bool::weighted(0.15))
            .prop_map(|(which, fails)| Step::Complete(which, fails)),
        1 => queue().prop_map(Step::Completions),
        15 => prop_oneof![duration(0..200), duration(1_000..150_000)].prop_map(Step::Wait),
        1 => (select(PolicyKind::ALL.to_vec()), aging())
            .prop_map(|(policy, aging)| Step::Configure(policy, aging)),
    ]
}

/// A world with something in it, so that most steps mean something.
fn furnished(config: Config, devices: &[Mechanism], tasks: &[TaskTraits]) -> World {
    let mut world = World::new(config);
    for (id, &mechanism) in (0..).zip(devices) {
        world.tell(Event::DeviceAppeared {
            device: DeviceId(id),
            capabilities: capabilities(mechanism),
        });
    }
    for (id, &traits) in (0..).zip(tasks) {
        let weight = traits.weight.max(1);
        world.tell(Event::TaskAppeared {
            task: TaskId(id),
            traits: TaskTraits { weight, ..traits },
        });
    }
    for id in 0..QUEUES - 2 {
        let devices = u64::try_from(devices.len()).unwrap();
        world.tell(Event::QueueAppeared {
            queue: QueueId(id),
            task: TaskId(id % u64::try_from(tasks.len()).unwrap()),
            device: DeviceId(u32::try_from(id / 2 % devices).unwrap()),
            stopped: false,
        });
    }
    world
}

/// The queue in a slot, or the next one that might be. The world hands out a name only once.
fn name(world: &World, slot: u64) -> QueueId {
    let mut names = (0..).map(|round| QueueId(slot + round * QUEUES));
    let free =
        |queue: &QueueId| world.queues.contains_key(queue) || !world.announced.contains(queue);
    names.find(free).expect("names without end")
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::AddDevice(id, mechanism) => world.tell(Event::DeviceAppeared {
            device: DeviceId(id),
            capabilities: capabilities(mechanism),
        }),
        Step::DropDevice(id) => world.tell(Event::DeviceVanished { device: DeviceId(id) }),
        Step::Cost(id, us) => world.tell(Event::DeviceCost {
            device: DeviceId(id),
            preempt_cost: Duration::from_micros(us),
            resume_cost: Duration::from_micros(us / 2),
        }),
        Step::AddTask(id, traits) => world.tell(Event::TaskAppeared { task: TaskId(id), traits }),
        Step::ChangeTask(id, traits) => world.tell(Event::TaskChanged { task: TaskId(id), traits }),
        Step::SuspendTask(id, suspended) => {
            world.tell(Event::TaskSuspended { task: TaskId(id), suspended });
        }
        Step::DropTask(id) => world.tell(Event::TaskVanished { task: TaskId(id) }),
        Step::AddQueue(slot, task, device, stopped) => {
            let queue = name(world, slot);
            let watched = world.devices.get(&DeviceId(device)) == Some(&Mechanism::Watch);
            world.tell(Event::QueueAppeared {
                queue,
                task: TaskId(task),
                device: DeviceId(device),
                // Nobody before us stopped anything where nothing can be stopped.
                stopped: stopped && !watched,
            });
        }
        Step::ChangeQueue(slot, priority) => {
            let queue = name(world, slot);
            world.tell(Event::QueueChanged { queue, priority });
        }
        Step::SuspendQueue(slot, suspended) => {
            let queue = name(world, slot);
            world.tell(Event::QueueSuspended { queue, suspended });
        }
        Step::DropQueue(slot) => {
            let queue = name(world, slot);
            world.tell(Event::QueueVanished { queue });
        }
        Step::Work(slot) => change_ring(world, slot, Ring::Full),
        Step::Fetch(slot) => change_ring(world, slot, Ring::Fetched),
        Step::Finish(slot) => change_ring(world, slot, Ring::Done),
        Step::HintBegin(id, deadline) => {
            world.tell(Event::HintBegin { task: TaskId(id), deadline })
        }
        Step::HintEnd(id) => world.tell(Event::HintEnd { task: TaskId(id) }),
        Step::Complete(which, fails) => {
            let waiting: Vec<QueueId> = world.in_flight.keys().copied().collect();
            if !waiting.is_empty() {
                world.complete(*which.get(&waiting), fails);
            }
        }
        Step::Completions(slot) => {
            let queue = name(world, slot);
            if !world.in_flight.contains_key(&queue) {
                world.tell(Event::Preempted { queue });
                world.tell(Event::Resumed { queue });
            }
        }
        Step::Wait(duration) => world.wait(duration),
        Step::Configure(policy, aging) => {
            world.set_config(Config { policy, aging, ..Config::default() })
        }
    }
    world.drain();
}

enum Ring {
    Full,
    Fetched,
    Done,
}

fn change_ring(world: &mut World, slot: u64, ring: Ring) {
    let queue = name(world, slot);
    if let Some(truth) = world.queues.get_mut(&queue) {
        match ring {
            Ring::Full => {
                truth.ring.put += 1;
                truth.ring.running = None;
            }
            Ring::Fetched if !truth.off => {
                truth.ring.get = truth.ring.put;
                truth.ring.running = None;
            }
            Ring::Done if !truth.off => {
                truth.ring.get = truth.ring.put;
                truth.ring.running = Some(false);
            }
            Ring::Fetched | Ring::Done => {}
        }
        truth.work = truth.ring.has_work();
    }
    world.observe(queue);
}

/// Puts everybody into the low class: shares are fair within a class.
fn make_equal(world: &mut World) {
    for (task, traits) in world.tasks.clone() {
        let priority = Priority::new(traits.priority.level() % (Priority::LEVELS / 2)).unwrap();
        world.tell(Event::TaskChanged { task, traits: TaskTraits { priority, ..traits } });
    }
    let queues: Vec<QueueId> = world.scheduler.queue_ids().collect();
    for queue in queues {
        world.tell(Event::QueueChanged { queue, priority: None });
    }
}

fn config(policy: PolicyKind, aging: Option<Aging>) -> Config {
    Config { policy, aging, ..Config::default() }
}

fn any_world(gangs: bool) -> impl Strategy<Value = (Config, Vec<Mechanism>, Vec<TaskTraits>)> {
    (
        (select(PolicyKind::ALL.to_vec()), aging()).prop_map(|(kind, aging)| config(kind, aging)),
        proptest::collection::vec(mechanism(), 1..3),
        proptest::collection::vec(traits(gangs), 1..6),
    )
}

/// Four times as many cases as usual; `PROPTEST_CASES` makes it more.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 4, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn nothing_that_happens_breaks_it(
        (config, devices, tasks) in any_world(true),
        steps in proptest::collection::vec(step(true), 0..100),
    ) {
        let mut world = furnished(config, &devices, &tasks);
        for step in steps {
            take(&mut world, step);
        }
        liveness::check_suspended(&mut world);
        liveness::calm_down(&mut world);
        liveness::check_rest(&world);
    }

    #[test]
    fn strict_priority_ends_with_the_highest_running(
        devices in proptest::collection::vec(mechanism(), 1..3),
        tasks in proptest::collection::vec(traits(false), 1..6),
        steps in proptest::collection::vec(step(false), 0..100),
    ) {
        let strict = config(PolicyKind::Strict, None);
        let mut world = furnished(strict, &devices, &tasks);
        for step in steps {
            take(&mut world, step);
        }
        world.set_config(strict);
        liveness::calm_down(&mut world);
        liveness::check_rest(&world);
        liveness::check_strict(&world);
    }

    #[test]
    fn under_fair_share_everybody_runs(
        devices in proptest::collection::vec(mechanism(), 1..3),
        tasks in proptest::collection::vec(traits(true), 1..6),
        steps in proptest::collection::vec(step(true), 0..60),
    ) {
        let fair = config(PolicyKind::Fair, None);
        let mut world = furnished(fair, &devices, &tasks);
        for step in steps {
            take(&mut world, step);
        }
        world.set_config(fair);
        make_equal(&mut world);
        liveness::calm_down(&mut world);
        liveness::check_everybody_runs(&mut world);
    }
}

#[test]
fn a_gang_and_a_hint_do_not_ping_pong() {
    let t = |priority: u8, deadline: Option<u64>, gang: Option<u64>| TaskTraits {
        priority: Priority::new(priority).unwrap(),
        weight: 1,
        deadline: deadline.map(Duration::from_nanos),
        gang: gang.map(GangId),
    };
    let tasks = [
        t(8, None, Some(1)),
        t(8, Some(1000), None),
        t(0, None, Some(1)),
        t(0, None, None),
        t(8, None, Some(0)),
    ];
    let mut world = furnished(config(PolicyKind::Fair, None), &[Mechanism::Slice], &tasks);
    let cs = |w: &mut World, i: usize| {
        let waiting: Vec<QueueId> = w.in_flight.keys().copied().collect();
        if !waiting.is_empty() {
            let at = i * waiting.len() / 6;
            w.complete(waiting[at], false);
        }
        w.drain();
    };
    take(&mut world, Step::AddDevice(0, Mechanism::Stop));
    take(&mut world, Step::HintBegin(1, None));
    take(&mut world, Step::AddQueue(0, 0, 0, false));
    take(&mut world, Step::HintBegin(0, None));
    cs(&mut world, 0);
    cs(&mut world, 0);
    take(&mut world, Step::HintBegin(4, None));
    cs(&mut world, 3);
    take(&mut world, Step::Wait(Duration::from_nanos(10_000_000)));
    cs(&mut world, 2);
    take(&mut world, Step::Work(2));
    cs(&mut world, 2);
    take(&mut world, Step::Work(0));
    world.set_config(config(PolicyKind::Fair, None));
    liveness::calm_down(&mut world);
}
