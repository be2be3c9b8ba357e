//! The functions that programs in C call; `include/gpreempt.h` is generated from these files.
//!
//! Each function checks its pointers and runs its body inside `guarded`: every error is a code, and
//! nothing unwinds into C. This file has the connection, processes, hints and AMD queues of the
//! calling process; [`memory`], [`queues`] and [`submit`] have the rest.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "the doc comments are those of the header")]

pub mod memory;
mod pointer;
pub mod queues;
pub mod submit;
pub mod types;

use std::ffi::{c_char, c_int};

use crate::amd::{self, OwnQueue};
use crate::error::ErrorCode;
use crate::ffi_guard::{guarded, last_error};
use crate::{hints, requests, session};
use types::GPREEMPT_VERSION;

/// The version of the loaded library: compare it with GPREEMPT_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_version() -> u32 {
    GPREEMPT_VERSION
}

/// The meaning of a code, as a static string. Also for numbers that are not a code.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_strerror(code: c_int) -> *const c_char {
    ErrorCode::sentence_of(code).as_ptr()
}

/// The error message of this thread's last failed call: what happened, why, and what to do. Writes
/// at most `capacity` bytes with the terminating zero, and returns the length of the whole message
/// without it. Empty if no call has failed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_last_message(buffer: *mut c_char, capacity: usize) -> usize {
    let mut length = 0;
    guarded(|| {
        let sentence = last_error();
        length = sentence.len();
        let room = capacity.saturating_sub(1);
        let mut bytes: Vec<c_char> =
            sentence.bytes().take(room).map(|byte| c_char::from_ne_bytes([byte])).collect();
        bytes.push(0);
        // SAFETY: the caller has room for that many bytes.
        unsafe { pointer::store_all(buffer, capacity, &bytes, "buffer") }
    });
    length
}

/// Connects to gpreemptd, if not connected yet. Every other call connects by itself; this one is
/// for programs that check the connection, or use another socket than the usual one (NULL). Queues
/// that were suspended over an earlier connection to another socket are resumed. If it fails, an
/// earlier connection and its socket stay in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_connect(socket: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: a string or NULL, as the header requires.
        session::connect(unsafe { pointer::text(socket, "socket") }?)
    })
}

/// Closes the connection. Queues that this process suspended are resumed, and its hints end. The
/// next call connects again, to the usual socket.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_disconnect() -> c_int {
    guarded(|| {
        session::disconnect();
        Ok(())
    })
}

/// Sets the lease of later suspensions of queues, in milliseconds (1 to 86400000; 600000 at first).
/// When it is over the queues are resumed, so a program that hangs cannot keep them off for ever.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_lease(lease_ms: u32) -> c_int {
    guarded(|| session::set_lease(lease_ms))
}

/// Gives a process, and the children it starts from now on, a priority: 0 (lowest) to 15 (highest).
/// `pid` 0 is the calling process. It need not use a GPU yet. A priority above 7 needs root or the
/// group gpreempt.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_priority(pid: u32, priority: c_int) -> c_int {
    guarded(|| requests::set_priority(pid, priority))
}

/// Sets how much slower a process, and the children it starts from now on, may become in exchange
/// for throughput of others: 0 (as fast as possible) to 400 per cent. It counts while the process
/// has a priority of 8 or more and no other process on its GPU has one. `pid` 0 is the caller.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_latency_budget(pid: u32, percent: c_int) -> c_int {
    guarded(|| requests::set_latency_budget(pid, percent))
}

/// Reads the priority of a process; GPREEMPT_ERROR_NOT_CONTROLLED if it has no queue that gpreemptd
/// controls. `pid` 0 is the calling process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_get_priority(pid: u32, priority: *mut c_int) -> c_int {
    // SAFETY: the caller has room for one number.
    unsafe { pointer::fill(priority, "priority", || requests::priority(pid)) }
}

/// Restores a process and stops scheduling it. `pid` 0 is the calling process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_detach(pid: u32) -> c_int {
    guarded(|| requests::detach(pid))
}

/// Suspends a process for at most `lease_ms` milliseconds (1 to 86400000). Returns when it is off
/// its devices. It keeps its memory. Unlike a suspension of queues this one outlives the calling
/// process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_suspend_process(pid: u32, lease_ms: u32) -> c_int {
    guarded(|| requests::suspend_process(pid, lease_ms))
}

/// Ends the suspension of a process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_resume_process(pid: u32) -> c_int {
    guarded(|| requests::resume_process(pid))
}

/// Announces that this thread will submit work that should finish within `deadline_us`
/// microseconds (0: no deadline), so that the device is free before the work arrives. Costs no
/// system call, except for a thread's first hint and when gpreemptd has to be woken. A thread may
/// begin several, such as one for each request of an event loop: each has its own end, and the
/// deadline of the last one counts from then on.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_hint_begin(deadline_us: u64) -> c_int {
    guarded(|| hints::begin(deadline_us))
}

/// Announces that the work of one hint of this thread is done. GPREEMPT_ERROR_STATE if this thread
/// has ended all that it began.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_hint_end() -> c_int {
    guarded(hints::end)
}

/// Preempts a queue of the calling process on an AMD device in the middle of its kernels (`on`
/// 0) or resumes it, and sets its priority (0 to 15), without gpreemptd. `queue` is KFD's number
/// for it. Every call needs its ring. A preempted queue stays off until it is resumed, also if
/// the caller's threads end. GPREEMPT_ERROR_NO_DEVICE without an AMD device,
/// GPREEMPT_ERROR_NO_SUCH_QUEUE without the queue.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_amd_update_queue(
    queue: u32,
    ring_address: u64,
    ring_bytes: u32,
    on: c_int,
    priority: c_int,
) -> c_int {
    let own = OwnQueue { id: queue, ring_address, ring_bytes };
    guarded(|| amd::update(own, on != 0, priority))
}

/// The hardware's level of a priority on AMD: 0 (low, from 0), 1 (medium, from 7) or 2 (high, from
/// 11).
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_amd_pipe_priority(priority: c_int) -> c_int {
    let mut found = 0;
    let code = guarded(|| {
        found = amd::pipe_priority(priority)?;
        Ok(())
    });
    if code < 0 { code } else { found }
}
