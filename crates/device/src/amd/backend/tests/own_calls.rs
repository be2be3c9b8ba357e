//! A patched KFD: all processes at once, without a session with any of them.

use gpreempt_core::priority::Priority;

use super::*;

pub(super) fn patched() -> Rules {
    Rules { own_calls: true, ..Rules::default() }
}

/// One more process on the device of a scene, with queues.
struct Another {
    child: Child,
    client: FakeClient,
    key: ProcessKey,
}

impl Another {
    fn new(scene: &Scene, queues: u32) -> Self {
        let child = Program::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let client = scene.kfd.client(key.pid);
        for _ in 0..queues {
            let queue = client.open_queue(GPU).unwrap();
            let folder = scene.root.join(format!("sys/proc/{}/queues/{queue}", key.pid));
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("gpuid", GPU), ("type", 0), ("size", 4096)] {
                fs::write(folder.join(file), value.to_string()).unwrap();
            }
        }
        Self { child, client, key }
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn set_scheduler(scene: &Scene, text: &str) {
    let folder = scene.root.join("parameters");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("kfd_preempt_enable"), text).unwrap();
}

/// The serial number of the first process's queue 0.
pub(super) fn serial(scene: &Scene) -> u64 {
    scene.kfd.serial(scene.key.pid, 0).unwrap()
}

/// What debugfs lists: that queue, with some serial number.
pub(super) fn list(scene: &Scene, serial: u64, mark: &str) {
    let pid = scene.key.pid;
    fs::create_dir_all(scene.root.join("debug")).unwrap();
    let line = format!(
        "pid {pid} queue 0 serial {serial} gpu_id {GPU} type 0 format 1 ring 1000 size 4096 \
         read 0 write 0{mark}\n"
    );
    let made = scene.root.join("made");
    fs::write(&made, line).unwrap();
    fs::rename(made, scene.root.join("debug/queues")).unwrap();
}

#[test]
fn queues_of_eight_processes_are_one_call_and_one_remap() {
    let mut scene = Scene::new("amd-own-eight", patched(), 8);
    let others: Vec<Another> = (0..7).map(|_| Another::new(&scene, 8)).collect();
    scene.adopt();
    for (number, other) in (2..).zip(&others) {
        scene.backend.adopt(TaskId(number), other.key).unwrap();
    }
    let queues: Vec<QueueId> = (0..64).map(|_| scene.wait_for_queue()).collect();
    let pids: Vec<u32> =
        others.iter().map(|other| other.client.pid()).chain([scene.key.pid]).collect();
    let all_run = |scene: &Scene, runs: bool| {
        let is_so = |pid: u32, queue| scene.kfd.is_running(pid, queue) == Some(runs);
        pids.iter().all(|pid| (0..8).all(|queue| is_so(*pid, queue)))
    };
    // This thread may be held up between two commands, so it may take a few tries.
    let mut fewest = u64::MAX;
    for _ in 0..50 {
        let before = scene.kfd.remaps();
        queues.iter().for_each(|queue| scene.preempt(*queue));
        for _ in 0..64 {
            scene.wait_for(|event| matches!(event, Event::Preempted { .. }).then_some(()));
        }
        fewest = fewest.min(scene.kfd.remaps() - before);
        assert!(all_run(&scene, false));
        for queue in &queues {
            scene.backend.submit(Command::Resume { queue: *queue });
        }
        for _ in 0..64 {
            scene.wait_for(|event| matches!(event, Event::Resumed { .. }).then_some(()));
        }
        assert!(all_run(&scene, true));
        if fewest == 1 {
            break;
        }
    }
    assert_eq!(fewest, 1);
    assert!(pids.iter().all(|pid| !scene.kfd.is_debugged(*pid)), "no session with anybody");
    assert_eq!(scene.acts(), Some(Vec::new()), "nothing has to be undone by others");
    assert_eq!(scene.backend.devices[0].calls, 1, "a switch costs one call");
    assert_eq!(scene.backend.way().name, "own-calls");
}

#[test]
fn every_queue_has_its_own_result_and_what_is_released_runs() {
    let mut scene = Scene::new("amd-own-results", patched(), 3);
    scene.adopt();
    let queues: Vec<QueueId> = (0..3).map(|_| scene.wait_for_queue()).collect();
    scene.kfd.break_queue(scene.key.pid, 1);
    scene.client().destroy_queue(2).unwrap();
    queues.iter().for_each(|queue| scene.preempt(*queue));
    let mut results = Vec::new();
    while results.len() < 3 {
        let result = scene.wait_for(|event| {
            if let Event::Preempted { queue } = *event {
                return Some((queue, None));
            }
            let Event::PreemptFailed { queue, fault } = *event else { return None };
            Some((queue, Some(fault)))
        });
        results.push(result);
    }
    let of = |queue: QueueId| results.iter().find(|(it, _)| *it == queue).unwrap().1;
    assert_eq!(of(queues[0]), None);
    assert_eq!(of(queues[1]), Some(Fault::Refused(5)));
    assert_eq!(of(queues[2]), Some(Fault::Gone));
    assert_eq!(scene.is_running(0), Some(false));
    scene.backend.release(TASK);
    scene.backend.release_all().unwrap();
    assert_eq!(scene.is_running(0), Some(true));
    assert_eq!(scene.acts(), None);
}

