//! Suspends and resumes queues many times while processes, queues and debuggers come and go: no
//! kernel is lost and no process hangs.
//!
//! In virtual time and one process: the rules are those of the emulated KFD, the device is the
//! simulator's. `GPREEMPT_KFD_CYCLES` is the number of cycles (default 2,000), `GPREEMPT_KFD_SEED`
//! the first seed.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;
use gpreempt_device::amd::KfdClientCalls;
use gpreempt_device::amd::abi::block::DESTROY_QUEUE;
use gpreempt_device::amd::abi::trap::RuntimeState;
use gpreempt_device::amd::session::{DebugSession, Outcome};
use gpreempt_emu::kfd::driver::{IoctlRequest, Ticket};
use gpreempt_emu::kfd::{FakeClient, FakeDebugger, FakeKfd, KfdProfile, VirtualDevices};
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::prng::Prng;

/// Then the next seed starts with another kernel profile.
const CYCLES_OF_A_SEED: u64 = 500;
/// Longer than the cycles of a seed take on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(600);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn cycles_lose_no_kernel_and_no_process_hangs() {
    let (cycles, first) = (number("GPREEMPT_KFD_CYCLES", 2_000), number("GPREEMPT_KFD_SEED", 1));
    let (mut done, mut preemptions, mut deaths, mut late, mut interrupted) = (0, 0, 0, 0, 0);
    for seed in first.. {
        if done >= cycles {
            break;
        }
        let (sender, receiver) = mpsc::channel();
        // A seed that hangs does so in a thread of its own, so that the test can name it.
        let thread = std::thread::spawn(move || {
            let mut test = CycleTest::new(seed);
            while test.cycles < CYCLES_OF_A_SEED {
                test.step();
            }
            test.finish();
            let _ = sender.send(());
            test.counts()
        });
        match receiver.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed} hangs"),
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {}
        }
        let Ok(counts) = thread.join() else {
            panic!("seed {seed} failed: GPREEMPT_KFD_SEED={seed}")
        };
        done += CYCLES_OF_A_SEED;
        preemptions += counts.preemptions;
        deaths += counts.deaths;
        late += counts.late_destroys;
        interrupted += counts.interrupted;
    }
    println!(
        "{done} cycles, {preemptions} preemptions of running waves, {deaths} deaths, {late} queues \
         destroyed while suspended, {interrupted} without progress despite work"
    );
    let tested = [preemptions, deaths, late, interrupted];
    assert!(tested.iter().all(|count| *count > 0), "nothing was put to the test");
}

const PROCESSES_MAX: u64 = 5;
const QUEUES_MAX: usize = 6;
/// Debuggers count from 1.
const FIRST_PID: u32 = 1_000;

/// What the test exercised.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    preemptions: u64,
    deaths: u64,
    late_destroys: u64,
    /// Queues with unfinished work that made no progress while suspended.
    interrupted: u64,
}

#[derive(Debug)]
struct Queue {
    name: u32,
    device_id: QueueId,
    is_suspended: bool,
    /// A blocked `DESTROY_QUEUE`.
    leaving: Option<Ticket>,
}

/// Fields drop in this order: the session detaches first.
#[derive(Debug)]
struct Process {
    session: Option<DebugSession>,
    queues: Vec<Queue>,
    client: FakeClient,
}

struct CycleTest {
    prng: Prng,
    kfd: FakeKfd,
    devices: VirtualDevices,
    processes: Vec<Process>,
    debugger_pid: u32,
    debugger: Arc<FakeDebugger>,
    next_pid: u32,
    counts: Counts,
    cycles: u64,
}

