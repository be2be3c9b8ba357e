//! The evictor program and its owner, against a driver in virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpreempt_stage::WorkFolder;

use super::change::{EvictChange, Member};
use super::evictor::{EvictJob, Evictor, EvictorReport, NotRestored};
use super::fake::{FakeDriver, Kill, Killed};
use super::order::{Line, Order, Outcome, Task};
use super::program::{Owner, carry_out};
use super::{CheckpointState, EvictDevice, EvictTarget, Step, left_evictions, measure};
use crate::controller::Waker;
use crate::journal::{Journal, OwnerJournal, ProcessRecord};
use crate::process::{ProcessKey, SleepingChild};
use crate::undo_log::UndoLog;

/// An owner that ends after so many looks, and reads what it is told.
struct FakeOwner {
    driver: FakeDriver,
    looks: u32,
    lines: Vec<Line>,
}

impl FakeOwner {
    fn new(driver: &FakeDriver) -> Self {
        Self { driver: driver.clone(), looks: u32::MAX, lines: Vec::new() }
    }
}

impl Owner for FakeOwner {
    fn lives(&mut self) -> bool {
        self.looks = self.looks.saturating_sub(1);
        self.looks > 0
    }

    fn tell(&mut self, line: Line) {
        self.lines.push(line);
    }

    fn sleep(&mut self, time: Duration) {
        self.driver.advance(time);
    }
}

/// A journal, and a tree of two processes that use the driver.
struct Scene {
    _folder: WorkFolder,
    root: PathBuf,
    session: OwnerJournal,
    keys: [ProcessKey; 2],
    driver: FakeDriver,
}

const GIB: u64 = 1 << 30;
const EVICT: Task = Task::Evict;
const RECOVER: Task = Task::Recover { is_patient: false };
const WAIT: Task = Task::Recover { is_patient: true };

impl Scene {
    fn new(name: &str) -> Self {
        Self::with(name, [1, 2].map(|pid| ProcessKey { pid, start_ticks: 1 }))
    }

    fn with(name: &str, keys: [ProcessKey; 2]) -> Self {
        let folder = WorkFolder::new(name).unwrap();
        let root = folder.path("journal");
        let session = Journal::at(root.clone()).unwrap().begin().unwrap();
        let scene = Self { _folder: folder, root, session, keys, driver: FakeDriver::with(&keys) };
        scene.record();
        scene
    }

    fn members(&self) -> Vec<Member> {
        let member = |key: &ProcessKey| {
            let target = EvictTarget { key: *key, device: EvictDevice::Nvidia };
            Member { bytes: GIB, lock_timeout_ms: 500, ..measure::unmeasured(&target) }
        };
        self.keys.iter().map(member).collect()
    }

    fn record(&self) {
        let journal = self.session.folder().to_owned();
        let change = EvictChange::Evict { journal, members: self.members(), since: 1 };
        for process in self.keys {
            let changes = vec![change.clone().into()];
            self.session.write(&ProcessRecord { process, changes, until_ns: None }).unwrap();
        }
    }

    fn order(&self, task: Task) -> Order {
        let journal = Some(self.session.folder().to_owned());
        Order { task, journal, members: self.members() }
    }

    fn run_for(&self, task: Task, owner: &mut FakeOwner) -> Outcome {
        let mut connect = |member: &Member| Ok(self.driver.calls(member.process));
        carry_out(&self.order(task), &mut connect, owner)
    }

    fn run(&self, task: Task) -> Outcome {
        self.run_for(task, &mut FakeOwner::new(&self.driver))
    }

    /// None if the program was killed.
    fn run_or_die(&self, task: Task) -> Option<Outcome> {
        match catch_unwind(AssertUnwindSafe(|| self.run(task))) {
            Ok(outcome) => Some(outcome),
            Err(panic) => {
                assert!(panic.downcast_ref::<Killed>().is_some(), "another panic");
                None
            }
        }
    }

    fn states(&self) -> [CheckpointState; 2] {
        self.keys.map(|key| self.driver.state_of(key))
    }

    fn assert_undone(&self, context: &str) {
        // What is in flight completes.
        self.driver.advance(Duration::from_secs(60));
        assert_eq!(self.states(), [CheckpointState::Running; 2], "{context}");
        assert!(self.session.is_empty().unwrap(), "{context}");
        assert!(!self.keys.iter().any(|key| self.driver.has_lost_slices(*key)), "{context}");
        let left = std::fs::read_dir(&self.root).unwrap().count();
        assert_eq!(left, 1, "{context}: only the session is left");
    }
}

