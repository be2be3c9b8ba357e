//! Any sequence of events leaves the scheduler consistent; and once no more events arrive, the
//! right queues run.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test is a panic")]

mod liveness;
mod model;

use gpreempt_core::backend::Mechanism;
use gpreempt_core::busy_periods::BusyTime;
use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::{DeviceId, GangId, QueueId, TaskId};
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use model::{Model, capabilities};

/// One step of a sequence. Queues are slots, in use or not; contradictory events are tried too.
#[derive(Clone, Debug)]
enum Step {
    Deliver(Event),
    Ring(u64, RingChange),
    /// Completes a command in flight, with success or failure.
    Complete(Index, bool),
    /// Reports completions for a queue without a command.
    Completions(u64),
    Wait(Duration),
    Configure(Config),
}

#[derive(Clone, Copy, Debug)]
enum RingChange {
    Submit,
    Fetch,
    Finish,
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

fn attr(gangs: bool) -> impl Strategy<Value = SchedAttr> {
    (
        priority(),
        prop_oneof![20 => 1..4u32, 1 => Just(0)],
        proptest::option::of(duration(1..20_000)),
        proptest::option::of((0..2u64).prop_map(GangId)),
        any::<bool>(),
        select(vec![0, 0, 20, 400]),
    )
        .prop_map(move |(priority, weight, deadline, gang, has_min_share, percent)| {
            SchedAttr {
                priority,
                weight,
                deadline,
                gang: gang.filter(|_| gangs),
                has_min_share,
                latency_budget: LatencyBudget::from_percent(percent).unwrap(),
            }
        })
}

fn mechanism() -> impl Strategy<Value = Mechanism> {
    select(vec![
        Mechanism::Stop,
        Mechanism::Stop,
        Mechanism::Slice,
        Mechanism::Slice,
        Mechanism::ObserveOnly,
    ])
}

fn aging() -> impl Strategy<Value = Option<Aging>> {
    let aging = (duration(1..50_000), duration(1..20_000));
    proptest::option::of(aging.prop_map(|(after, grant)| Aging { after, grant }))
}

fn event(gangs: bool) -> impl Strategy<Value = Event> {
    let device = || (0..DEVICES).prop_map(DeviceId);
    let task = || (0..TASKS).prop_map(TaskId);
    let queue = || (0..QUEUES).prop_map(QueueId);
    prop_oneof![
        2 => (device(), mechanism()).prop_map(|(device, kind)| appeared(device, kind)),
        1 => device().prop_map(|device| Event::DeviceVanished { device }),
        // Turns last twenty switches, and every queue has to run in the observed time.
        2 => (device(), 1..2_000_u64).prop_map(|(device, us)| {
            let [preempt_cost, resume_cost] = [us, us / 2].map(Duration::from_micros);
            Event::DeviceCost { device, preempt_cost, resume_cost }
        }),
        4 => (task(), attr(gangs)).prop_map(|(task, attr)| Event::TaskAppeared { task, attr }),
        4 => (task(), attr(gangs)).prop_map(|(task, attr)| Event::TaskChanged { task, attr }),
        2 => (task(), any::<bool>())
            .prop_map(|(task, suspended)| Event::TaskSuspended { task, suspended }),
        1 => task().prop_map(|task| Event::TaskVanished { task }),
        8 => (queue(), task(), device(), proptest::bool::weighted(0.2)).prop_map(
            |(queue, task, device, stopped)| Event::QueueAppeared { queue, task, device, stopped }
        ),
        3 => (queue(), proptest::option::of(priority()))
            .prop_map(|(queue, priority)| Event::QueueChanged { queue, priority }),
        2 => (queue(), any::<bool>())
            .prop_map(|(queue, suspended)| Event::QueueSuspended { queue, suspended }),
        1 => queue().prop_map(|queue| Event::QueueVanished { queue }),
        4 => (queue(), duration(1..200_000), 0..=100_u64).prop_map(|(queue, busy, percent)| {
            let off = Duration::from_nanos(busy.as_nanos() * percent / 100);
            let time = BusyTime { busy, off, lost: off, packets: percent };
            Event::SlowdownMeasured { queue, time }
        }),
        4 => (task(), proptest::option::of(duration(1..20_000)))
            .prop_map(|(task, deadline)| Event::HintBegin { task, deadline }),
        3 => task().prop_map(|task| Event::HintEnd { task }),
    ]
}

fn appeared(device: DeviceId, mechanism: Mechanism) -> Event {
    Event::DeviceAppeared { device, capabilities: capabilities(mechanism) }
}

fn step(gangs: bool) -> impl Strategy<Value = Step> {
    let rings = [(4, RingChange::Submit), (1, RingChange::Fetch), (2, RingChange::Finish)];
    let ring = proptest::strategy::Union::new_weighted(
        rings.map(|(weight, change)| (weight, Just(change))).to_vec(),
    );
    prop_oneof![
        37 => event(gangs).prop_map(Step::Deliver),
        35 => (0..QUEUES, ring).prop_map(|(slot, change)| Step::Ring(slot, change)),
        20 => (any::<Index>(), proptest::bool::weighted(0.15))
            .prop_map(|(which, fails)| Step::Complete(which, fails)),
        1 => (0..QUEUES).prop_map(Step::Completions),
        15 => prop_oneof![duration(0..200), duration(1_000..150_000)].prop_map(Step::Wait),
        1 => any_config().prop_map(Step::Configure),
    ]
}

/// A model with devices, tasks and queues, so that most steps have an effect.
fn furnished(config: Config, devices: &[Mechanism], tasks: &[SchedAttr]) -> Model {
    let mut model = Model::new(config);
    for (id, &mechanism) in (0..).zip(devices) {
        model.deliver(appeared(DeviceId(id), mechanism));
    }
    for (id, &attr) in (0..).zip(tasks) {
        let weight = attr.weight.max(1);
        model.deliver(Event::TaskAppeared { task: TaskId(id), attr: SchedAttr { weight, ..attr } });
    }
    for id in 0..QUEUES - 2 {
        let devices = u64::try_from(devices.len()).unwrap();
        model.deliver(Event::QueueAppeared {
            queue: QueueId(id),
            task: TaskId(id % u64::try_from(tasks.len()).unwrap()),
            device: DeviceId(u32::try_from(id / 2 % devices).unwrap()),
            stopped: false,
        });
    }
    model
}

/// The queue in a slot, or the next one that might be: the model uses an identifier only once.
fn in_slot(model: &Model, slot: u64) -> QueueId {
    let mut names = (0..).map(|round| QueueId(slot + round * QUEUES));
    let free =
        |queue: &QueueId| model.queues.contains_key(queue) || !model.announced.contains(queue);
    names.find(free).expect("identifiers without end")
}

/// Replaces a slot by the queue in it.
fn resolve(model: &Model, mut event: Event) -> Event {
    if let Event::QueueAppeared { queue, .. }
    | Event::QueueChanged { queue, .. }
    | Event::QueueSuspended { queue, .. }
    | Event::QueueVanished { queue } = &mut event
    {
        *queue = in_slot(model, queue.0);
    }
    if let Event::QueueAppeared { device, stopped, .. } = &mut event {
        // No earlier scheduler stopped a queue where none can be stopped.
        *stopped &= model.devices.get(device) != Some(&Mechanism::ObserveOnly);
    }
    event
}

fn take(model: &mut Model, step: Step) {
    match step {
        Step::Deliver(event) => model.deliver(resolve(model, event)),
        Step::Ring(slot, change) => change_ring(model, slot, change),
        Step::Complete(which, fails) => {
            let waiting: Vec<QueueId> = model.in_flight.keys().copied().collect();
            if !waiting.is_empty() {
                model.complete(*which.get(&waiting), fails);
            }
        }
        Step::Completions(slot) => {
            let queue = in_slot(model, slot);
            if !model.in_flight.contains_key(&queue) {
                model.deliver(Event::Preempted { queue });
                model.deliver(Event::Resumed { queue });
            }
        }
        Step::Wait(duration) => model.wait(duration),
        Step::Configure(config) => model.set_config(config),
    }
    model.drain();
}

fn change_ring(model: &mut Model, slot: u64, change: RingChange) {
    let queue = in_slot(model, slot);
    if let Some(truth) = model.queues.get_mut(&queue) {
        let ring = &mut truth.ring;
        match change {
            RingChange::Submit => (ring.put, ring.running) = (ring.put + 1, None),
            RingChange::Fetch if !truth.off => (ring.get, ring.running) = (ring.put, None),
            RingChange::Finish if !truth.off => (ring.get, ring.running) = (ring.put, Some(false)),
            RingChange::Fetch | RingChange::Finish => {}
        }
        truth.work = truth.ring.has_work();
    }
    model.observe(queue);
}

/// Puts every task into the low class: shares are fair within a class.
fn make_equal(model: &mut Model) {
    for (task, attr) in model.tasks.clone() {
        let priority = Priority::new(attr.priority.level() % (Priority::LEVELS / 2)).unwrap();
        model.deliver(Event::TaskChanged { task, attr: SchedAttr { priority, ..attr } });
    }
    let queues: Vec<QueueId> = model.scheduler.queue_ids().collect();
    for queue in queues {
        model.deliver(Event::QueueChanged { queue, priority: None });
    }
}

fn config(policy: PolicyKind, aging: Option<Aging>) -> Config {
    Config { policy, aging, min_share: None, ..Config::default() }
}

fn any_config() -> impl Strategy<Value = Config> {
    (select(PolicyKind::ALL.to_vec()), aging(), aging())
        .prop_map(|(kind, aging, min_share)| Config { min_share, ..config(kind, aging) })
}

fn mechanisms() -> impl Strategy<Value = Vec<Mechanism>> {
    proptest::collection::vec(mechanism(), 1..3)
}

/// Four times as many cases as usual; `PROPTEST_CASES` makes it more.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 4, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_sequence_of_events_breaks_an_invariant(
        config in any_config(),
        devices in mechanisms(),
        tasks in proptest::collection::vec(attr(true), 1..6),
        steps in proptest::collection::vec(step(true), 0..100),
    ) {
        let mut model = furnished(config, &devices, &tasks);
        for step in steps {
            take(&mut model, step);
        }
        liveness::check_suspended(&mut model);
        liveness::calm_down(&mut model);
        liveness::check_rest(&model);
    }

    #[test]
    fn strict_priority_converges_to_the_highest_queues_running(
        devices in mechanisms(),
        tasks in proptest::collection::vec(attr(false), 1..6),
        steps in proptest::collection::vec(step(false), 0..100),
    ) {
        let strict = config(PolicyKind::Strict, None);
        let mut model = furnished(strict, &devices, &tasks);
        for step in steps {
            take(&mut model, step);
        }
        model.set_config(strict);
        liveness::calm_down(&mut model);
        liveness::check_rest(&model);
        liveness::check_strict(&model);
    }

    #[test]
    fn under_fair_share_every_queue_runs(
        devices in mechanisms(),
        tasks in proptest::collection::vec(attr(true), 1..6),
        steps in proptest::collection::vec(step(true), 0..60),
    ) {
        let fair = config(PolicyKind::Fair, None);
        let mut model = furnished(fair, &devices, &tasks);
        for step in steps {
            take(&mut model, step);
        }
        model.set_config(fair);
        make_equal(&mut model);
        liveness::calm_down(&mut model);
        liveness::check_every_queue_runs(&mut model);
    }
}

