//! Processes with queues, debuggers with sessions, and what must be true of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;
use gpreempt_device::amd::abi::block::DESTROY_QUEUE;
use gpreempt_device::amd::abi::trap::RuntimeState;
use gpreempt_device::amd::door::{ClientDoor, Door};
use gpreempt_device::amd::session::{Outcome, Session};
use gpreempt_emu::kfd::driver::{Asked, Ticket};
use gpreempt_emu::kfd::{FakeClient, FakeDoor, FakeKfd, Rules, VirtualDevices};
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::prng::Prng;

/// Most processes at a time.
const PROCESSES_MAX: u64 = 5;
/// Most queues of one.
const QUEUES_MAX: usize = 6;
/// The first process; debuggers count from 1.
const FIRST_PID: u32 = 1_000;

/// What was put to the test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) preemptions: u64,
    pub(crate) deaths: u64,
    pub(crate) late_destroys: u64,
    /// Queues that had something left to do while they were seen to stand still.
    pub(crate) interrupted: u64,
}

/// A queue of a process.
#[derive(Debug)]
struct Queue {
    name: u32,
    device_id: QueueId,
    is_suspended: bool,
    /// Its process waits to destroy it.
    leaving: Option<Ticket>,
}

/// A process. What is dropped first detaches first.
#[derive(Debug)]
struct Process {
    session: Option<Session>,
    queues: Vec<Queue>,
    client: FakeClient,
}

/// Everything.
pub(crate) struct Station {
    prng: Prng,
    kfd: FakeKfd,
    devices: VirtualDevices,
    processes: Vec<Process>,
    debugger: u32,
    door: Arc<FakeDoor>,
    next_pid: u32,
    sums: Sums,
    pub(crate) cycles: u64,
}

impl Station {
    pub(crate) fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let mut model = DeviceModel::built_in("mi300x").unwrap();
        model.compute_units = 2;
        model.cwsr.queue_slots = 4;
        let devices = VirtualDevices::new(model, 2).unwrap();
        let rules = Rules {
            owner_may: !prng.chance(1, 4),
            by_queue: prng.chance(1, 3),
            ..Rules::default()
        };
        let kfd = FakeKfd::over(rules, devices.clone());
        let door = Arc::new(kfd.door(1));
        Self {
            prng,
            kfd,
            devices,
            processes: Vec::new(),
            debugger: 1,
            door,
            next_pid: FIRST_PID,
            sums: Sums::default(),
            cycles: 0,
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        Sums { preemptions: self.devices.preemptions(), ..self.sums }
    }

    /// Something happens, and then everything that must be so is looked at.
    pub(crate) fn step(&mut self) {
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

    /// Everything goes on, and all that was submitted is done, exactly once.
    pub(crate) fn finish(&mut self) {
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

    /// After a while everything is done that may run, exactly once, and nothing else.
    fn drain(&mut self) {
        let queues = || self.processes.iter().flat_map(|process| &process.queues);
        let before: Vec<_> = queues().map(|q| self.devices.progress(q.device_id)).collect();
        self.devices.run_for(Duration::from_millis(10_000));
        for (queue, before) in queues().zip(before) {
            let now = self.devices.progress(queue.device_id);
            if queue.is_suspended {
                assert_eq!(now, before, "{queue:?}");
                let is_open = now.is_some_and(|(submitted, completed)| completed < submitted);
                self.sums.interrupted += u64::from(is_open);
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

    /// A process is killed, whatever it does.
    fn end_process(&mut self, at: usize) {
        let Process { session, queues, client } = self.processes.swap_remove(at);
        drop(client);
        self.sums.deaths += 1;
        for queue in queues {
            assert_eq!(self.devices.progress(queue.device_id), None, "its queue is still there");
            if let Some(ticket) = queue.leaving {
                assert!(self.kfd.poll(ticket).is_some(), "nobody waits in a dead process");
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

    /// Some queues of a process are suspended in one call; at first there may be no session.
    fn suspend(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.session.is_none() {
            let door: Arc<dyn Door> = Arc::clone(&self.door) as Arc<dyn Door>;
            process.session = Some(Session::attach(door, process.client.pid()).unwrap());
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

    /// Nothing of a process is suspended any longer: whoever waited to destroy a queue goes on.
    fn all_resumed(&mut self, at: usize) {
        let (kfd, sums) = (&self.kfd, &mut self.sums);
        self.processes[at].queues.retain_mut(|queue| {
            queue.is_suspended = false;
            let Some(ticket) = queue.leaving else { return true };
            let answer = kfd.poll(ticket).expect("a resumed queue can be destroyed");
            assert_eq!(answer.result, Ok(()));
            sums.late_destroys += 1;
            false
        });
    }

    /// A queue is destroyed, or its process begins to wait if it is suspended.
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
        let asked = Asked { opcode, block, array: None, file: None, through: None };
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

    /// The runtime ends and begins again. It never waits: there is an answer in advance.
    fn restart_runtime(&mut self, at: usize) {
        for begins in [false, true] {
            let process = &mut self.processes[at];
            process.client.runtime_enable(begins).unwrap();
            let expected = if begins { RuntimeState::Enabled } else { RuntimeState::Disabled };
            if let Some(session) = &mut process.session {
                assert_eq!(session.handle_events().unwrap().runtime, Some(expected));
            }
            // The end of a runtime resumes everything.
            self.all_resumed(at);
        }
    }

    /// The debugger is killed: the kernel resumes everything, and another one can begin.
    fn kill_debugger(&mut self) {
        self.kfd.kill_debugger(self.debugger);
        self.sums.deaths += 1;
        for at in 0..self.processes.len() {
            if let Some(mut session) = self.processes[at].session.take() {
                assert!(session.handle_events().unwrap().is_over);
            }
            self.all_resumed(at);
        }
        self.debugger += 1;
        self.door = Arc::new(self.kfd.door(self.debugger));
    }

    fn detach(&mut self, at: usize) {
        if let Some(session) = self.processes[at].session.take() {
            session.detach().unwrap();
        }
        self.all_resumed(at);
    }

    /// What is suspended is off, and nothing else is kept off.
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
