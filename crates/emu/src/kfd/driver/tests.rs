use std::os::fd::{AsFd, OwnedFd};

use gpreempt_core::time::Instant;
use gpreempt_kfd::abi::block::{CREATE_QUEUE, CreateQueue, GET_VERSION, UpdateQueue};
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::trap::QUEUE_INVALID;
use gpreempt_kfd::{DebuggerIoctl, KfdClientCalls, KfdDebugCalls};
use proptest::prelude::*;

use super::*;
use crate::kfd::driver_env::InstantDevices;
use crate::kfd::{FakeClient, FakeKfd};

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap()
}

/// A process with queues and a registered runtime that debugs itself: that needs no tracer.
fn debugged(
    kfd: &FakeKfd,
    pid: u32,
    queues: u32,
) -> (FakeClient, crate::kfd::FakeDebugger, OwnedFd) {
    let client = kfd.client(pid);
    client.runtime_enable(true).unwrap();
    let debugger = kfd.debugger(pid);
    let (events, writer) = pipe();
    debugger.enable(pid, Exceptions::WANTED, writer.as_fd()).unwrap();
    for _ in 0..queues {
        client.open_queue(1).unwrap();
    }
    (client, debugger, events)
}

fn caller(pid: u32) -> Caller {
    Caller { pid, thread: pid, may_checkpoint: true, is_admin: true }
}

#[test]
fn refusals_are_the_kernels() {
    let kfd = FakeKfd::new();
    let (client, debugger, _events) = debugged(&kfd, 7, 1);
    let writer = pipe().1;
    let enable =
        |debugger: &dyn KfdDebugCalls| debugger.enable(7, Exceptions::WANTED, writer.as_fd()).err();
    assert_eq!(enable(&debugger), Some(Errno::ALREADY));
    assert_eq!(enable(&kfd.debugger(1)), Some(Errno::PERM), "not its tracer");
    assert_eq!(debugger.disable(8), Err(Errno::SRCH));
    // A queue whose mark is not cleared cannot be suspended, nor one that does not exist.
    let mut names = [0, 5];
    debugger.suspend_queues(7, &mut names, 0).unwrap();
    assert_eq!(names, [QUEUE_INVALID, 5 | QUEUE_INVALID]);
    assert_eq!(client.runtime_enable(true), Err(Errno::BUSY));
    debugger.send_runtime_event(7).unwrap();
    client.runtime_enable(false).unwrap();
    assert_eq!(debugger.suspend_queues(7, &mut [0], 0), Err(Errno::PERM), "no runtime");
    debugger.disable(7).unwrap();
    assert_eq!(debugger.suspend_queues(7, &mut [0], 0), Err(Errno::INVAL), "no session");
    assert_eq!(client.destroy_queue(9), Err(Errno::INVAL));
    let mut block: CreateQueue = zerocopy::FromZeros::new_zeroed();
    for (percentage, priority, ring_size) in [(101, 0, 0), (100, 16, 0), (100, 0, 3)] {
        (block.percentage, block.priority, block.ring_size) = (percentage, priority, ring_size);
        assert_eq!(client.create_queue(&mut block), Err(Errno::INVAL));
    }
}

#[test]
fn a_refused_debugger_becomes_the_owner_in_the_kernel() {
    let kfd = FakeKfd::new();
    let client = kfd.client(7);
    client.runtime_enable(true).unwrap();
    let queue = client.open_queue(1).unwrap();
    let (first, second) = (kfd.debugger(1), kfd.debugger(2));
    let writer = pipe().1;
    let begin = |debugger: &dyn KfdDebugCalls| {
        std::thread::scope(|scope| {
            let errand = scope.spawn(|| {
                debugger.seize(7).unwrap();
                debugger.enable(7, Exceptions::WANTED, writer.as_fd()).err()
            });
            errand.join().unwrap()
        })
    };
    assert_eq!(begin(&first), None);
    first.queues(7, Exceptions::QUEUE_NEW, 1).unwrap();
    first.suspend_queues(7, &mut [queue], 0).unwrap();
    while first.tracer_of(7).is_some() {
        std::thread::yield_now();
    }
    assert_eq!(begin(&second), Some(Errno::ALREADY));
    // The kernel no longer accepts the first debugger, and its end resumes nothing.
    assert_eq!(first.resume_queues(7, &mut [queue]), Err(Errno::PERM));
    drop(first);
    assert_eq!(kfd.is_running(7, queue), Some(false));
    drop(second);
    assert_eq!(kfd.is_running(7, queue), Some(true));
}