#[test]
fn a_gang_and_a_hint_do_not_preempt_each_other_for_ever() {
    let t = |priority: u8, deadline: Option<u64>, gang: Option<u64>| SchedAttr {
        priority: Priority::new(priority).unwrap(),
        weight: 1,
        deadline: deadline.map(Duration::from_nanos),
        gang: gang.map(GangId),
        has_min_share: false,
        latency_budget: LatencyBudget::ZERO,
    };
    let tasks = [
        t(8, None, Some(1)),
        t(8, Some(1000), None),
        t(0, None, Some(1)),
        t(0, None, None),
        t(8, None, Some(0)),
    ];
    let mut model = furnished(config(PolicyKind::Fair, None), &[Mechanism::Slice], &tasks);
    let deliver = |model: &mut Model, event| take(model, Step::Deliver(event));
    let hint = |model: &mut Model, task| {
        deliver(model, Event::HintBegin { task: TaskId(task), deadline: None });
    };
    let submit = |model: &mut Model, slot| take(model, Step::Ring(slot, RingChange::Submit));
    let complete = |model: &mut Model, sixth: usize| {
        let waiting: Vec<QueueId> = model.in_flight.keys().copied().collect();
        if !waiting.is_empty() {
            model.complete(waiting[sixth * waiting.len() / 6], false);
        }
        model.drain();
    };
    deliver(&mut model, appeared(DeviceId(0), Mechanism::Stop));
    hint(&mut model, 1);
    let (queue, task, device) = (QueueId(0), TaskId(0), DeviceId(0));
    deliver(&mut model, Event::QueueAppeared { queue, task, device, stopped: false });
    hint(&mut model, 0);
    complete(&mut model, 0);
    complete(&mut model, 0);
    hint(&mut model, 4);
    complete(&mut model, 3);
    take(&mut model, Step::Wait(Duration::from_millis(10)));
    complete(&mut model, 2);
    submit(&mut model, 2);
    complete(&mut model, 2);
    submit(&mut model, 0);
    model.set_config(config(PolicyKind::Fair, None));
    liveness::calm_down(&mut model);
}
