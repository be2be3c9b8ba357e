use std::os::fd::AsFd;

use gpreempt_core::time::Duration;
use gpreempt_kfd::abi::block::CriuOperation;
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::own::{PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY};
use gpreempt_kfd::{ClientDoor, Door, Meant, OwnDoor};
use proptest::prelude::*;
use zerocopy::FromZeros;

use super::*;
use crate::kfd::driver::Answer;
use crate::kfd::{FakeClient, FakeKfd, Rules};

fn patched() -> FakeKfd {
    FakeKfd::with(Rules { own_calls: true, ..Rules::default() })
}

fn entries(queues: &[(u32, u32)]) -> Vec<PreemptEntry> {
    let entry = |&(pid, queue_id)| PreemptEntry { pid, queue_id, ..PreemptEntry::default() };
    queues.iter().map(entry).collect()
}

/// Preempts queues and says what became of each.
fn preempt(door: &dyn OwnDoor, queues: &[(u32, u32)]) -> Result<Vec<i32>, Errno> {
    let mut entries = entries(queues);
    door.preempt_queues(&mut entries, None, 0)?;
    Ok(entries.iter().map(|entry| entry.result).collect())
}

fn resume(door: &dyn OwnDoor, queues: &[(u32, u32)], any: bool) -> Result<Vec<i32>, Errno> {
    let mut entries = entries(queues);
    door.unpreempt_queues(&mut entries, any)?;
    Ok(entries.iter().map(|entry| entry.result).collect())
}

