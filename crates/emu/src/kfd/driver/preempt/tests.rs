use std::os::fd::AsFd;

use gpreempt_core::time::Duration;
use gpreempt_kfd::abi::block::CriuOperation;
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::patched::{PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY};
use gpreempt_kfd::{DebuggerIoctl, KfdClientCalls, KfdDebugCalls, KfdPatchedCalls, QueueSelector};
use proptest::prelude::*;
use zerocopy::FromZeros;

use super::*;
use crate::kfd::driver::Answer;
use crate::kfd::{FakeClient, FakeKfd, KfdProfile};

fn patched() -> FakeKfd {
    FakeKfd::with(KfdProfile { patched: true, ..KfdProfile::default() })
}

fn entries(queues: &[(u32, u32)]) -> Vec<PreemptEntry> {
    let entry = |&(pid, queue_id)| PreemptEntry { pid, queue_id, ..PreemptEntry::default() };
    queues.iter().map(entry).collect()
}

fn preempt(debugger: &dyn KfdPatchedCalls, queues: &[(u32, u32)]) -> Result<Vec<i32>, Errno> {
    let mut entries = entries(queues);
    debugger.preempt_queues(&mut entries, None, 0)?;
    Ok(entries.iter().map(|entry| entry.result).collect())
}

fn resume(
    debugger: &dyn KfdPatchedCalls,
    queues: &[(u32, u32)],
    any: bool,
) -> Result<Vec<i32>, Errno> {
    let mut entries = entries(queues);
    debugger.unpreempt_queues(&mut entries, any)?;
    Ok(entries.iter().map(|entry| entry.result).collect())
}

fn ask(kfd: &FakeKfd, opcode: u32, block: &[u8], array: Option<Vec<u8>>, admin: bool) -> Answer {
    let caller = Caller { pid: 7, thread: 7, may_checkpoint: admin, is_admin: admin };
    let request = IoctlRequest { opcode, block: block.to_vec(), array, file: None, through: None };
    kfd.poll(kfd.begin(caller, request)).unwrap()
}

