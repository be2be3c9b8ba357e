//! Requests that move GPU memory. They are answered after seconds, so each waits in a session of
//! its own, and other calls of this process do not wait for it.

use std::ffi::c_int;
use std::time::Duration;

use gpreempt_wire::client::ClientError;
use gpreempt_wire::process::{Process, SchedAttrChange};
use gpreempt_wire::request::{EvictScope, Request};

use crate::c_api::types::{GPREEMPT_ANY_DEVICE, GPREEMPT_EVICT_TREE};
use crate::error::{ErrorCode, Failure, fail};
use crate::requests::process;
use crate::session::{self, LEASE_MS_MAX};

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// No call waits longer: a day.
const TIMEOUT_US_MAX: u64 = 86_400_000_000;

pub(crate) fn evict(pid: u32, lease_ms: u32, flags: u32, timeout_us: u64) -> Result<(), Failure> {
    let process = process(pid)?;
    if flags & !GPREEMPT_EVICT_TREE != 0 {
        return fail(ErrorCode::Argument, format!("there are no flags {flags:#x}"));
    }
    if lease_ms > LEASE_MS_MAX {
        return fail(ErrorCode::Argument, format!("a lease is at most {LEASE_MS_MAX} ms"));
    }
    let scope = if flags == 0 { EvictScope::Process } else { EvictScope::Tree };
    let late = || format!("process {pid} was not evicted in time; its memory continues to move");
    request(&Request::Evict { process, lease_ms, scope }, timeout_us, late)
}

pub(crate) fn restore(pid: u32, timeout_us: u64) -> Result<(), Failure> {
    let late = || {
        format!("process {pid} was not restored in time; it is as soon as its GPU has room for it")
    };
    request(&Request::Restore { process: process(pid)? }, timeout_us, late)
}

pub(crate) fn make_room(bytes: u64, device: u32, timeout_us: u64) -> Result<(), Failure> {
    let device = Some(device).filter(|device| *device != GPREEMPT_ANY_DEVICE);
    let claim = |bytes| Request::MakeRoom { process: Process::SENDER, bytes, device };
    let late = || format!("{bytes} bytes of GPU memory were not free in time");
    let result = request(&claim(bytes), timeout_us, late);
    if result.as_ref().is_err_and(|failure| failure.code == ErrorCode::TimedOut) {
        // What was evicted returns. Without gpreemptd it does so anyway.
        let _ = session::request(&claim(0));
    }
    result
}

pub(crate) fn set_evictable(pid: u32, evictable: c_int) -> Result<(), Failure> {
    let process = process(pid)?;
    let evictable = match evictable {
        0 => false,
        1 => true,
        other => return fail(ErrorCode::Argument, format!("evictable is 0 or 1, not {other}")),
    };
    let change = SchedAttrChange { evictable: Some(evictable), ..SchedAttrChange::default() };
    session::request(&Request::Register { process, change })
}

/// Sends a request and waits at most that long for its answer.
fn request(
    request: &Request,
    timeout_us: u64,
    late: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if timeout_us > TIMEOUT_US_MAX {
        let sentence = format!("a timeout is at most {TIMEOUT_US_MAX} us, a day");
        return fail(ErrorCode::Argument, sentence);
    }
    let mut client = session::another_client(CONNECT_MAX)?;
    let timeout = Duration::from_micros(timeout_us);
    match client.expect_ok_within(request, timeout) {
        Err(ClientError::TimedOut { .. }) => fail(ErrorCode::TimedOut, late()),
        answer => Ok(answer?),
    }
}
