//! Finds threads that are blocked in the kernel because they destroy a suspended queue.
//!
//! The kernel blocks `DESTROY_QUEUE` of a suspended queue until the debugger resumes the queue, and
//! does not notify the debugger. So this module reads from `/proc` which system call each thread of
//! the process is in, and the call's argument from the memory of the process.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::abi::block::DESTROY_QUEUE;
use super::background_reader::BackgroundReader;
use super::kfd_file;
use super::kfd_instance::{KfdInstance, KfdLocation};
use super::ring_memory::ProcessMemory;
use super::session::{DebugSession, Outcome, QueueKey};
use crate::process::device_number;

/// More threads than any sane process has.
const THREADS_MAX: usize = 1 << 16;
/// How long one scan may take. The next scan continues after its last thread.
const BUDGET: Duration = Duration::from_millis(10);

/// How long the caller waits for a scan. The argument of a call may lie in memory that never
/// responds.
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Blocked `DESTROY_QUEUE` calls of one process.
#[derive(Debug)]
pub(super) struct BlockedDestroys {
    pid: u32,
    is_emulated: bool,
    /// Started when first needed.
    reader: Option<BackgroundReader<(), Vec<u32>>>,
}

impl BlockedDestroys {
    pub(super) fn of(instance: &KfdInstance, pid: u32) -> Self {
        Self { pid, is_emulated: instance.name != KfdLocation::Kernel, reader: None }
    }

    /// Suspended queues for which a thread is known to be blocked in `DESTROY_QUEUE`.
    pub(super) fn awaited(
        &mut self,
        session: &mut DebugSession,
        suspended: &BTreeSet<QueueKey>,
    ) -> Vec<QueueKey> {
        if self.is_emulated {
            return leaving(session, suspended);
        }
        let waiting = self.look();
        suspended.iter().copied().filter(|name| waiting.contains(&name.id)).collect()
    }

    /// The queues that threads of the process are destroying. Empty while that cannot be read.
    fn look(&mut self) -> Vec<u32> {
        if self.reader.is_none() {
            let (pid, mut memory, mut last) = (self.pid, None, 0);
            let look = move |()| {
                memory = memory.take().or_else(|| ProcessMemory::open(pid).ok());
                let kfd = kfd_file::number();
                let find = |memory| awaited_in(pid, memory, kfd, (&mut last, BUDGET));
                memory.as_ref().map(find).unwrap_or_default()
            };
            // If no thread can be started, the next scan tries again.
            self.reader = BackgroundReader::start(Some(pid), look, |_, _| {}).ok();
        }
        let reader = self.reader.as_ref();
        reader.and_then(|reader| reader.ask_within((), LOOK_MAX)).unwrap_or_default()
    }
}

/// System calls of an emulated KFD do not show in `/proc`, but it refuses to suspend a queue again
/// while the queue is being destroyed.
fn leaving(session: &mut DebugSession, suspended: &BTreeSet<QueueKey>) -> Vec<QueueKey> {
    let names: Vec<QueueKey> = suspended.iter().copied().collect();
    let outcomes = session.suspend_named(&names, 0).unwrap_or_default();
    let leaving = names.into_iter().zip(outcomes).filter(|(_, is)| *is == Outcome::Gone);
    leaving.map(|(name, _)| name).collect()
}

/// The queues that threads of a process are destroying.
///
/// A program can put anything into a register, so the descriptor of the call must be KFD's. Every
/// scan covers at least one thread, beginning after the last one of the scan before.
fn awaited_in(
    pid: u32,
    memory: &ProcessMemory,
    kfd: Option<u64>,
    (last, budget): (&mut u32, Duration),
) -> Vec<u32> {
    let begin = Instant::now();
    let calls = threads_after(pid, *last).into_iter().enumerate().map_while(|(index, thread)| {
        let is_time = index == 0 || begin.elapsed() < budget;
        is_time.then(|| {
            *last = thread;
            fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).unwrap_or_default()
        })
    });
    // The argument is the queue's id in 32 bits, followed by 32 bits of padding.
    let name = |address: u64| u32::try_from(memory.load(address)? & u64::from(u32::MAX)).ok();
    let is_kfd = |file: u64| kfd.is_some() && number_of(pid, file) == kfd;
    let calls = calls.filter_map(|call| parse(&call)).filter(|(file, _)| is_kfd(*file));
    calls.filter_map(|(_, address)| name(address)).collect()
}