#[test]
fn what_is_held_is_asked_for_again_before_its_time_is_over() {
    let mut scene = Scene::new("amd-own-lease", patched(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    let turn = |scene: &mut Scene| {
        let since = Instant::now();
        while since.elapsed() < StdDuration::from_millis(1_500) {
            scene.backend.poll_event();
            std::thread::sleep(StdDuration::from_millis(5));
        }
    };
    // More than the kernel keeps it off without hearing of us; the fake one has a clock of its own.
    // This machine may be too slow for us to be heard of in time, so it may take a few tries.
    let is_kept = (0..10).any(|_| {
        let before = scene.kfd.remaps();
        for _ in 0..2 {
            scene.kfd.pass(Duration::from_millis(3_000));
            turn(&mut scene);
        }
        scene.is_running(0) == Some(false) && scene.kfd.remaps() == before
    });
    assert!(is_kept);
    scene.kfd.pass(Duration::from_millis(6_000));
    let until = Instant::now() + StdDuration::from_secs(20);
    while scene.is_running(0) == Some(true) && Instant::now() < until {
        scene.backend.poll_event();
        std::thread::sleep(StdDuration::from_millis(5));
    }
    assert_eq!(scene.is_running(0), Some(false), "it is taken off again");
}

#[test]
fn another_queue_of_the_same_name_is_another_queue() {
    let mut scene = Scene::new("amd-own-name", patched(), 1);
    let known = serial(&scene);
    list(&scene, known, "");
    scene.adopt();
    let first = scene.wait_for_queue();
    scene.stop(first);
    list(&scene, known, " preempted");
    // Destroyed and made again, at the same place.
    scene.client().destroy_queue(0).unwrap();
    list(&scene, known + 1, "");
    scene.wait_for(|event| (*event == Event::QueueVanished { queue: first }).then_some(()));
    let second = scene.wait_for_queue();
    assert_ne!(first, second);
    // The same, with the successor kept off by somebody.
    list(&scene, known + 2, " preempted");
    scene.wait_for(|event| (*event == Event::QueueVanished { queue: second }).then_some(()));
}

#[test]
fn a_queue_made_again_before_anybody_looked_is_not_taken_off() {
    let mut scene = Scene::new("amd-own-between", patched(), 1);
    list(&scene, serial(&scene), "");
    scene.adopt();
    let first = scene.wait_for_queue();
    scene.client().destroy_queue(0).unwrap();
    assert_eq!(scene.client().open_queue(GPU), Ok(0));
    scene.preempt(first);
    scene.wait_for(|event| {
        let Event::PreemptFailed { queue, fault } = *event else { return None };
        (queue == first && fault == Fault::Gone).then_some(())
    });
    assert_eq!(scene.is_running(0), Some(true));
}

#[test]
fn a_queue_in_the_place_of_one_that_was_off_is_not_taken_off_for_it() {
    let mut scene = Scene::new("amd-own-place", patched(), 1);
    let known = serial(&scene);
    list(&scene, known, "");
    scene.adopt();
    let first = scene.wait_for_queue();
    scene.stop(first);
    list(&scene, known, " preempted");
    scene.client().destroy_queue(0).unwrap();
    assert_eq!(scene.client().open_queue(GPU), Ok(0));
    list(&scene, serial(&scene), "");
    scene.wait_for(|event| (*event == Event::QueueVanished { queue: first }).then_some(()));
    // Longer than what is held is asked for again.
    let since = Instant::now();
    while since.elapsed() < StdDuration::from_millis(2_500) {
        scene.backend.poll_event();
        std::thread::sleep(StdDuration::from_millis(5));
    }
    assert_eq!(scene.is_running(0), Some(true));
}

#[test]
fn without_the_right_there_are_sessions_and_it_is_said_why() {
    let mut scene = Scene::with("amd-own-denied", &FakeKfd::with(patched()), 1, false);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    assert!(scene.kfd.is_debugged(scene.key.pid));
    let way = scene.backend.way();
    assert_eq!(way.name, "debug-trap");
    assert!(way.why_not_better.unwrap().contains("CAP_SYS_ADMIN"));
}

#[test]
fn the_kernel_that_schedules_is_told_priorities_and_nothing_else_is_done() {
    let mut scene = Scene::new("amd-own-yield", patched(), 1);
    set_scheduler(&scene, "N\n");
    scene.backend.set_priority(TASK, Priority::MAX);
    scene.adopt();
    scene.backend.set_priority(TASK, Priority::new(12).unwrap());
    scene.wait_for_queue();
    let pid = scene.key.pid;
    assert_eq!(scene.kfd.logical_priority(pid), None, "nobody schedules there");
    set_scheduler(&scene, "Y\n");
    let externally_scheduled = |wanted: bool| {
        move |event: &Event| {
            let Event::DeviceExternallyScheduled { externally_scheduled, .. } = event else {
                return None;
            };
            (*externally_scheduled == wanted).then_some(())
        }
    };
    scene.wait_for(externally_scheduled(true));
    assert_eq!(scene.kfd.logical_priority(pid), Some(12));
    assert!(matches!(scene.acts().as_deref(), Some([Act::Amd(AmdAct::Priority { .. })])));
    assert_eq!(scene.limit().unwrap().sentence, "scheduled by the kernel");
    assert_eq!(scene.backend.way().name, "kernel-scheduler");
    scene.backend.set_priority(TASK, Priority::new(3).unwrap());
    let until = Instant::now() + StdDuration::from_secs(20);
    while scene.kfd.logical_priority(pid) != Some(3) && Instant::now() < until {
        std::thread::sleep(StdDuration::from_millis(5));
    }
    assert_eq!(scene.kfd.logical_priority(pid), Some(3));
    set_scheduler(&scene, "N\n");
    scene.wait_for(externally_scheduled(false));
    assert_eq!(scene.limit(), None);
    scene.backend.release(TASK);
    scene.backend.release_all().unwrap();
    assert_eq!((scene.kfd.logical_priority(pid), scene.acts()), (None, None));
}