#[test]
fn all_are_locked_before_any_is_evicted_and_restored_before_any_is_unlocked() {
    let scene = Scene::new("evict_order");
    let mut owner = FakeOwner::new(&scene.driver);
    assert_eq!(scene.run_for(EVICT, &mut owner), Outcome::Done { bytes: 2 * GIB });
    assert_eq!(scene.states(), [CheckpointState::Checkpointed; 2]);
    assert_eq!(scene.driver.take_log(), ["lock 1", "lock 2", "checkpoint 1", "checkpoint 2"]);
    assert_eq!(scene.run_for(RECOVER, &mut owner), Outcome::Done { bytes: 2 * GIB });
    assert_eq!(scene.driver.take_log(), ["restore 1", "restore 2", "unlock 1", "unlock 2"]);
    let steps = [Step::Locking, Step::Evicting, Step::Evicted, Step::Restoring, Step::Unlocking];
    assert_eq!(owner.lines, steps.map(|step| Line::Step { step }));
    scene.assert_undone("after a recovery");
}

#[test]
fn a_kernel_that_does_not_end_is_reported_and_nothing_stays_locked() {
    let scene = Scene::new("evict_endless");
    scene.driver.change(scene.keys[1], |process| process.is_endless = true);
    let Outcome::Failed { sentence, is_undone } = scene.run(EVICT) else { panic!() };
    assert!(is_undone && sentence.contains("a kernel did not end"), "{sentence}");
    assert_eq!(scene.states(), [CheckpointState::Running; 2]);
    assert_eq!(scene.driver.take_log(), ["lock 1", "unlock 1"]);
}

#[test]
fn what_another_program_evicted_is_not_touched() {
    let scene = Scene::new("evict_foreign");
    let moves = (CheckpointState::Running, CheckpointState::Locked);
    scene.driver.begin(scene.keys[0], moves).unwrap();
    scene.driver.advance(Duration::from_secs(1));
    let Outcome::Failed { sentence, is_undone: true } = scene.run(EVICT) else { panic!() };
    assert!(sentence.contains("locked by another program"), "{sentence}");
    assert_eq!(scene.driver.take_log(), [""; 0]);
}

#[test]
fn without_room_all_stay_evicted_and_a_patient_undo_waits() {
    let scene = Scene::new("evict_room");
    assert!(matches!(scene.run(EVICT), Outcome::Done { .. }));
    scene.driver.set_free(Some(GIB));
    scene.driver.take_log();
    assert_eq!(scene.run(RECOVER), Outcome::NoRoom { needed: 2 * GIB, free: GIB });
    assert_eq!(scene.driver.take_log(), [""; 0]);
    // Ten looks: the owner of a patient one ends before there is room.
    let mut owner = FakeOwner { looks: 10, ..FakeOwner::new(&scene.driver) };
    assert!(matches!(scene.run_for(WAIT, &mut owner), Outcome::NoRoom { .. }));
    assert_eq!(scene.session.len().unwrap(), 2, "the records stay");
    scene.driver.set_free(Some(2 * GIB));
    assert!(matches!(scene.run(WAIT), Outcome::Done { .. }));
    scene.assert_undone("with room");
}

#[test]
fn a_restore_that_finds_no_room_midway_evicts_again_what_it_restored() {
    let scene = Scene::new("evict_midway");
    assert!(matches!(scene.run(EVICT), Outcome::Done { .. }));
    // Another program takes memory between the check and the second restore.
    scene.driver.change(scene.keys[1], |process| process.bytes = 2 * GIB);
    scene.driver.set_free(Some(2 * GIB));
    assert!(matches!(scene.run(RECOVER), Outcome::NoRoom { .. }));
    assert_eq!(scene.states(), [CheckpointState::Checkpointed; 2]);
}

#[test]
fn an_evictor_without_owner_or_record_makes_no_call() {
    let scene = Scene::new("evict_no_owner");
    let mut owner = FakeOwner { looks: 1, ..FakeOwner::new(&scene.driver) };
    assert_eq!(scene.run_for(EVICT, &mut owner), Outcome::Stopped);
    assert_eq!(scene.run(RECOVER), Outcome::Done { bytes: 2 * GIB });
    assert!(scene.session.is_empty().unwrap());
    // The keeper has undone everything before this one began.
    assert_eq!(scene.run(EVICT), Outcome::Stopped);
    assert_eq!(scene.driver.take_log(), [""; 0]);
}