/// The threads of a process: those with ids above `last` first.
fn threads_after(pid: u32, last: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let names = threads.filter_map(Result::ok).map(|thread| thread.file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok()).take(THREADS_MAX);
    let mut threads: Vec<u32> = numbers.collect();
    threads.sort_unstable_by_key(|thread| (*thread <= last, *thread));
    threads
}

/// The device number of a descriptor of a process.
fn number_of(pid: u32, file: u64) -> Option<u64> {
    device_number(Path::new(&format!("/proc/{pid}/fd/{file}")))
}

/// The descriptor and the argument's address, if the line describes a `DESTROY_QUEUE` call: the
/// number of the system call, then its arguments.
fn parse(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (file, request, address) = (hex()?, hex()?, hex()?);
    let is_ioctl = number == libc::SYS_ioctl;
    (is_ioctl && request & u64::from(u32::MAX) == u64::from(DESTROY_QUEUE))
        .then_some((file, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_destroy_queue_calls_are_parsed() {
        let ioctl = libc::SYS_ioctl;
        let line = |number: i64, request: &str| format!("{number} 0x7 {request} 0x7ffd10 0x0 0x0");
        assert_eq!(parse(&line(ioctl, "0xc0084b03")), Some((7, 0x7f_fd10)));
        // Some programs pass the request sign-extended.
        assert_eq!(parse(&line(ioctl, "0xffffffffc0084b03")), Some((7, 0x7f_fd10)));
        assert_eq!(parse(&line(ioctl, "0xc0204b26")), None);
        assert_eq!(parse(&line(ioctl + 1, "0xc0084b03")), None);
        for nonsense in ["", "running", "-1 0x7ffd 0x1", "16 7 8 9"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn this_process_destroys_no_queue() {
        let own = std::process::id();
        let memory = ProcessMemory::open(own).unwrap();
        let mut last = 0;
        assert_eq!(awaited_in(own, &memory, Some(1), (&mut last, BUDGET)), Vec::<u32>::new());
        assert_eq!(awaited_in(u32::MAX, &memory, Some(1), (&mut last, BUDGET)), Vec::<u32>::new());
    }

    #[test]
    fn every_thread_is_scanned_however_many_there_are() {
        let (end, is_over) = std::sync::mpsc::channel::<()>();
        let is_over = std::sync::Mutex::new(is_over);
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| is_over.lock().unwrap().recv().is_ok());
            }
            let (own, memory) =
                (std::process::id(), ProcessMemory::open(std::process::id()).unwrap());
            // Threads of other tests come and go; the main thread stays.
            let (mut last, mut seen) = (0, BTreeSet::new());
            while seen.len() < 6 || !seen.contains(&own) {
                awaited_in(own, &memory, Some(1), (&mut last, Duration::ZERO));
                seen.insert(last);
            }
            let threads = threads_after(own, own);
            assert_eq!(threads.last(), Some(&own), "the last thread comes last");
            drop(end);
        });
    }

    #[test]
    fn a_descriptor_is_identified_by_its_device() {
        let null = fs::File::open("/dev/null").unwrap();
        let file = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&null)).unwrap();
        let own = std::process::id();
        let number = device_number(Path::new("/dev/null"));
        assert!(number.is_some() && number_of(own, file) == number);
        assert_ne!(number_of(own, file), device_number(Path::new("/dev/zero")));
        assert_eq!(number_of(own, u64::MAX), None);
    }
}