#[test]
fn a_process_disables_its_own_queue_with_percentage_zero() {
    let kfd = FakeKfd::new();
    let client = kfd.client(7);
    let queue = client.open_queue(1).unwrap();
    let mut block: UpdateQueue = zerocopy::FromZeros::new_zeroed();
    (block.queue_id, block.priority) = (queue, 15);
    for percentage in [0, 100] {
        block.percentage = percentage;
        client.update_queue(&block).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(percentage == 100));
    }
    block.queue_id = 9;
    assert_eq!(client.update_queue(&block), Err(Errno::FAULT));
}

#[test]
fn every_call_is_one_remap_per_device() {
    let kfd = FakeKfd::new();
    let mut eight = Vec::new();
    for pid in 1..=8 {
        let (client, debugger, events) = debugged(&kfd, pid, 8);
        debugger.queues(pid, Exceptions::QUEUE_NEW, 64).unwrap();
        eight.push((client, debugger, events));
    }
    let before = kfd.remaps();
    for (client, debugger, _) in &eight {
        debugger.suspend_queues(client.pid(), &mut [0, 1, 2, 3, 4, 5, 6, 7], 0).unwrap();
    }
    assert_eq!(kfd.remaps() - before, 8, "eight processes are eight remaps");
    let other = eight[0].0.open_queue(2).unwrap();
    eight[0].1.queues(1, Exceptions::QUEUE_NEW, 64).unwrap();
    let before = kfd.remaps();
    eight[0].1.suspend_queues(1, &mut [0, other], 0).unwrap();
    assert_eq!(kfd.remaps() - before, 2, "two devices are two");

    let single = FakeKfd::with(KfdProfile { by_queue: true, ..KfdProfile::default() });
    let (_client, debugger, _events) = debugged(&single, 7, 8);
    debugger.queues(7, Exceptions::QUEUE_NEW, 64).unwrap();
    debugger.suspend_queues(7, &mut [0, 1], 0).unwrap();
    assert_eq!((single.remaps(), single.is_running(7, 1)), (0, Some(false)));
}

#[test]
fn entries_of_another_size_are_truncated_or_padded() {
    let kfd = FakeKfd::new();
    let (_client, _debugger, _events) = debugged(&kfd, 7, 3);
    for (entry_size, expected) in [(8, 8), (64, 64), (80, 64)] {
        let block = gpreempt_kfd::abi::trap::Snapshot {
            exceptions: Exceptions::NONE,
            entries: 0,
            count: 2,
            entry_size,
        };
        let operation = gpreempt_kfd::abi::trap::Operation::QueueSnapshot;
        let trap = gpreempt_kfd::abi::trap::Trap::new(7, operation, &block);
        let bytes = usize::try_from(entry_size).unwrap() * 2;
        let request = IoctlRequest {
            opcode: DBG_TRAP,
            block: zerocopy::IntoBytes::as_bytes(&trap).to_vec(),
            array: Some(vec![0xee; bytes]),
            file: None,
            through: None,
        };
        let ticket = kfd.begin(caller(7), request);
        let answer = kfd.poll(ticket).unwrap();
        assert_eq!(answer.result, Ok(()));
        assert_eq!((answer.block[24], u32::from(answer.block[28])), (3, expected));
        let array = answer.array.unwrap();
        assert_eq!(array.last() == Some(&0xee), entry_size == 80);
    }
}

