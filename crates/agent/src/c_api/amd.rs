//! Queues of the calling process on AMD devices.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_int;

use crate::amd::{self, OwnQueue};
use crate::entry::guarded;
use crate::failure::Failure;

/// Takes a queue of the calling process off an AMD device (`on` 0) in the middle of its kernels, or
/// lets it on, and gives it a priority (0 to 15); gpreemptd is not asked. `queue` is KFD's number
/// for it. Its ring has to be said each time. Off is off until it is let on, whoever dies.
/// GPREEMPT_ERROR_NO_DEVICE without such a device, GPREEMPT_ERROR_NO_SUCH_QUEUE without the queue.
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

/// What AMD hardware makes of a priority: 0 (low, from 0), 1 (medium, from 7) or 2 (high, from 11).
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_amd_pipe_priority(priority: c_int) -> c_int {
    let mut found = 0;
    let code = guarded(|| {
        found = amd::pipe_priority(priority)?;
        Ok::<(), Failure>(())
    });
    if code < 0 { code } else { found }
}