fn number(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

fn clients(kfd: &FakeKfd, count: u32, queues: u32) -> Vec<FakeClient> {
    let open = |pid| {
        let client = kfd.client(pid);
        for _ in 0..queues {
            client.open_queue(1).unwrap();
        }
        client
    };
    (10..10 + count).map(open).collect()
}

#[test]
fn queues_of_eight_processes_are_preempted_with_one_remap() {
    let kfd = patched();
    let clients = clients(&kfd, 8, 8);
    let debugger = kfd.debugger(1);
    let all: Vec<(u32, u32)> =
        clients.iter().flat_map(|c| (0..8).map(|queue| (c.pid(), queue))).collect();
    let before = kfd.remaps();
    assert_eq!(preempt(&debugger, &all).unwrap(), vec![0; 64]);
    assert_eq!(kfd.remaps() - before, 1);
    assert!(all.iter().all(|(pid, queue)| kfd.is_running(*pid, *queue) == Some(false)));
    assert_eq!(preempt(&debugger, &all).unwrap(), vec![0; 64]);
    assert_eq!(kfd.remaps() - before, 1, "what is off is off");
    assert_eq!(resume(&debugger, &all, false).unwrap(), vec![0; 64]);
    assert_eq!(kfd.remaps() - before, 2);
    assert!(all.iter().all(|(pid, queue)| kfd.is_running(*pid, *queue) == Some(true)));
    assert!(clients.iter().all(|client| !kfd.is_debugged(client.pid())));
    // Each device has its own run list.
    let other = clients[0].open_queue(2).unwrap();
    let before = kfd.remaps();
    preempt(&debugger, &[(10, 0), (10, other), (11, 0)]).unwrap();
    assert_eq!(kfd.remaps() - before, 2);
}

#[test]
fn single_queues_are_unmapped_where_the_device_can() {
    let kfd = FakeKfd::with(KfdProfile { patched: true, by_queue: true, ..KfdProfile::default() });
    let _clients = clients(&kfd, 2, 2);
    assert_eq!(preempt(&kfd.debugger(1), &[(10, 0), (11, 1)]).unwrap(), [0, 0]);
    assert_eq!((kfd.remaps(), kfd.is_running(11, 1)), (0, Some(true)), "the owner is gone");
    let debugger = kfd.debugger(1);
    preempt(&debugger, &[(10, 0), (11, 1)]).unwrap();
    assert_eq!((kfd.is_running(10, 1), kfd.is_running(11, 1)), (Some(true), Some(false)));
}

#[test]
fn every_queue_has_a_result_of_its_own() {
    let kfd = patched();
    let clients = clients(&kfd, 2, 3);
    let debugger = kfd.debugger(1);
    kfd.break_queue(10, 1);
    let results =
        preempt(&debugger, &[(10, 0), (10, 1), (10, 9), (99, 0), (11, 2), (0, 0)]).unwrap();
    let expected = [Errno::IO, Errno::NOENT, Errno::SRCH].map(number);
    assert_eq!(results, [0, expected[0], expected[1], expected[2], 0, expected[1]]);
    assert_eq!(kfd.is_running(10, 1), Some(true));
    // A queue that is being destroyed cannot be preempted; a preempted one can be destroyed.
    clients[0].destroy_queue(0).unwrap();
    assert_eq!(preempt(&debugger, &[(10, 0)]).unwrap(), [number(Errno::NOENT)]);
}

#[test]
fn a_preempted_queue_belongs_to_its_owner_until_that_ends() {
    let kfd = patched();
    let _clients = clients(&kfd, 1, 2);
    let (first, second) = (kfd.debugger(1), kfd.debugger(2));
    preempt(&first, &[(10, 0)]).unwrap();
    let busy = number(Errno::BUSY);
    assert_eq!(preempt(&second, &[(10, 0), (10, 1)]).unwrap(), [busy, 0]);
    assert_eq!(resume(&second, &[(10, 0)], false).unwrap(), [busy]);
    drop(second);
    assert_eq!((kfd.is_running(10, 0), kfd.is_running(10, 1)), (Some(false), Some(true)));
    let third = kfd.debugger(3);
    assert_eq!(resume(&third, &[(10, 0)], true).unwrap(), [0]);
    assert_eq!(kfd.is_running(10, 0), Some(true));
    preempt(&first, &[(10, 0), (10, 1)]).unwrap();
    let before = kfd.remaps();
    drop(first);
    assert_eq!((kfd.is_running(10, 0), kfd.is_running(10, 1)), (Some(true), Some(true)));
    assert_eq!(kfd.remaps() - before, 1, "all of them in one");
}

#[test]
fn a_timeout_resumes_the_queue_and_can_be_renewed() {
    let kfd = patched();
    let _clients = clients(&kfd, 1, 2);
    let debugger = kfd.debugger(1);
    debugger.preempt_queues(&mut entries(&[(10, 0)]), Some(3), 100).unwrap();
    debugger.preempt_queues(&mut entries(&[(10, 1)]), None, 0).unwrap();
    kfd.pass(Duration::from_millis(90));
    let before = kfd.remaps();
    debugger.preempt_queues(&mut entries(&[(10, 0)]), None, 100).unwrap();
    kfd.pass(Duration::from_millis(90));
    assert_eq!((kfd.is_running(10, 0), kfd.remaps() - before), (Some(false), 0));
    kfd.pass(Duration::from_millis(20));
    assert_eq!((kfd.is_running(10, 0), kfd.remaps() - before), (Some(true), 1));
    assert_eq!(kfd.is_running(10, 1), Some(false), "for as long as its owner lives");
}

#[test]
fn suspension_pause_and_preemption_are_independent() {
    let kfd = patched();
    let client = kfd.client(10);
    client.runtime_enable(true).unwrap();
    client.open_queue(1).unwrap();
    let debugger = kfd.debugger(1);
    let own = kfd.debugger(10);
    let (_events, writer) = rustix::pipe::pipe().unwrap();
    own.enable(10, Exceptions::WANTED, writer.as_fd()).unwrap();
    own.queues(10, Exceptions::QUEUE_NEW, 8).unwrap();
    own.suspend_queues(10, &mut [0], 0).unwrap();
    preempt(&debugger, &[(10, 0)]).unwrap();
    own.resume_queues(10, &mut [0]).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(false));
    own.suspend_queues(10, &mut [0], 0).unwrap();
    resume(&debugger, &[(10, 0)], false).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(false));
    own.disable(10).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(true));
    let criu = |operation| {
        std::thread::scope(|scope| {
            let errand = || {
                debugger.seize(10).unwrap();
                debugger.criu(10, operation).unwrap();
            };
            scope.spawn(errand).join().unwrap();
        });
        while debugger.tracer_of(10).is_some() {
            std::thread::yield_now();
        }
    };
    preempt(&debugger, &[(10, 0)]).unwrap();
    criu(CriuOperation::ProcessInfo);
    resume(&debugger, &[(10, 0)], false).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(false));
    preempt(&debugger, &[(10, 0)]).unwrap();
    criu(CriuOperation::Unpause);
    assert_eq!(kfd.is_running(10, 0), Some(false));
    resume(&debugger, &[(10, 0)], false).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(true));
}