impl CycleTest {
    fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let mut model = DeviceModel::built_in("mi300x").unwrap();
        model.compute_units = 2;
        model.cwsr.queue_slots = 4;
        let devices = VirtualDevices::new(model, 2).unwrap();
        let rules = KfdProfile {
            owner_may: !prng.chance(1, 4),
            by_queue: prng.chance(1, 3),
            ..KfdProfile::default()
        };
        let kfd = FakeKfd::over(rules, devices.clone());
        let debugger = Arc::new(kfd.debugger(1));
        Self {
            prng,
            kfd,
            devices,
            processes: Vec::new(),
            debugger_pid: 1,
            debugger,
            next_pid: FIRST_PID,
            counts: Counts::default(),
            cycles: 0,
        }
    }

    fn counts(&self) -> Counts {
        Counts { preemptions: self.devices.preemptions(), ..self.counts }
    }

    /// Makes a random change and checks all conditions.
    fn step(&mut self) {
        if self.processes.is_empty() {
            self.begin_process();
        }
        let at = usize::try_from(self.prng.below(self.processes.len() as u64)).unwrap();
        match self.prng.below(100) {
            0..30 => self.submit(at),
            30..50 => self.suspend(at),
            50..70 => self.resume(at),
            70..78 => self.open_queue(at),
            78..84 => self.destroy_queue(at),
            84..88 => self.begin_process(),
            88..90 => self.end_process(at),
            90..92 => self.restart_runtime(at),
            92..94 => self.kill_debugger(),
            94..96 => self.detach(at),
            96..97 => self.drain(),
            _ => {}
        }
        let time = Duration::from_nanos(self.prng.below(50_000));
        self.devices.run_for(time);
        self.check();
    }

    /// Resumes all queues and checks that every submitted kernel ran exactly once.
    fn finish(&mut self) {
        for at in 0..self.processes.len() {
            self.detach(at);
        }
        self.drain();
        self.check();
        for process in &self.processes {
            assert_eq!(self.kfd.waiting(process.client.pid()), 0);
        }
        assert_eq!(self.devices.faults(), 0);
    }

    /// Runs the devices until every resumed queue has finished exactly once, and checks that
    /// suspended ones made no progress.
    fn drain(&mut self) {
        let queues = || self.processes.iter().flat_map(|process| &process.queues);
        let before: Vec<_> = queues().map(|q| self.devices.progress(q.device_id)).collect();
        self.devices.run_for(Duration::from_millis(10_000));
        for (queue, before) in queues().zip(before) {
            let now = self.devices.progress(queue.device_id);
            if queue.is_suspended {
                assert_eq!(now, before, "{queue:?}");
                let is_open = now.is_some_and(|(submitted, completed)| completed < submitted);
                self.counts.interrupted += u64::from(is_open);
            } else {
                let is_exact = self.devices.is_exact(queue.device_id);
                assert_eq!(is_exact, Some(true), "{queue:?} {now:?}");
            }
        }
    }

    fn begin_process(&mut self) {
        if self.processes.len() as u64 >= PROCESSES_MAX {
            return;
        }
        let client = self.kfd.client(self.next_pid);
        self.next_pid += 1;
        client.runtime_enable(true).unwrap();
        self.processes.push(Process { session: None, queues: Vec::new(), client });
        self.open_queue(self.processes.len() - 1);
    }

    fn end_process(&mut self, at: usize) {
        let Process { session, queues, client } = self.processes.swap_remove(at);
        drop(client);
        self.counts.deaths += 1;
        for queue in queues {
            assert_eq!(self.devices.progress(queue.device_id), None, "its queue is still there");
            if let Some(ticket) = queue.leaving {
                assert!(self.kfd.poll(ticket).is_some(), "no call of a dead process waits");
            }
        }
        if let Some(mut session) = session {
            assert!(session.handle_events().unwrap().is_over);
        }
    }

    fn open_queue(&mut self, at: usize) {
        let gpu = *self.prng.pick(&self.devices.gpu_ids());
        let process = &mut self.processes[at];
        if process.queues.len() >= QUEUES_MAX {
            return;
        }
        let name = process.client.open_queue(gpu).unwrap();
        let device_id = self.kfd.device_id(process.client.pid(), name).unwrap();
        process.queues.push(Queue { name, device_id, is_suspended: false, leaving: None });
    }

    fn submit(&mut self, at: usize) {
        for queue in &self.processes[at].queues {
            let work_ns = u32::try_from(self.prng.below(400_000)).unwrap();
            self.devices.submit(queue.device_id, work_ns);
        }
    }

    /// Suspends some queues of a process in one call, starting a session if there is none.
    fn suspend(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.session.is_none() {
            let debugger = Arc::clone(&self.debugger);
            process.session = Some(DebugSession::attach(debugger, process.client.pid()).unwrap());
        }
        let chosen: BTreeSet<usize> =
            (0..process.queues.len()).filter(|_| self.prng.chance(2, 3)).collect();
        let names: Vec<u32> = chosen.iter().map(|&index| process.queues[index].name).collect();
        let session = process.session.as_mut().unwrap();
        let outcomes = session.suspend(&names, 0).unwrap();
        for (&index, outcome) in chosen.iter().zip(outcomes) {
            let queue = &mut process.queues[index];
            if queue.leaving.is_some() {
                assert_eq!(outcome, Outcome::Gone, "{queue:?}");
            } else {
                assert_eq!(outcome, Outcome::Done, "{queue:?}");
                queue.is_suspended = true;
            }
        }
    }

    fn resume(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let Some(session) = &mut process.session else { return };
        let suspended = process.queues.iter().filter(|queue| queue.is_suspended);
        let names: Vec<u32> = suspended.map(|queue| queue.name).collect();
        if names.is_empty() {
            return;
        }
        let outcomes = session.resume(&names).unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
        self.cycles += 1;
        self.all_resumed(at);
    }

    /// No queue of a process is suspended any longer, so blocked `DESTROY_QUEUE` calls complete.
    fn all_resumed(&mut self, at: usize) {
        let (kfd, counts) = (&self.kfd, &mut self.counts);
        self.processes[at].queues.retain_mut(|queue| {
            queue.is_suspended = false;
            let Some(ticket) = queue.leaving else { return true };
            let answer = kfd.poll(ticket).expect("a resumed queue can be destroyed");
            assert_eq!(answer.result, Ok(()));
            counts.late_destroys += 1;
            false
        });
    }

    /// Destroys a queue. The call blocks if the queue is suspended.
    fn destroy_queue(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.queues.is_empty() {
            return;
        }
        let index = usize::try_from(self.prng.below(process.queues.len() as u64)).unwrap();
        let queue = &mut process.queues[index];
        if queue.leaving.is_some() {
            return;
        }
        let mut block = queue.name.to_le_bytes().to_vec();
        block.resize(8, 0);
        let opcode = DESTROY_QUEUE;
        let asked = IoctlRequest { opcode, block, array: None, file: None, through: None };
        let ticket = self.kfd.begin(process.client.caller(), asked);
        match self.kfd.poll(ticket) {
            Some(answer) => {
                assert!(!queue.is_suspended && answer.result.is_ok(), "{queue:?} {answer:?}");
                process.queues.remove(index);
            }
            None => {
                assert!(queue.is_suspended, "{queue:?} is not suspended, and still waited for");
                queue.leaving = Some(ticket);
            }
        }
    }

    /// The runtime ends and begins again without blocking, thanks to replies in advance.
    fn restart_runtime(&mut self, at: usize) {
        for begins in [false, true] {
            let process = &mut self.processes[at];
            process.client.runtime_enable(begins).unwrap();
            let expected = if begins { RuntimeState::Enabled } else { RuntimeState::Disabled };
            if let Some(session) = &mut process.session {
                assert_eq!(session.handle_events().unwrap().runtime, Some(expected));
            }
            // The end of a runtime resumes every queue.
            self.all_resumed(at);
        }
    }

    /// Kills the debugger: the kernel resumes every queue, and another session can be started.
    fn kill_debugger(&mut self) {
        self.kfd.kill_debugger(self.debugger_pid);
        self.counts.deaths += 1;
        for at in 0..self.processes.len() {
            if let Some(mut session) = self.processes[at].session.take() {
                assert!(session.handle_events().unwrap().is_over);
            }
            self.all_resumed(at);
        }
        self.debugger_pid += 1;
        self.debugger = Arc::new(self.kfd.debugger(self.debugger_pid));
    }

    fn detach(&mut self, at: usize) {
        if let Some(session) = self.processes[at].session.take() {
            session.detach().unwrap();
        }
        self.all_resumed(at);
    }

    /// Suspended queues are off, and no others.
    fn check(&self) {
        for process in &self.processes {
            let pid = process.client.pid();
            assert_eq!(self.kfd.is_debugged(pid), process.session.is_some(), "{pid}");
            for queue in &process.queues {
                let may_run = self.kfd.is_running(pid, queue.name);
                assert_eq!(may_run, Some(!queue.is_suspended), "{pid} {queue:?}");
                if queue.is_suspended {
                    let is_resident = self.devices.is_resident(queue.device_id);
                    assert_eq!(is_resident, Some(false), "{pid} {queue:?}");
                }
            }
        }
    }
}