#[test]
fn waiting_calls_are_interrupted_when_their_process_ends() {
    let mut driver = Driver::new(KfdProfile::default());
    let mut devices = InstantDevices::default();
    let mut env = DriverEnv { devices: &mut devices, tracer_of: &|_| None, now: Instant::ZERO };
    driver.open(7);
    driver.open(7);
    let ask = |opcode: u32, block: Vec<u8>, file| IoctlRequest {
        opcode,
        block,
        array: Some(vec![0; 64]),
        file,
        through: None,
    };
    let begin = |mode: u8| {
        let mut block = vec![0; 16];
        block[8] = mode;
        ask(block::RUNTIME_ENABLE, block, None)
    };
    let mut trap = vec![7, 0, 0, 0];
    trap.resize(32, 0);
    driver.call(&mut env, Ticket(1), caller(7), ask(DBG_TRAP, trap, Some(pipe().1)));
    driver.call(&mut env, Ticket(2), caller(7), begin(1));
    assert_eq!(driver.poll_answer().map(|(ticket, a)| (ticket.0, a.result)), Some((1, Ok(()))));
    assert_eq!((driver.poll_answer(), driver.waiting(7)), (None, 1));
    driver.close(&mut env, 7);
    assert!(driver.knows(7), "it has the device open twice");
    driver.close(&mut env, 7);
    let (ticket, answer) = driver.poll_answer().unwrap();
    assert_eq!((ticket.0, answer.result), (2, Err(Errno::INTR)));
    assert!(!driver.knows(7));
}

#[test]
fn unknown_numbers_and_short_blocks_have_different_errors() {
    let kfd = FakeKfd::new();
    let _client = kfd.client(7);
    let ask = |opcode, length, through| {
        let request =
            IoctlRequest { opcode, block: vec![0; length], array: None, file: None, through };
        kfd.poll(kfd.begin(caller(7), request)).unwrap().result
    };
    assert_eq!(ask(GET_VERSION, 8, None), Ok(()));
    assert_eq!(ask(GET_VERSION, 7, None), Err(Errno::FAULT));
    assert_eq!(
        ask(GET_VERSION, 8, Some(8)),
        Err(Errno::BADF),
        "through the file of another process"
    );
    for unknown in [0x87, 0x88, 0x27, 0x00, 0xff] {
        let opcode = 0xc008_4b00 | unknown;
        assert_eq!(ask(opcode, 8, None), Err(Errno::NOTTY), "{unknown:#x}");
    }
    assert_eq!(ask(0xc008_4600, 8, None), Err(Errno::NOTTY), "another driver's");
    // A newer program's longer block is accepted.
    assert_eq!(ask(0xc060_4b02, 96, None), Ok(()));
    assert_ne!(CREATE_QUEUE, 0xc060_4b02);
}

proptest! {
    /// Every call is answered, or waits for something that can still happen.
    #[test]
    fn any_bytes_are_answered(
        calls in prop::collection::vec(
            (any::<u8>(), prop::collection::vec(any::<u8>(), 0..120), any::<u8>(), 0_u32..16),
            1..60,
        ),
    ) {
        let kfd = FakeKfd::with(KfdProfile { patched: true, ..KfdProfile::default() });
        let (_client, _debugger, _events) = debugged(&kfd, 7, 2);
        for (number, mut block, length, operation) in calls {
            let known = [1, 2, 3, 7, 0x22, 0x25, 0x26, 0x40, 0x41, 0x42, number];
            let number = u32::from(known[usize::from(number) % known.len()]);
            if number == 0x26 && block.len() >= 8 {
                block[..8].copy_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0]);
                block[4..8].copy_from_slice(&operation.to_le_bytes());
            }
            let size = u32::try_from(block.len()).unwrap();
            let opcode = size << 16 | u32::from(b'K') << 8 | number;
            let array = (length > 20).then(|| vec![0; usize::from(length)]);
            let file = (operation > 8).then(|| pipe().1);
            let request = IoctlRequest { opcode, block, array: array.clone(), file, through: None };
            let ticket = kfd.begin(caller(7), request);
            if let Some(answer) = kfd.poll(ticket) {
                prop_assert_eq!(answer.block.len(), usize::try_from(size).unwrap());
                prop_assert_eq!(answer.array.map(|a| a.len()), array.map(|a| a.len()));
            } else {
                prop_assert!(kfd.waiting(7) > 0);
            }
        }
    }
}