#[test]
fn members_that_end_meanwhile_are_dropped() {
    let scene = Scene::new("evict_ended");
    scene.driver.change(scene.keys[0], |process| process.has_ended = true);
    assert_eq!(scene.run(EVICT), Outcome::Done { bytes: GIB });
    assert_eq!(scene.driver.take_log(), ["lock 2", "checkpoint 2"]);
    scene.driver.change(scene.keys[1], |process| process.has_ended = true);
    assert_eq!(scene.run(RECOVER), Outcome::Gone);
    assert!(scene.session.is_empty().unwrap());
}

#[test]
fn any_kills_end_with_running_processes_and_without_a_record() {
    let kinds = [Kill::Before, Kill::During, Kill::After];
    let mut kills = 0;
    for first in (0..5).flat_map(|call| kinds.map(|kind| (call, kind))) {
        for second in (0..5).flat_map(|call| kinds.map(|kind| (call, kind))) {
            let context = format!("evictor killed at {first:?}, the next one at {second:?}");
            let scene = Scene::new("evict_kills");
            scene.driver.kill_in(first.0, first.1);
            kills += u32::from(scene.run_or_die(EVICT).is_none());
            scene.driver.spare();
            scene.driver.kill_in(second.0, second.1);
            let recovered = scene.run_or_die(RECOVER);
            kills += u32::from(recovered.is_none());
            scene.driver.spare();
            if recovered.is_none() {
                let outcome = scene.run(WAIT);
                assert!(matches!(outcome, Outcome::Done { .. }), "{context}: {outcome:?}");
            }
            scene.assert_undone(&context);
        }
    }
    assert!(kills > 250, "{kills}");
}

#[test]
fn refused_calls_are_tried_again_and_then_reported() {
    let scene = Scene::new("evict_refused");
    assert!(matches!(scene.run(EVICT), Outcome::Done { .. }));
    scene.driver.change(scene.keys[0], |process| process.refusals = 3);
    assert!(matches!(scene.run(RECOVER), Outcome::Done { .. }));
    scene.record();
    assert!(matches!(scene.run(EVICT), Outcome::Done { .. }));
    scene.driver.change(scene.keys[0], |process| process.refusals = 1000);
    let Outcome::Failed { sentence, is_undone: false } = scene.run(RECOVER) else { panic!() };
    assert!(sentence.contains("process 1: error 999"), "{sentence}");
}

#[test]
fn what_can_never_be_restored_is_not_tried_again_while_it_lives() {
    let mut child = SleepingChild::start();
    let other = SleepingChild::start();
    let scene = Scene::with("evict_lost", [child.key, other.key]);
    assert!(matches!(scene.run(EVICT), Outcome::Done { .. }));
    scene.driver.take_log();
    scene.driver.change(child.key, |process| process.is_lost = true);
    let Outcome::Lost { sentence } = scene.run(RECOVER) else { panic!() };
    assert!(sentence.contains("end it"), "{sentence}");
    // A patient one makes no further call until a process ends.
    let mut owner = FakeOwner { looks: 40, ..FakeOwner::new(&scene.driver) };
    assert!(matches!(scene.run_for(WAIT, &mut owner), Outcome::Lost { .. }));
    let refused = format!("refused {}", child.key.pid);
    let tries = scene.driver.take_log().into_iter().filter(|call| *call == refused).count();
    assert_eq!((tries, owner.looks), (2, 0));
    assert_eq!(scene.session.len().unwrap(), 2, "the records stay");
    child.kill();
    scene.driver.change(child.key, |process| process.has_ended = true);
    assert!(matches!(scene.run(WAIT), Outcome::Done { .. }));
    assert!(scene.session.is_empty().unwrap());
    assert_eq!(scene.driver.state_of(other.key), CheckpointState::Running);
}

