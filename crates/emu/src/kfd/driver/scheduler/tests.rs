use gpreempt_core::time::Duration;
use gpreempt_kfd::abi::own::PreemptEntry;
use gpreempt_kfd::{Meant, OwnDoor};
use gpreempt_sim::model::DeviceModel;

use super::*;
use crate::kfd::{FakeClient, FakeDoor, FakeKfd, Rules, VirtualDevices};

/// How long a kernel is busy.
const WORK_NS: u32 = 2_000_000;

/// An important process and another, each with a queue.
struct Scene {
    kfd: FakeKfd,
    devices: VirtualDevices,
    important: (FakeClient, u32),
    other: (FakeClient, u32),
    door: FakeDoor,
}

impl Scene {
    fn new(by_queue: bool) -> Self {
        let model = DeviceModel::built_in("mi300x").unwrap();
        let devices = VirtualDevices::new(model, 1).unwrap();
        let rules = Rules { own_calls: true, by_queue, ..Rules::default() };
        let kfd = FakeKfd::over(rules, devices.clone());
        let gpu_id = devices.gpu_ids()[0];
        let open = |pid| {
            let client = kfd.client(pid);
            let queue = client.open_queue(gpu_id).unwrap();
            (client, queue)
        };
        let (important, other) = (open(10), open(11));
        let door = kfd.door(1);
        door.set_preempt_priority(10, Meant::All, 12).unwrap();
        Self { kfd, devices, important, other, door }
    }

    fn enable(&self, enable: bool) {
        self.kfd.set_parameters(Parameters { enable, ..Parameters::default() });
    }

    fn submit(&self, (client, queue): &(FakeClient, u32)) {
        let id = self.kfd.device_id(client.pid(), *queue).unwrap();
        assert!(self.devices.submit(id, WORK_NS));
    }

    fn is_on(&self, (client, queue): &(FakeClient, u32)) -> bool {
        self.kfd.is_running(client.pid(), *queue).unwrap()
    }

    /// So many milliseconds of everybody.
    fn pass(&self, ms: u64) {
        for _ in 0..ms {
            self.kfd.pass(Duration::from_millis(1));
            self.devices.run_for(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_highest_priority_with_work_runs_and_the_others_come_back() {
    for by_queue in [false, true] {
        let scene = Scene::new(by_queue);
        scene.enable(true);
        for _ in 0..40 {
            scene.submit(&scene.other);
        }
        scene.pass(12);
        assert!(scene.is_on(&scene.other));
        scene.submit(&scene.important);
        scene.submit(&scene.important);
        let before = scene.kfd.remaps();
        scene.pass(6);
        assert!(scene.is_on(&scene.important) && !scene.is_on(&scene.other));
        assert_eq!(scene.kfd.remaps() - before, u64::from(!by_queue), "one update");
        scene.pass(200);
        assert!(scene.is_on(&scene.other));
        for (client, queue) in [&scene.important, &scene.other] {
            let id = scene.kfd.device_id(client.pid(), *queue).unwrap();
            assert_eq!(scene.devices.is_exact(id), Some(true));
        }
    }
}

#[test]
fn switched_off_it_lets_everybody_on_and_decides_nothing() {
    let scene = Scene::new(false);
    scene.submit(&scene.important);
    scene.submit(&scene.other);
    scene.pass(20);
    assert!(scene.is_on(&scene.other), "off by default");
    scene.enable(true);
    scene.submit(&scene.important);
    scene.submit(&scene.other);
    scene.pass(2);
    assert!(!scene.is_on(&scene.other));
    scene.enable(false);
    assert!(scene.is_on(&scene.other));
    scene.submit(&scene.important);
    scene.pass(12);
    assert!(scene.is_on(&scene.other));
}

#[test]
fn what_somebody_preempted_stays_off_whatever_the_scheduler_wants() {
    let scene = Scene::new(false);
    scene.enable(true);
    scene.submit(&scene.other);
    let entry = PreemptEntry { pid: 11, queue_id: scene.other.1, ..PreemptEntry::default() };
    scene.door.preempt_queues(&mut [entry], None, 0).unwrap();
    scene.pass(30);
    assert!(!scene.is_on(&scene.other));
    scene.door.unpreempt_queues(&mut [entry], false).unwrap();
    scene.pass(30);
    assert!(scene.is_on(&scene.other));
}

#[test]
fn a_queue_can_be_more_important_than_its_process_and_processes_come_and_go() {
    let mut scene = Scene::new(false);
    scene.enable(true);
    let other = Meant::One { id: scene.other.1, serial: 0 };
    scene.door.set_preempt_priority(11, other, 15).unwrap();
    scene.submit(&scene.important);
    scene.submit(&scene.other);
    scene.pass(2);
    assert!(!scene.is_on(&scene.important) && scene.is_on(&scene.other));
    let gpu_id = scene.devices.gpu_ids()[0];
    let later = scene.kfd.client(12);
    drop(std::mem::replace(&mut scene.other, (later, 0)));
    scene.other.1 = scene.other.0.open_queue(gpu_id).unwrap();
    scene.pass(30);
    assert!(scene.is_on(&scene.important) && scene.is_on(&scene.other));
}
