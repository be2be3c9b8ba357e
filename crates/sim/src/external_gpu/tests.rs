use gpreempt_core::busy_periods::BusyTime;
use std::collections::BTreeSet;
use std::sync::Mutex;

use super::*;
use crate::kernels::built_in;
use crate::reference::{Grid, run_reference};
use crate::ring::{PACKET_BYTES, Packet};

/// A ring whose client is the test.
#[derive(Debug, Default)]
struct Shared {
    put: u64,
    get: u64,
    completed: u64,
    measured: BusyTime,
    needs_doorbell: bool,
    slots: Vec<[u8; PACKET_BYTES]>,
}

fn slot(shared: &Shared, index: u64) -> usize {
    usize::try_from(index).unwrap() % shared.slots.len()
}

#[derive(Clone, Debug)]
struct Page(Arc<Mutex<Shared>>);

impl Page {
    fn new(capacity: usize) -> Self {
        let slots = vec![[0; PACKET_BYTES]; capacity];
        Self(Arc::new(Mutex::new(Shared { slots, needs_doorbell: true, ..Shared::default() })))
    }

    fn completed(&self) -> u64 {
        self.0.lock().unwrap().completed
    }

    fn write(&self, bytes: [u8; PACKET_BYTES]) {
        let mut shared = self.0.lock().unwrap();
        let at = slot(&shared, shared.put);
        shared.slots[at] = bytes;
        shared.put += 1;
    }

    fn submit(&self, gpu: &mut ExternalGpu, queue: QueueId, work_us: u32) {
        let number = self.0.lock().unwrap().put;
        self.write(packet(number, work_us).encode());
        if std::mem::take(&mut self.0.lock().unwrap().needs_doorbell) {
            gpu.ring_doorbell(queue);
        }
    }
}

impl RingPage for Page {
    fn capacity(&self) -> u64 {
        self.0.lock().unwrap().slots.len() as u64
    }

    fn put(&self, seen: u64) -> u64 {
        let mut shared = self.0.lock().unwrap();
        shared.needs_doorbell = shared.put == seen;
        shared.put
    }

    fn packet(&self, index: u64) -> [u8; PACKET_BYTES] {
        let shared = self.0.lock().unwrap();
        shared.slots[slot(&shared, index)]
    }

    fn fetched(&self, count: u64) {
        self.0.lock().unwrap().get = count;
    }

    fn completed(&self, count: u64, _latency: Duration) {
        self.0.lock().unwrap().completed = count;
    }

    fn measured(&self, time: BusyTime) {
        let mut shared = self.0.lock().unwrap();
        shared.measured.busy += time.busy;
        shared.measured.off += time.off;
    }
}

const GRID: Grid = Grid { groups: 3, waves: 1 };
const MEMORY: usize = 128;

fn packet(number: u64, work_us: u32) -> Packet {
    let low = u32::try_from(number).unwrap();
    let arguments = [0, low, work_us * 1_000, 128];
    let Grid { groups, waves } = GRID;
    Packet { kernel: 0, groups, waves, arguments, number: 99, rung_at: Instant::ZERO }
}

fn program() -> Program {
    Program::assemble("mix", built_in("mix").unwrap()).unwrap()
}

fn device(machine: MachineKind) -> ExternalGpu {
    let model = DeviceModel::built_in("h200").unwrap();
    ExternalGpu::new(model, machine, 2, vec![program()]).unwrap()
}