#[test]
fn an_unprivileged_process_preempts_only_its_own_queues() {
    let kfd = patched();
    let clients = clients(&kfd, 2, 1);
    let denied = Err(Errno::PERM);
    assert_eq!(preempt(&clients[0], &[(0, 0), (10, 0)]).unwrap(), [0, 0]);
    assert_eq!(preempt(&clients[0], &[(0, 0), (11, 0)]), denied);
    assert_eq!(resume(&clients[0], &[(0, 0)], true), denied);
    assert_eq!(preempt(&kfd.debugger(1).without_capability(), &[(10, 0)]), denied);
    assert_eq!(kfd.is_running(11, 0), Some(true));
    let one = |id| QueueSelector::One { id, serial: 0 };
    let set = |pid, queue, priority| clients[0].set_preempt_priority(pid, queue, priority);
    assert_eq!(set(0, one(0), 7), Ok(1));
    assert_eq!(set(10, QueueSelector::All, PRIORITY_DEFAULT), Ok(1));
    assert_eq!(set(0, one(0), 8), Err(Errno::PERM));
    assert_eq!(set(11, one(0), 1), Err(Errno::PERM));
    assert_eq!(set(0, one(5), 1), Err(Errno::NOENT));
    let debugger = kfd.debugger(1);
    assert_eq!(debugger.set_preempt_priority(11, QueueSelector::All, 15), Ok(1));
    assert_eq!(debugger.set_preempt_priority(12, one(0), 15), Err(Errno::SRCH));
    for priority in [16, 0xfe, u32::MAX] {
        assert_eq!(debugger.set_preempt_priority(11, one(0), priority), Err(Errno::INVAL));
    }
}

#[test]
fn a_queue_created_again_is_stale() {
    let kfd = patched();
    let client = kfd.client(10);
    let debugger = kfd.debugger(1);
    client.open_queue(1).unwrap();
    let serial = kfd.serial(10, 0).unwrap();
    client.destroy_queue(0).unwrap();
    assert_eq!(client.open_queue(1).unwrap(), 0, "its name is given again");
    let successor = kfd.serial(10, 0).unwrap();
    assert!(successor > serial);
    let stale = number(Errno::STALE);
    let entry = |serial| PreemptEntry { pid: 10, serial, ..PreemptEntry::default() };
    for (serial, result) in [(serial, stale), (u64::MAX, stale), (successor, 0)] {
        let mut entries = [entry(serial)];
        debugger.preempt_queues(&mut entries, None, 0).unwrap();
        assert_eq!(entries[0].result, result);
        assert_eq!(kfd.is_running(10, 0), Some(result != 0));
    }
    let mut entries = [entry(serial)];
    debugger.unpreempt_queues(&mut entries, false).unwrap();
    assert_eq!((entries[0].result, kfd.is_running(10, 0)), (stale, Some(false)));
    let set = |serial| debugger.set_preempt_priority(10, QueueSelector::One { id: 0, serial }, 9);
    assert_eq!((set(serial), set(successor)), (Err(Errno::STALE), Ok(1)));
}

#[test]
fn a_kernel_without_the_patches_refuses_their_calls() {
    let kfd = FakeKfd::new();
    let _client = kfd.client(7);
    let debugger = kfd.debugger(1);
    assert_eq!(preempt(&debugger, &[(7, 0)]), Err(Errno::NOTTY));
    assert_eq!(resume(&debugger, &[(7, 0)], false), Err(Errno::NOTTY));
    assert_eq!(debugger.set_preempt_priority(7, QueueSelector::All, 1), Err(Errno::NOTTY));
}