/// An evictor whose programs run in its threads.
fn evictor(scene: &Arc<Mutex<Scene>>, undo_log: &UndoLog) -> Evictor {
    let (for_launch, for_measure) = (Arc::clone(scene), Arc::clone(scene));
    let launch = move |order: &Order, take: &mut dyn FnMut(Line)| {
        let scene = for_launch.lock().unwrap();
        let mut owner = FakeOwner::new(&scene.driver);
        let mut connect = |member: &Member| Ok(scene.driver.calls(member.process));
        let run = || carry_out(order, &mut connect, &mut owner);
        let outcome = catch_unwind(AssertUnwindSafe(run));
        drop(scene);
        owner.lines.into_iter().for_each(take);
        outcome.map_err(|_killed| std::io::Error::other("the evictor was killed"))
    };
    let measure = move |target: &EvictTarget| {
        let scene = for_measure.lock().unwrap();
        let found = scene.members().into_iter().find(|member| member.process == target.key);
        found.ok_or_else(|| "it uses no GPU".to_owned())
    };
    let waker = Waker::new().unwrap();
    Evictor::with(undo_log.clone(), waker, Box::new(launch), Box::new(measure))
}

/// The next report that is not a step.
fn next(evictor: &mut Evictor) -> EvictorReport {
    let since = Instant::now();
    while since.elapsed().as_secs() < 60 {
        match evictor.poll() {
            Some(EvictorReport::Step { .. }) => {}
            Some(report) => return report,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no report");
}

#[test]
fn a_job_is_evicted_restored_and_adopted() {
    let children = [SleepingChild::start(), SleepingChild::start()];
    let scene = Scene::with("evict_jobs", [children[0].key, children[1].key]);
    let (root, driver, keys) = (scene.root.clone(), scene.driver.clone(), scene.keys);
    let journal = Journal::at(root).unwrap();
    let scene = Arc::new(Mutex::new(scene));
    let undo_log = UndoLog::new(journal.begin().unwrap());
    let own = OwnerJournal::at(undo_log.folder());
    let mut first = evictor(&scene, &undo_log);
    let target = |key: &ProcessKey| EvictTarget { key: *key, device: EvictDevice::Nvidia };
    let processes: Vec<EvictTarget> = keys.iter().map(target).collect();
    let job = EvictJob { id: 5, processes, lock_timeout: Duration::from_millis(500) };
    first.restore(5);
    assert!(matches!(next(&mut first), EvictorReport::RestoreFailed { id: 5, .. }));
    // The program is killed.
    driver.kill_in(3, Kill::During);
    first.evict(job.clone());
    let EvictorReport::EvictFailed { sentence, is_undone: true, .. } = next(&mut first) else {
        panic!()
    };
    assert_eq!(sentence, "the evictor was killed; nothing was evicted");
    assert!(own.is_empty().unwrap());
    first.evict(job.clone());
    first.evict(EvictJob { id: 6, ..job });
    let refused = next(&mut first);
    assert!(matches!(refused, EvictorReport::EvictFailed { id: 6, is_undone: false, .. }));
    let EvictorReport::Evicted { id: 5, bytes, .. } = next(&mut first) else { panic!() };
    assert_eq!((bytes, own.len().unwrap()), (2 * GIB, 2));
    driver.set_free(Some(GIB));
    first.restore(5);
    let why = NotRestored::NoRoom { needed: 2 * GIB, free: GIB };
    assert_eq!(next(&mut first), EvictorReport::RestoreFailed { id: 5, why });
    assert!(left_evictions(&journal).unwrap().is_empty(), "its owner lives");
    // The owner of this folder has ended.
    let name = format!("session-{}-0-1", u32::MAX);
    let dead = own.folder().with_file_name(name);
    std::fs::rename(own.folder(), &dead).unwrap();
    let left = left_evictions(&journal).unwrap();
    assert_eq!((left.len(), left[0].bytes()), (1, 2 * GIB));
    let undo_log = UndoLog::new(journal.begin().unwrap());
    let mut second = evictor(&scene, &undo_log);
    second.adopt(9, &left[0]).unwrap();
    assert!(second.adopt(10, &left[0]).is_err(), "once");
    let own = OwnerJournal::at(undo_log.folder());
    assert_eq!((own.len().unwrap(), OwnerJournal::at(dead).len().unwrap()), (2, 0));
    driver.set_free(None);
    second.restore(9);
    assert!(matches!(next(&mut second), EvictorReport::Restored { id: 9, .. }));
    assert!(own.is_empty().unwrap());
    assert_eq!(keys.map(|key| driver.state_of(key)), [CheckpointState::Running; 2]);
}