fn at_us(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

fn run_to(gpu: &mut ExternalGpu, us: u64) {
    assert_eq!(gpu.advance_to(at_us(us), 1_000_000), Progress::Reached);
    assert_eq!(gpu.now(), at_us(us));
}

fn expected(launches: u64, work_us: u32) -> Vec<u8> {
    let mut memory = Memory::new(MEMORY);
    for number in 0..launches {
        let arguments = packet(number, work_us).arguments;
        run_reference(&program(), GRID, arguments, &mut memory).unwrap();
    }
    memory.bytes().to_vec()
}

/// Opens a queue with its own memory.
fn open(gpu: &mut ExternalGpu, queue: QueueId, device: usize, capacity: usize) -> (MemoryId, Page) {
    let (memory, page) = (gpu.open_memory(MEMORY), Page::new(capacity));
    gpu.open_queue(queue, device, memory, Box::new(page.clone()));
    (memory, page)
}

#[test]
fn a_preempted_kernel_resumes_where_it_stopped() {
    for machine in [MachineKind::Tsg, MachineKind::Cwsr] {
        let mut gpu = device(machine);
        let queue = QueueId(7);
        let (memory, page) = open(&mut gpu, queue, 1, 4);
        for _ in 0..4 {
            page.submit(&mut gpu, queue, 8_000);
        }
        run_to(&mut gpu, 3_000);
        gpu.call(CallId(1), queue, Call::Stop);
        run_to(&mut gpu, 5_000);
        assert_eq!(gpu.poll_event(), Some(ExternalGpuEvent::Done(CallId(1))));
        let stopped = gpu.usage(queue).unwrap();
        assert!(stopped.is_stopped && stopped.busy < Duration::from_millis(4), "{stopped:?}");
        run_to(&mut gpu, 900_000);
        assert_eq!((page.completed(), gpu.poll_event()), (0, None));
        assert_eq!(gpu.usage(queue), Some(stopped));
        gpu.call(CallId(2), queue, Call::Resume);
        run_to(&mut gpu, 940_000);
        assert_eq!(gpu.poll_event(), Some(ExternalGpuEvent::Done(CallId(2))));
        assert_eq!(page.completed(), 4);
        assert_eq!(gpu.memory(memory), expected(4, 8_000));
        let busy = gpu.usage(queue).unwrap().busy;
        assert!(busy >= Duration::from_millis(32) && busy < Duration::from_millis(33), "{busy}");
        assert_eq!(gpu.next_at(), None);
    }
}

#[test]
fn a_parked_queue_finishes_fetched_launches_and_fetches_none() {
    for machine in [MachineKind::Tsg, MachineKind::Cwsr] {
        let mut gpu = device(machine);
        let queue = QueueId(7);
        let (memory, page) = open(&mut gpu, queue, 1, 16);
        for _ in 0..10 {
            page.submit(&mut gpu, queue, 8_000);
        }
        run_to(&mut gpu, 3_000);
        gpu.call(CallId(1), queue, Call::Park);
        run_to(&mut gpu, 500_000);
        assert_eq!(gpu.poll_event(), Some(ExternalGpuEvent::Done(CallId(1))));
        let parked = page.completed();
        assert!((1..10).contains(&parked), "{machine:?}: {parked}");
        assert_eq!(page.0.lock().unwrap().get, parked, "{machine:?}");
        let usage = gpu.usage(queue).unwrap();
        assert!(usage.is_parked && !usage.is_stopped, "{usage:?}");
        // Doorbells, preempts and resumes do not restart fetching.
        page.submit(&mut gpu, queue, 8_000);
        gpu.ring_doorbell(queue);
        gpu.call(CallId(2), queue, Call::Stop);
        gpu.call(CallId(3), queue, Call::Resume);
        run_to(&mut gpu, 600_000);
        assert_eq!((page.completed(), page.0.lock().unwrap().get), (parked, parked), "{machine:?}");
        gpu.call(CallId(4), queue, Call::Unpark);
        run_to(&mut gpu, 900_000);
        assert_eq!(page.completed(), 11);
        assert_eq!(gpu.memory(memory), expected(11, 8_000));
    }
}

#[test]
fn packets_written_without_a_doorbell_are_found_while_there_is_work() {
    let mut gpu = device(MachineKind::Cwsr);
    let queue = QueueId(1);
    let (memory, page) = open(&mut gpu, queue, 0, 8);
    let mut written = 0;
    let mut rung = 0;
    let mut now = 0;
    while written < 50 {
        let shared = page.0.lock().unwrap();
        let (free, needs) = (shared.put - shared.get < 8, shared.needs_doorbell);
        drop(shared);
        if free {
            page.submit(&mut gpu, queue, 100);
            written += 1;
            rung += u64::from(needs);
        }
        now += 30;
        run_to(&mut gpu, now);
    }
    run_to(&mut gpu, 100_000);
    assert_eq!(page.completed(), 50);
    assert!(rung < 25, "{rung} doorbells");
    assert_eq!(gpu.memory(memory), expected(50, 100));
}

/// A name, and what a hostile client writes.
type InvalidWrite = (&'static str, Box<dyn Fn(&Page)>);

#[test]
fn invalid_packets_cost_a_client_its_own_queue_only() {
    let good = packet(0, 100);
    let writes: [InvalidWrite; 5] = [
        ("no packet", Box::new(|page| page.write([7; PACKET_BYTES]))),
        ("kernel", Box::new(move |page| page.write(Packet { kernel: 1, ..good }.encode()))),
        ("groups", Box::new(move |page| page.write(Packet { groups: 0, ..good }.encode()))),
        ("waves", Box::new(move |page| page.write(Packet { waves: 99, ..good }.encode()))),
        ("index", Box::new(|page| page.0.lock().unwrap().put = u64::MAX)),
    ];
    for (name, spoil) in writes {
        let mut gpu = device(MachineKind::Tsg);
        let memory = gpu.open_memory(MEMORY);
        let pages = [Page::new(4), Page::new(4)];
        for (queue, page) in (0..).zip(&pages) {
            gpu.open_queue(QueueId(queue), 0, memory, Box::new(page.clone()));
        }
        pages[1].submit(&mut gpu, QueueId(1), 8_000);
        pages[0].submit(&mut gpu, QueueId(0), 1_000);
        run_to(&mut gpu, 100);
        spoil(&pages[0]);
        gpu.ring_doorbell(QueueId(0));
        run_to(&mut gpu, 30_000);
        let event = gpu.poll_event();
        let is_fault = |event: &ExternalGpuEvent| {
            matches!(event, ExternalGpuEvent::Faulted { queue: QueueId(0), .. })
        };
        assert!(event.as_ref().is_some_and(is_fault), "{name}: {event:?}");
        assert_eq!((gpu.poll_event(), gpu.usage(QueueId(0))), (None, None), "{name}");
        assert_eq!(pages[1].completed(), 1, "{name}");
    }
}

#[test]
fn wrong_addresses_are_faults_of_their_queue() {
    let mut gpu = device(MachineKind::Cwsr);
    let small = gpu.open_memory(64);
    let (queue, page) = (QueueId(3), Page::new(4));
    gpu.open_queue(queue, 0, small, Box::new(page.clone()));
    page.submit(&mut gpu, queue, 100);
    run_to(&mut gpu, 1_000);
    assert!(matches!(gpu.poll_event(), Some(ExternalGpuEvent::Faulted { .. })));
    assert_eq!(gpu.usage(queue), None);
    gpu.close_memory(small);
    assert_eq!(gpu.open_memory(8), small);
}

#[test]
fn calls_for_closed_queues_are_answered_and_forgotten_calls_are_not() {
    let mut gpu = device(MachineKind::Tsg);
    let memory = gpu.open_memory(MEMORY);
    let page = Page::new(4);
    for queue in 0..3 {
        gpu.open_queue(QueueId(queue), 0, memory, Box::new(page.clone()));
    }
    for (call, queue) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
        gpu.call(CallId(call), QueueId(queue), Call::Stop);
    }
    gpu.forget_call(CallId(2));
    gpu.close_queue(QueueId(0));
    gpu.call(CallId(4), QueueId(0), Call::Resume);
    run_to(&mut gpu, 10_000);
    let events: Vec<_> = std::iter::from_fn(|| gpu.poll_event()).collect();
    let gone = |id| ExternalGpuEvent::Gone(CallId(id));
    assert_eq!(events, [gone(1), gone(0), gone(4), ExternalGpuEvent::Done(CallId(3))]);
    assert!(!gpu.usage(QueueId(1)).unwrap().is_stopped);
}

#[test]
fn a_hold_keeps_the_engine_and_the_watcher_sleeps_without_work() {
    let mut gpu = device(MachineKind::Tsg);
    let (_, high) = open(&mut gpu, QueueId(1), 0, 4);
    let (_, other) = open(&mut gpu, QueueId(2), 0, 4);
    gpu.permit_hold(QueueId(1));
    run_to(&mut gpu, 1_000);
    assert_eq!(gpu.next_at(), None);
    high.submit(&mut gpu, QueueId(1), 100);
    run_to(&mut gpu, 1_100);
    other.submit(&mut gpu, QueueId(2), 500);
    // The high queue is done and quiet, and still on the engine.
    run_to(&mut gpu, 1_350);
    assert_eq!((high.completed(), other.completed()), (1, 0));
    assert_eq!(gpu.usage(QueueId(2)).unwrap().busy, Duration::ZERO);
    run_to(&mut gpu, 9_000);
    assert_eq!(other.completed(), 1);
    assert_eq!(gpu.next_at(), None);
}

#[test]
fn a_packet_that_the_hold_watcher_saw_before_its_doorbell_is_fetched() {
    let mut gpu = device(MachineKind::Tsg);
    let (_, page) = open(&mut gpu, QueueId(1), 0, 4);
    gpu.permit_hold(QueueId(1));
    page.submit(&mut gpu, QueueId(1), 50);
    run_to(&mut gpu, 200);
    assert_eq!(page.completed(), 1);
    page.write(packet(1, 50).encode());
    // During the hold the watcher polls every 100 us.
    run_to(&mut gpu, 350);
    gpu.ring_doorbell(QueueId(1));
    run_to(&mut gpu, 2_000);
    assert_eq!(page.completed(), 2);
}

#[test]
fn too_many_steps_leave_the_device_behind_and_it_catches_up() {
    let mut gpu = device(MachineKind::Tsg);
    let (_, page) = open(&mut gpu, QueueId(1), 0, 4);
    page.submit(&mut gpu, QueueId(1), 100);
    assert_eq!(gpu.advance_to(at_us(1_000), 2), Progress::Behind);
    assert!(gpu.now() < at_us(1_000));
    run_to(&mut gpu, 1_000);
    assert_eq!(page.completed(), 1);
}

#[test]
fn a_remap_preempts_all_queues_and_resumes_those_on_the_list() {
    let mut gpu = device(MachineKind::Cwsr);
    let memories: Vec<_> = (0..4).map(|_| gpu.open_memory(MEMORY)).collect();
    let pages: Vec<_> = (0..4).map(|_| Page::new(4)).collect();
    for (at, page) in pages.iter().enumerate() {
        let (queue, device) = (QueueId(at as u64), usize::from(at == 3));
        gpu.open_stopped_queue(queue, device, memories[at], Box::new(page.clone()));
        page.submit(&mut gpu, queue, 8_000);
    }
    run_to(&mut gpu, 1_000);
    assert!((0..4).all(|queue| gpu.usage(QueueId(queue)).unwrap().busy.is_zero()));
    gpu.remap(CallId(1), 0, [QueueId(0), QueueId(1), QueueId(3)].into());
    gpu.call(CallId(2), QueueId(3), Call::Resume);
    run_to(&mut gpu, 3_000);
    let events: Vec<_> = std::iter::from_fn(|| gpu.poll_event()).collect();
    let done = |id| ExternalGpuEvent::Done(CallId(id));
    assert_eq!(events.len(), 2, "{events:?}");
    // Only the first device was remapped, and only those on the list are on.
    let before = gpu.preemptions();
    gpu.remap(CallId(3), 0, [QueueId(1), QueueId(2)].into());
    run_to(&mut gpu, 6_000);
    assert_eq!((gpu.poll_event(), gpu.preemptions() - before), (Some(done(3)), 2));
    let off = gpu.usage(QueueId(0)).unwrap();
    assert!(off.is_stopped && !off.is_resident && off.saved_waves > 0, "{off:?}");
    assert!((1..4).all(|queue| !gpu.usage(QueueId(queue)).unwrap().is_stopped));
    // A remap does not wait for a queue that is closed meanwhile.
    gpu.remap(CallId(4), 0, BTreeSet::new());
    gpu.close_queue(QueueId(2));
    run_to(&mut gpu, 9_000);
    assert_eq!(gpu.poll_event(), Some(done(4)));
    run_to(&mut gpu, 90_000);
    assert_eq!((pages[0].completed(), pages[1].completed(), pages[3].completed()), (0, 0, 1));
    gpu.remap(CallId(5), 0, [QueueId(0), QueueId(1), QueueId(2)].into());
    run_to(&mut gpu, 120_000);
    for at in [0, 1, 3] {
        assert_eq!(pages[at].completed(), 1);
        assert_eq!(gpu.memory(memories[at]), expected(1, 8_000));
    }
}

/// Lock, checkpoint, restore, unlock.
mod checkpoints {
    use super::*;
    use crate::process_memory::CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    use crate::process_memory::{CheckpointState, CheckpointStep};

    const GIB: u64 = 1 << 30;
    const P: ProcessId = ProcessId(70);

    /// A process with one queue and 8 GiB on the first device.
    fn process(gpu: &mut ExternalGpu, queue: QueueId) -> (MemoryId, Page) {
        let (memory, page) = open(gpu, queue, 0, 16);
        gpu.join_process(memory, P);
        gpu.allocate(P, memory, 0, 8 * GIB).unwrap();
        (memory, page)
    }

    fn begin(gpu: &mut ExternalGpu, step: CheckpointStep) -> Result<(), CheckpointError> {
        gpu.begin_step(CallId(5), P, step)
    }

    /// Begins a step and runs until it has ended: its result and how long it took, in milliseconds.
    fn take(gpu: &mut ExternalGpu, step: CheckpointStep) -> (Result<(), CheckpointError>, u64) {
        let from = gpu.now();
        begin(gpu, step).unwrap();
        loop {
            if let Some(event) = gpu.poll_event() {
                let ExternalGpuEvent::StepEnded { call: CallId(5), process: P, result } = event
                else {
                    panic!("{event:?}")
                };
                return (result, gpu.now().since(from).as_nanos() / 1_000_000);
            }
            let next = gpu.next_at().expect("the step ends");
            gpu.advance_to(next, 1);
        }
    }

    fn state(gpu: &ExternalGpu) -> CheckpointState {
        gpu.checkpoint_state(P).unwrap()
    }

    /// What the process has on the device and on the host, in GiB, and what the device has used.
    fn sizes(gpu: &ExternalGpu) -> (u64, u64, u64) {
        let usage = gpu.memory_usage()[0];
        (usage.on_device / GIB, usage.on_host / GIB, gpu.memory_used(0) / GIB)
    }

    #[test]
    fn a_process_is_moved_to_the_host_and_back_exactly_in_the_times_of_the_model() {
        for machine in [MachineKind::Tsg, MachineKind::Cwsr] {
            let mut gpu = device(machine);
            let queue = QueueId(7);
            let (memory, page) = process(&mut gpu, queue);
            for _ in 0..10 {
                page.submit(&mut gpu, queue, 8_000);
            }
            run_to(&mut gpu, 3_000);
            let (result, took) = take(&mut gpu, Lock(Some(Duration::from_millis(1_000))));
            // What was fetched has finished, and nothing else.
            let done = page.completed();
            assert_eq!((result, state(&gpu)), (Ok(()), CheckpointState::Locked));
            assert!((1..4).contains(&done) && (75..110).contains(&took), "{done} after {took} ms");
            assert_eq!(page.0.lock().unwrap().get, done);

            assert_eq!(take(&mut gpu, Checkpoint), (Ok(()), 4_994));
            assert_eq!((state(&gpu), sizes(&gpu)), (CheckpointState::Checkpointed, (0, 8, 0)));
            assert!(gpu.memory(memory).iter().all(|byte| *byte == 0xdb));
            // Doorbells, preempts and resumes do not restart it.
            page.submit(&mut gpu, queue, 8_000);
            gpu.ring_doorbell(queue);
            gpu.call(CallId(2), queue, Call::Stop);
            gpu.call(CallId(3), queue, Call::Resume);
            let later = gpu.now().as_nanos() / 1_000 + 1_000_000;
            run_to(&mut gpu, later);
            assert_eq!(std::iter::from_fn(|| gpu.poll_event()).count(), 2);
            assert_eq!((page.completed(), page.0.lock().unwrap().get), (done, done), "{machine:?}");

            assert_eq!(take(&mut gpu, Restore), (Ok(()), 1_917));
            assert_eq!((state(&gpu), sizes(&gpu)), (CheckpointState::Locked, (8, 0, 8)));
            assert_eq!(gpu.memory(memory), expected(done, 8_000));
            assert_eq!(take(&mut gpu, Unlock), (Ok(()), 2));
            assert_eq!(state(&gpu), CheckpointState::Running);
            let later = gpu.now().as_nanos() / 1_000 + 200_000;
            run_to(&mut gpu, later);
            assert_eq!(page.completed(), 11);
            assert_eq!(gpu.memory(memory), expected(11, 8_000));
        }
    }

    #[test]
    fn a_lock_of_a_stopped_queue_or_an_endless_kernel_gives_up_and_changes_nothing() {
        for stops in [true, false] {
            let mut gpu = device(MachineKind::Tsg);
            let queue = QueueId(7);
            let (memory, page) = process(&mut gpu, queue);
            let work_us = if stops { 8_000 } else { 4_000_000 };
            page.submit(&mut gpu, queue, work_us);
            page.submit(&mut gpu, queue, work_us);
            run_to(&mut gpu, 500);
            if stops {
                gpu.call(CallId(1), queue, Call::Stop);
                run_to(&mut gpu, 3_000);
                gpu.poll_event();
            }
            let timeout = Duration::from_millis(300);
            assert_eq!(take(&mut gpu, Lock(Some(timeout))), (Err(CheckpointError::NotReady), 300));
            assert_eq!((state(&gpu), page.completed()), (CheckpointState::Running, 0));
            if stops {
                // A lock without a limit succeeds once the queue is resumed.
                begin(&mut gpu, Lock(None)).unwrap();
                assert_eq!(begin(&mut gpu, Unlock), Err(CheckpointError::Busy));
                gpu.call(CallId(2), queue, Call::Resume);
                run_to(&mut gpu, 1_000_000);
                assert_eq!((state(&gpu), page.completed()), (CheckpointState::Locked, 2));
                assert_eq!(gpu.memory(memory), expected(2, work_us));
            } else {
                page.submit(&mut gpu, queue, work_us);
                run_to(&mut gpu, 13_000_000);
                assert_eq!(page.completed(), 3);
            }
        }
    }

    #[test]
    fn steps_are_refused_in_the_wrong_state_and_where_there_is_no_room() {
        let mut gpu = device(MachineKind::Tsg);
        assert_eq!(begin(&mut gpu, Unlock), Err(CheckpointError::NoSuchProcess));
        process(&mut gpu, QueueId(7));
        let lock = Lock(None);
        let wrong = |state| Err(CheckpointError::WrongState(state));
        for (refused, right, begins_in) in [
            ([Checkpoint, Restore, Unlock], lock, CheckpointState::Running),
            ([lock, Restore, lock], Checkpoint, CheckpointState::Locked),
            ([lock, Checkpoint, Unlock], Restore, CheckpointState::Checkpointed),
        ] {
            for step in refused {
                assert_eq!(begin(&mut gpu, step), wrong(begins_in), "{step:?}");
            }
            if begins_in == CheckpointState::Checkpointed {
                // Another process takes the room meanwhile.
                let other = gpu.open_memory(0);
                gpu.join_process(other, ProcessId(71));
                let size = gpu.memory_size();
                gpu.allocate(ProcessId(71), other, 0, size - 7 * GIB).unwrap();
                assert_eq!(begin(&mut gpu, Restore), Err(CheckpointError::NoRoom));
                assert_eq!((state(&gpu), sizes(&gpu).1), (begins_in, 8));
                gpu.close_memory(other);
            }
            assert_eq!(take(&mut gpu, right).0, Ok(()));
        }
        assert_eq!(take(&mut gpu, Unlock).0, Ok(()));
    }

    #[test]
    fn a_restore_forgets_slices_and_a_lock_ends_holds() {
        let mut gpu = device(MachineKind::Tsg);
        let queue = QueueId(7);
        let (_, page) = process(&mut gpu, queue);
        gpu.call(CallId(1), queue, Call::SetSlice(Some(Duration::from_micros(10))));
        gpu.permit_hold(queue);
        page.submit(&mut gpu, queue, 100);
        run_to(&mut gpu, 1_000);
        gpu.poll_event();
        for step in [Lock(None), Checkpoint] {
            assert_eq!(take(&mut gpu, step).0, Ok(()));
            assert_eq!(gpu.usage(queue).unwrap().slice, Duration::from_micros(10));
        }
        assert_eq!(gpu.next_at(), None);
        assert_eq!(take(&mut gpu, Restore).0, Ok(()));
        assert_eq!(gpu.usage(queue).unwrap().slice, Duration::from_micros(2_048));
    }

    #[test]
    fn the_end_of_a_process_ends_its_step_and_frees_everything_at_once() {
        for steps in
            [[Lock(None)].as_slice(), &[Lock(None), Checkpoint], &[Lock(None), Checkpoint, Restore]]
        {
            let mut gpu = device(MachineKind::Tsg);
            let queue = QueueId(7);
            let (memory, page) = process(&mut gpu, queue);
            page.submit(&mut gpu, queue, 1_000);
            run_to(&mut gpu, 100);
            let (last, before) = steps.split_last().unwrap();
            for step in before {
                assert_eq!(take(&mut gpu, *step).0, Ok(()));
            }
            begin(&mut gpu, *last).unwrap();
            let later = gpu.now().as_nanos() / 1_000 + 500;
            run_to(&mut gpu, later);
            gpu.close_queue(queue);
            gpu.close_memory(memory);
            let gone = Err(CheckpointError::Gone);
            let event = ExternalGpuEvent::StepEnded { call: CallId(5), process: P, result: gone };
            assert_eq!(gpu.poll_event(), Some(event), "{last:?}");
            assert_eq!((gpu.memory_used(0), gpu.checkpoint_state(P)), (0, None));
            // Another process with that pid gets nothing of the old step.
            process(&mut gpu, QueueId(8));
            let later = gpu.now().as_nanos() / 1_000 + 10_000_000;
            run_to(&mut gpu, later);
            assert_eq!((gpu.poll_event(), state(&gpu)), (None, CheckpointState::Running));
        }
    }
}