/// The cases of `kernel/test/ioctl.c`.
#[test]
fn bad_arguments_are_refused_and_change_nothing() {
    let kfd = patched();
    let client = kfd.client(7);
    client.open_queue(1).unwrap();
    let good = PreemptQueue { count: 1, entry_size: 24, ..PreemptQueue::default() };
    let array = || Some(entries(&[(0, 0)]).as_bytes().to_vec());
    let result =
        |block: PreemptQueue, array| ask(&kfd, PREEMPT_QUEUE, block.as_bytes(), array, true).result;
    let bad = [
        PreemptQueue { count: 0, ..good },
        PreemptQueue { count: QUEUES_MAX + 1, ..good },
        PreemptQueue { count: u32::MAX, ..good },
        PreemptQueue { entry_size: 16, ..good },
        PreemptQueue { entry_size: 20, ..good },
        PreemptQueue { entry_size: 0, ..good },
        PreemptQueue { flags: 2, ..good },
        PreemptQueue { flags: u32::MAX, ..good },
        PreemptQueue { grace: 1, ..good },
        PreemptQueue { flags: FLAG_GRACE, grace: GRACE_MAX + 1, ..good },
        PreemptQueue { timeout_ms: TIMEOUT_MAX_MS + 1, ..good },
        PreemptQueue { done: 1, ..good },
    ];
    for block in bad {
        assert_eq!(result(block, array()), Err(Errno::INVAL), "{block:?}");
    }
    assert_eq!(result(good, None), Err(Errno::INVAL), "no array");
    assert_eq!(result(good, Some(vec![0; 23])), Err(Errno::FAULT), "half an array");
    for (pid, reserved) in [(0, 1), (1 << 31, 0)] {
        let entry = PreemptEntry { pid, reserved, ..PreemptEntry::default() };
        assert_eq!(result(good, Some(entry.as_bytes().to_vec())), Err(Errno::INVAL));
    }
    for opcode in [PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY] {
        let opcode = opcode & 0xc000_ffff | 0x40 << 16;
        assert_eq!(ask(&kfd, opcode, &[0; 0x40], array(), true).result, Err(Errno::INVAL));
    }
    let resume = ResumeQueue { count: 1, entry_size: 24, flags: 2, ..ResumeQueue::new_zeroed() };
    let answer = ask(&kfd, RESUME_QUEUE, resume.as_bytes(), array(), true);
    assert_eq!(answer.result, Err(Errno::INVAL));
    assert_eq!(kfd.is_running(7, 0), Some(true));
    let answer = ask(&kfd, PREEMPT_QUEUE, good.as_bytes(), array(), false);
    assert_eq!((answer.result, answer.block[28]), (Ok(()), 1));
}

proptest! {
    /// After the last owner has ended, every queue runs.
    #[test]
    fn nothing_stays_preempted(
        calls in prop::collection::vec(
            (
                1_u32..4,
                any::<bool>(),
                prop::collection::vec((9_u32..13, 0_u32..4), 1..6),
                0_u32..50,
            ),
            1..40,
        ),
    ) {
        let kfd = patched();
        let _clients = clients(&kfd, 2, 3);
        let doors: Vec<_> = (1..4).map(|pid| kfd.debugger(pid)).collect();
        for (debugger, is_preempt, queues, timeout_ms) in calls {
            let debugger = &doors[usize::try_from(debugger).unwrap() - 1];
            let mut entries = entries(&queues);
            if is_preempt {
                debugger.preempt_queues(&mut entries, None, timeout_ms).unwrap();
            } else {
                debugger.unpreempt_queues(&mut entries, false).unwrap();
            }
            for entry in entries {
                let is_running = kfd.is_running(entry.pid, entry.queue_id);
                prop_assert_eq!(is_running.is_some(), entry.result != number(Errno::NOENT)
                    && entry.result != number(Errno::SRCH));
                if entry.result == 0 {
                    prop_assert_eq!(is_running, Some(!is_preempt));
                }
            }
            kfd.pass(Duration::from_millis(7));
        }
        drop(doors);
        for pid in 10..12 {
            prop_assert!((0..3).all(|queue| kfd.is_running(pid, queue) == Some(true)));
        }
    }
}
