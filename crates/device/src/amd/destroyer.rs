//! Whoever waits in the kernel to give back a queue that is suspended.
//!
//! The kernel lets a process that destroys a suspended queue wait until its debugger resumes the
//! queue, and tells the debugger nothing. So the threads of the process are looked at: which system
//! call they are in stands in `/proc`, and the call's argument in the process's memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::abi::block::DESTROY_QUEUE;
use super::activity::Memory;
use super::lookout::Lookout;
use super::node;
use super::session::{Outcome, QueueName, Session};
use super::site::{Site, SiteName};
use crate::process::device_number;

/// More threads than a process has, unless something is wrong with it.
const THREADS_MAX: usize = 1 << 16;
/// For how long threads are looked at in one go. The rest comes the next time.
const BUDGET: Duration = Duration::from_millis(10);

/// How long a look at the threads of a process may take before it is done without. What the calls
/// of a process point at may be memory that never answers.
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Who waits to destroy queues in one process.
#[derive(Debug)]
pub(super) struct Destroyers {
    pid: u32,
    is_emulated: bool,
    /// Where the threads of the process show what they do. Started when it is needed.
    lookout: Option<Lookout<(), Vec<u32>>>,
}

impl Destroyers {
    /// Those of a process.
    pub(super) fn of(site: &Site, pid: u32) -> Self {
        Self { pid, is_emulated: site.name != SiteName::Kernel, lookout: None }
    }

    /// The suspended queues that somebody waits to destroy, as far as that shows.
    pub(super) fn awaited(
        &mut self,
        session: &mut Session,
        suspended: &BTreeSet<QueueName>,
    ) -> Vec<QueueName> {
        if self.is_emulated {
            return leaving(session, suspended);
        }
        let waiting = self.look();
        suspended.iter().copied().filter(|name| waiting.contains(&name.id)).collect()
    }

    /// The queues that threads of the process wait to destroy. None while that cannot be seen.
    fn look(&mut self) -> Vec<u32> {
        if self.lookout.is_none() {
            let (pid, mut memory, mut last) = (self.pid, None, 0);
            let look = move |()| {
                memory = memory.take().or_else(|| Memory::open(pid).ok());
                let kfd = node::number();
                let find = |memory| awaited_in(pid, memory, kfd, (&mut last, BUDGET));
                memory.as_ref().map(find).unwrap_or_default()
            };
            // Where there are no threads it is tried again.
            self.lookout = Lookout::start(Some(pid), look, |_, _| {}).ok();
        }
        let lookout = self.lookout.as_ref();
        lookout.and_then(|lookout| lookout.ask_within((), LOOK_MAX)).unwrap_or_default()
    }
}

/// Calls of an emulated process are not in `/proc`. But there a queue that is about to be destroyed
/// cannot be suspended once more.
fn leaving(session: &mut Session, suspended: &BTreeSet<QueueName>) -> Vec<QueueName> {
    let names: Vec<QueueName> = suspended.iter().copied().collect();
    let outcomes = session.suspend_named(&names, 0).unwrap_or_default();
    let leaving = names.into_iter().zip(outcomes).filter(|(_, is)| *is == Outcome::Gone);
    leaving.map(|(name, _)| name).collect()
}

/// The queues that threads of a process wait to destroy, or are about to.
///
/// What is in a register can be forged, so the file of the call has to be KFD's.
/// One thread is looked at in any case, those behind the last one first.
fn awaited_in(
    pid: u32,
    memory: &Memory,
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
    // The argument is the queue's name in 32 bits, with 32 bits of nothing behind it.
    let name = |address: u64| u32::try_from(memory.load(address)? & u64::from(u32::MAX)).ok();
    let is_kfd = |file: u64| kfd.is_some() && number_of(pid, file) == kfd;
    let calls = calls.filter_map(|call| parse(&call)).filter(|(file, _)| is_kfd(*file));
    calls.filter_map(|(_, address)| name(address)).collect()
}

/// The threads of a process: those with higher numbers, then the others.
fn threads_after(pid: u32, last: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let names = threads.filter_map(Result::ok).map(|thread| thread.file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok()).take(THREADS_MAX);
    let mut threads: Vec<u32> = numbers.collect();
    threads.sort_unstable_by_key(|thread| (*thread <= last, *thread));
    threads
}

/// The number of the device that a file of a process is.
fn number_of(pid: u32, file: u64) -> Option<u64> {
    device_number(Path::new(&format!("/proc/{pid}/fd/{file}")))
}

/// The file and where the argument is of a call that destroys a queue, if the line is of one: the
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
    fn only_a_call_that_destroys_a_queue_is_one() {
        let ioctl = libc::SYS_ioctl;
        let line = |number: i64, request: &str| format!("{number} 0x7 {request} 0x7ffd10 0x0 0x0");
        assert_eq!(parse(&line(ioctl, "0xc0084b03")), Some((7, 0x7f_fd10)));
        // As some programs pass it: extended by its sign.
        assert_eq!(parse(&line(ioctl, "0xffffffffc0084b03")), Some((7, 0x7f_fd10)));
        assert_eq!(parse(&line(ioctl, "0xc0204b26")), None);
        assert_eq!(parse(&line(ioctl + 1, "0xc0084b03")), None);
        for nonsense in ["", "running", "-1 0x7ffd 0x1", "16 7 8 9"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn nobody_here_destroys_a_queue() {
        let own = std::process::id();
        let memory = Memory::open(own).unwrap();
        let mut last = 0;
        assert_eq!(awaited_in(own, &memory, Some(1), (&mut last, BUDGET)), Vec::<u32>::new());
        assert_eq!(awaited_in(u32::MAX, &memory, Some(1), (&mut last, BUDGET)), Vec::<u32>::new());
    }

    #[test]
    fn every_thread_has_its_turn_however_many_there_are() {
        let (end, is_over) = std::sync::mpsc::channel::<()>();
        let is_over = std::sync::Mutex::new(is_over);
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| is_over.lock().unwrap().recv().is_ok());
            }
            let (own, memory) = (std::process::id(), Memory::open(std::process::id()).unwrap());
            // Those of other tests come and go; the first one stays.
            let (mut last, mut seen) = (0, BTreeSet::new());
            while seen.len() < 6 || !seen.contains(&own) {
                awaited_in(own, &memory, Some(1), (&mut last, Duration::ZERO));
                seen.insert(last);
            }
            let threads = threads_after(own, own);
            assert_eq!(threads.last(), Some(&own), "whoever was last comes last");
            drop(end);
        });
    }

    #[test]
    fn a_file_is_what_it_is_and_not_what_a_call_says() {
        let null = fs::File::open("/dev/null").unwrap();
        let file = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&null)).unwrap();
        let own = std::process::id();
        let number = device_number(Path::new("/dev/null"));
        assert!(number.is_some() && number_of(own, file) == number);
        assert_ne!(number_of(own, file), device_number(Path::new("/dev/zero")));
        assert_eq!(number_of(own, u64::MAX), None);
    }
}
