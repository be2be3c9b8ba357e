//! Whoever waits in the kernel to give back a queue that is suspended.
//!
//! The kernel lets a process that destroys a suspended queue wait until its debugger resumes the
//! queue, and tells the debugger nothing. So the threads of the process are looked at: which system
//! call they are in stands in `/proc`, and the call's argument in the process's memory.

use std::collections::BTreeSet;
use std::fs;

use super::abi::block::DESTROY_QUEUE;
use super::activity::Memory;
use super::session::{Outcome, Session};
use super::site::{Site, SiteName};

/// More threads than a process has, unless something is wrong with it.
const THREADS_MAX: usize = 4096;

/// The suspended queues that somebody waits to destroy, as far as that shows.
pub(super) fn awaited(
    site: &Site,
    session: &mut Session,
    memory: Option<&Memory>,
    suspended: &BTreeSet<u32>,
) -> Vec<u32> {
    if site.name == SiteName::Kernel {
        let waiting = memory.map(|memory| awaited_in(session.pid(), memory)).unwrap_or_default();
        return waiting.into_iter().filter(|name| suspended.contains(name)).collect();
    }
    // Calls of an emulated process are not in /proc. But there a queue that is about to be
    // destroyed cannot be suspended once more.
    let names: Vec<u32> = suspended.iter().copied().collect();
    let outcomes = session.suspend(&names, 0).unwrap_or_default();
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