/// A call in bytes, as anybody can make one.
fn ask(kfd: &FakeKfd, opcode: u32, block: &[u8], array: Option<Vec<u8>>, admin: bool) -> Answer {
    let caller = Caller { pid: 7, thread: 7, may_checkpoint: admin, is_admin: admin };
    let asked = Asked { opcode, block: block.to_vec(), array, file: None, through: None };
    kfd.poll(kfd.begin(caller, asked)).unwrap()
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
fn queues_of_eight_processes_go_in_one_call_and_one_remap() {
    let kfd = patched();
    let clients = clients(&kfd, 8, 8);
    let door = kfd.door(1);
    let all: Vec<(u32, u32)> =
        clients.iter().flat_map(|c| (0..8).map(|queue| (c.pid(), queue))).collect();
    let before = kfd.remaps();
    assert_eq!(preempt(&door, &all).unwrap(), vec![0; 64]);
    assert_eq!(kfd.remaps() - before, 1);
    assert!(all.iter().all(|(pid, queue)| kfd.is_running(*pid, *queue) == Some(false)));
    assert_eq!(preempt(&door, &all).unwrap(), vec![0; 64]);
    assert_eq!(kfd.remaps() - before, 1, "what is off is off");
    assert_eq!(resume(&door, &all, false).unwrap(), vec![0; 64]);
    assert_eq!(kfd.remaps() - before, 2);
    assert!(all.iter().all(|(pid, queue)| kfd.is_running(*pid, *queue) == Some(true)));
    assert!(clients.iter().all(|client| !kfd.is_debugged(client.pid())));
    // Another device is another runlist.
    let other = clients[0].open_queue(2).unwrap();
    let before = kfd.remaps();
    preempt(&door, &[(10, 0), (10, other), (11, 0)]).unwrap();
    assert_eq!(kfd.remaps() - before, 2);
}

#[test]
fn single_queues_are_moved_where_the_device_can() {
    let kfd = FakeKfd::with(Rules { own_calls: true, by_queue: true, ..Rules::default() });
    let _clients = clients(&kfd, 2, 2);
    assert_eq!(preempt(&kfd.door(1), &[(10, 0), (11, 1)]).unwrap(), [0, 0]);
    assert_eq!((kfd.remaps(), kfd.is_running(11, 1)), (0, Some(true)), "the owner is gone");
    let door = kfd.door(1);
    preempt(&door, &[(10, 0), (11, 1)]).unwrap();
    assert_eq!((kfd.is_running(10, 1), kfd.is_running(11, 1)), (Some(true), Some(false)));
}

#[test]
fn every_queue_has_a_result_of_its_own() {
    let kfd = patched();
    let clients = clients(&kfd, 2, 3);
    let door = kfd.door(1);
    kfd.break_queue(10, 1);
    let results = preempt(&door, &[(10, 0), (10, 1), (10, 9), (99, 0), (11, 2), (0, 0)]).unwrap();
    let expected = [Errno::IO, Errno::NOENT, Errno::SRCH].map(number);
    assert_eq!(results, [0, expected[0], expected[1], expected[2], 0, expected[1]]);
    assert_eq!(kfd.is_running(10, 1), Some(true));
    // A queue that its process waits to destroy cannot be had; one that is preempted does not
    // make its process wait.
    clients[0].destroy_queue(0).unwrap();
    assert_eq!(preempt(&door, &[(10, 0)]).unwrap(), [number(Errno::NOENT)]);
}

#[test]
fn a_queue_belongs_to_whoever_preempted_it_until_that_ends() {
    let kfd = patched();
    let _clients = clients(&kfd, 1, 2);
    let (first, second) = (kfd.door(1), kfd.door(2));
    preempt(&first, &[(10, 0)]).unwrap();
    let busy = number(Errno::BUSY);
    assert_eq!(preempt(&second, &[(10, 0), (10, 1)]).unwrap(), [busy, 0]);
    assert_eq!(resume(&second, &[(10, 0)], false).unwrap(), [busy]);
    drop(second);
    assert_eq!((kfd.is_running(10, 0), kfd.is_running(10, 1)), (Some(false), Some(true)));
    let third = kfd.door(3);
    assert_eq!(resume(&third, &[(10, 0)], true).unwrap(), [0]);
    assert_eq!(kfd.is_running(10, 0), Some(true));
    preempt(&first, &[(10, 0), (10, 1)]).unwrap();
    let before = kfd.remaps();
    drop(first);
    assert_eq!((kfd.is_running(10, 0), kfd.is_running(10, 1)), (Some(true), Some(true)));
    assert_eq!(kfd.remaps() - before, 1, "all of them in one");
}

#[test]
fn a_time_ends_by_itself_and_can_be_set_anew() {
    let kfd = patched();
    let _clients = clients(&kfd, 1, 2);
    let door = kfd.door(1);
    door.preempt_queues(&mut entries(&[(10, 0)]), Some(3), 100).unwrap();
    door.preempt_queues(&mut entries(&[(10, 1)]), None, 0).unwrap();
    kfd.pass(Duration::from_millis(90));
    let before = kfd.remaps();
    door.preempt_queues(&mut entries(&[(10, 0)]), None, 100).unwrap();
    kfd.pass(Duration::from_millis(90));
    assert_eq!((kfd.is_running(10, 0), kfd.remaps() - before), (Some(false), 0));
    kfd.pass(Duration::from_millis(20));
    assert_eq!((kfd.is_running(10, 0), kfd.remaps() - before), (Some(true), 1));
    assert_eq!(kfd.is_running(10, 1), Some(false), "for as long as its owner lives");
}

#[test]
fn debuggers_pauses_and_preemptions_do_not_undo_each_other() {
    let kfd = patched();
    let client = kfd.client(10);
    client.runtime_enable(true).unwrap();
    client.open_queue(1).unwrap();
    let door = kfd.door(1);
    let own = kfd.door(10);
    let (_events, writer) = rustix::pipe::pipe().unwrap();
    own.enable(10, Exceptions::WANTED, writer.as_fd()).unwrap();
    own.queues(10, Exceptions::QUEUE_NEW, 8).unwrap();
    own.suspend_queues(10, &mut [0], 0).unwrap();
    preempt(&door, &[(10, 0)]).unwrap();
    own.resume_queues(10, &mut [0]).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(false));
    own.suspend_queues(10, &mut [0], 0).unwrap();
    resume(&door, &[(10, 0)], false).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(false));
    own.disable(10).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(true));
    let criu = |operation| {
        std::thread::scope(|scope| {
            let errand = || {
                door.seize(10).unwrap();
                door.criu(10, operation).unwrap();
            };
            scope.spawn(errand).join().unwrap();
        });
        while door.tracer_of(10).is_some() {
            std::thread::yield_now();
        }
    };
    preempt(&door, &[(10, 0)]).unwrap();
    criu(CriuOperation::ProcessInfo);
    resume(&door, &[(10, 0)], false).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(false));
    preempt(&door, &[(10, 0)]).unwrap();
    criu(CriuOperation::Unpause);
    assert_eq!(kfd.is_running(10, 0), Some(false));
    resume(&door, &[(10, 0)], false).unwrap();
    assert_eq!(kfd.is_running(10, 0), Some(true));
}

