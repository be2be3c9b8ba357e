//! Whole processes.

use std::ffi::c_int;
use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::Request;

use crate::code::Code;
use crate::failure::Failure;
use crate::{queues, session};

pub(crate) fn set_priority(pid: u32, priority: c_int) -> Result<(), Failure> {
    let process = process(pid)?;
    let priority = Some(level(priority)?);
    let change = SchedAttrChange { priority, ..SchedAttrChange::default() };
    session::do_it(&Request::Register { process, change })
}

pub(crate) fn priority(pid: u32) -> Result<c_int, Failure> {
    process(pid)?;
    let pid = if pid == 0 { std::process::id() } else { pid };
    let queues = queues::all()?;
    let mut own = queues.iter().filter(|queue| queue.pid == pid && !queue.has_own_priority);
    let found = own.next().map(|queue| c_int::from(queue.priority.level()));
    found.ok_or_else(|| {
        let sentence = format!("process {pid} has no queue that gpreemptd controls");
        Failure::new(Code::NotControlled, sentence)
    })
}

pub(crate) fn detach(pid: u32) -> Result<(), Failure> {
    session::do_it(&Request::Detach { process: process(pid)? })
}

pub(crate) fn suspend(pid: u32, lease_ms: u32) -> Result<(), Failure> {
    let process = process(pid)?;
    let lease_ms = NonZeroU32::new(lease_ms);
    let sentence = "a lease is at least 1 ms";
    let lease_ms = lease_ms.ok_or_else(|| Failure::new(Code::Argument, sentence))?;
    session::do_it(&Request::Suspend { process, lease_ms })
}

pub(crate) fn resume(pid: u32) -> Result<(), Failure> {
    session::do_it(&Request::Resume { process: process(pid)? })
}

fn process(pid: u32) -> Result<Process, Failure> {
    let sentence = || format!("{pid} is not a pid");
    Process::new(pid, 0).ok_or_else(|| Failure::new(Code::Argument, sentence()))
}

/// A priority that C gave as a number.
pub(crate) fn level(priority: c_int) -> Result<Priority, Failure> {
    let level = u8::try_from(priority).ok().and_then(Priority::new);
    let sentence = || format!("a priority is between 0 and 15, not {priority}");
    level.ok_or_else(|| Failure::new(Code::Argument, sentence()))
}
