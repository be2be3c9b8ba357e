//! Whoever waits in the kernel to give back a queue that is suspended.
//!
//! The kernel lets a process that destroys a suspended queue wait until its debugger resumes the
//! queue, and tells the debugger nothing. So the threads of the process are looked at: which system
//! call they are in stands in `/proc`, and the call's argument in the process's memory.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use super::abi::block::DESTROY_QUEUE;
use super::activity::Memory;
use super::lookout::Lookout;
use super::session::{Outcome, QueueName, Session};
use super::site::{Site, SiteName};

/// More threads than a process has, unless something is wrong with it.
const THREADS_MAX: usize = 4096;

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
            let (pid, mut memory) = (self.pid, None);
            let look = move |()| {
                memory = memory.take().or_else(|| Memory::open(pid).ok());
                memory.as_ref().map(|memory| awaited_in(pid, memory)).unwrap_or_default()
            };
            // Where there are no threads it is tried again.
            self.lookout = Lookout::start(look, |_| {}).ok();
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
fn awaited_in(pid: u32, memory: &Memory) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let threads = threads.filter_map(Result::ok).take(THREADS_MAX);
    let calls = threads.filter_map(|thread| fs::read_to_string(thread.path().join("syscall")).ok());
    // The argument is the queue's name in 32 bits, with 32 bits of nothing behind it.
    let name = |address: u64| u32::try_from(memory.load(address)? & u64::from(u32::MAX)).ok();
    calls.filter_map(|call| name(parse(&call)?)).collect()
}

/// Where the argument of a call is that destroys a queue, if the line is of one: the number of the
/// system call, then its arguments.
fn parse(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (_file, request, address) = (hex()?, hex()?, hex()?);
    let is_ioctl = number == libc::SYS_ioctl;
    (is_ioctl && request & u64::from(u32::MAX) == u64::from(DESTROY_QUEUE)).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_destroys_a_queue_is_one() {
        let ioctl = libc::SYS_ioctl;
        let line = |number: i64, request: &str| format!("{number} 0x7 {request} 0x7ffd10 0x0 0x0");
        assert_eq!(parse(&line(ioctl, "0xc0084b03")), Some(0x7f_fd10));
        // As some programs pass it: extended by its sign.
        assert_eq!(parse(&line(ioctl, "0xffffffffc0084b03")), Some(0x7f_fd10));
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
        assert_eq!(awaited_in(own, &memory), Vec::<u32>::new());
        assert_eq!(awaited_in(u32::MAX, &memory), Vec::<u32>::new());
    }
}