#[test]
fn only_own_queues_without_the_right() {
    let kfd = patched();
    let clients = clients(&kfd, 2, 1);
    let denied = Err(Errno::PERM);
    assert_eq!(preempt(&clients[0], &[(0, 0), (10, 0)]).unwrap(), [0, 0]);
    assert_eq!(preempt(&clients[0], &[(0, 0), (11, 0)]), denied);
    assert_eq!(resume(&clients[0], &[(0, 0)], true), denied);
    assert_eq!(preempt(&kfd.door(1).without_capability(), &[(10, 0)]), denied);
    assert_eq!(kfd.is_running(11, 0), Some(true));
    let one = |id| Meant::One { id, serial: 0 };
    let set = |pid, queue, priority| clients[0].set_preempt_priority(pid, queue, priority);
    assert_eq!(set(0, one(0), 7), Ok(1));
    assert_eq!(set(10, Meant::All, PRIORITY_DEFAULT), Ok(1));
    assert_eq!(set(0, one(0), 8), Err(Errno::PERM));
    assert_eq!(set(11, one(0), 1), Err(Errno::PERM));
    assert_eq!(set(0, one(5), 1), Err(Errno::NOENT));
    let door = kfd.door(1);
    assert_eq!(door.set_preempt_priority(11, Meant::All, 15), Ok(1));
    assert_eq!(door.set_preempt_priority(12, one(0), 15), Err(Errno::SRCH));
    for priority in [16, 0xfe, u32::MAX] {
        assert_eq!(door.set_preempt_priority(11, one(0), priority), Err(Errno::INVAL));
    }
}

#[test]
fn a_queue_that_was_made_again_is_not_the_one_that_was_meant() {
    let kfd = patched();
    let client = kfd.client(10);
    let door = kfd.door(1);
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
        door.preempt_queues(&mut entries, None, 0).unwrap();
        assert_eq!(entries[0].result, result);
        assert_eq!(kfd.is_running(10, 0), Some(result != 0));
    }
    let mut entries = [entry(serial)];
    door.unpreempt_queues(&mut entries, false).unwrap();
    assert_eq!((entries[0].result, kfd.is_running(10, 0)), (stale, Some(false)));
    let set = |serial| door.set_preempt_priority(10, Meant::One { id: 0, serial }, 9);
    assert_eq!((set(serial), set(successor)), (Err(Errno::STALE), Ok(1)));
}

#[test]
fn a_kernel_without_the_patches_does_not_know_them() {
    let kfd = FakeKfd::new();
    let _client = kfd.client(7);
    let door = kfd.door(1);
    assert_eq!(preempt(&door, &[(7, 0)]), Err(Errno::NOTTY));
    assert_eq!(resume(&door, &[(7, 0)], false), Err(Errno::NOTTY));
    assert_eq!(door.set_preempt_priority(7, Meant::All, 1), Err(Errno::NOTTY));
}

/// As `kernel/test/ioctl.c` has them for the kernel.
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
        // A block of another size, whatever is in it.
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
    /// Whatever is asked, whoever asks: when the last owner has ended everything runs.
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
        let doors: Vec<_> = (1..4).map(|pid| kfd.door(pid)).collect();
        for (door, is_preempt, queues, timeout_ms) in calls {
            let door = &doors[usize::try_from(door).unwrap() - 1];
            let mut entries = entries(&queues);
            if is_preempt {
                door.preempt_queues(&mut entries, None, timeout_ms).unwrap();
            } else {
                door.unpreempt_queues(&mut entries, false).unwrap();
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
