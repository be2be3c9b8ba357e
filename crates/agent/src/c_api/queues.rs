//! The queues that gpreemptd controls: list, suspend, preempt, resume, set a priority.
//!
//! Queues that a process suspended are resumed by it, when it ends in any way, and when the lease
//! is over.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "the doc comments are those of the header")]

use std::ffi::{c_char, c_int};

use gpreempt_wire::queue::{DeviceKind, QUEUE_IDS_MAX, QueueRecord, StopDepth};

use super::pointer;
use super::types::{
    GPREEMPT_DEVICE_AMD, GPREEMPT_DEVICE_EMULATED, GPREEMPT_DEVICE_NVIDIA, GPREEMPT_DEVICE_OTHER,
    GPREEMPT_QUEUE_ACTIVE, GPREEMPT_QUEUE_ON, GPREEMPT_QUEUE_OWN_PRIORITY,
    GPREEMPT_QUEUE_SUSPENDED, GPREEMPT_QUEUE_SUSPENDED_BY_US, gpreempt_queue_info,
};
use crate::error::{ErrorCode, Failure, fail};
use crate::ffi_guard::guarded;
use crate::requests;

/// Lists every queue that gpreemptd controls, by ascending id. `count` becomes their number,
/// also if that is more than `capacity` (then GPREEMPT_ERROR_TOO_SMALL, and the first ones are
/// written). `out` may be NULL if `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_get_all_queues(
    out: *mut gpreempt_queue_info,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    let infos = || Ok(requests::queues()?.iter().map(info_of).collect());
    // SAFETY: the caller has room for that many structures and for one number.
    unsafe { list(out, capacity, count, infos) }
}

/// Reads one queue. GPREEMPT_ERROR_NO_SUCH_QUEUE if it does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_get_queue(id: u64, out: *mut gpreempt_queue_info) -> c_int {
    // SAFETY: the caller has room for one structure.
    unsafe { pointer::fill(out, "out", || Ok(info_of(&requests::queue(id)?))) }
}

/// Lists the ids of the queues with a priority from `priority_min` to `priority_max`. Otherwise as
/// gpreempt_get_all_queues().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_find_queues_by_priority(
    priority_min: c_int,
    priority_max: c_int,
    ids: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    let found = || requests::queues_by_priority(priority_min, priority_max);
    // SAFETY: the caller has room for that many ids and for one number.
    unsafe { list(ids, capacity, count, found) }
}

/// Suspends queues: all of them, or none if one of them cannot be. Each may finish its work within
/// `grace_us` microseconds (0 to 60000000) and is preempted after that. Waits until all are off. A
/// queue that this process has suspended already gets a new lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_suspend_queues(
    ids: *const u64,
    n: usize,
    grace_us: u32,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller has that many ids.
        let ids = unsafe { pointer::load_all(ids, n, QUEUE_IDS_MAX, "ids") }?;
        requests::suspend(&ids, grace_us)
    })
}

/// Ends suspensions by this process. GPREEMPT_ERROR_STATE, and no change, if one of the queues is
/// not suspended by it. Does not wait: gpreemptd decides which queue runs next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_resume_queues(ids: *const u64, n: usize) -> c_int {
    guarded(|| {
        // SAFETY: the caller has that many ids.
        let ids = unsafe { pointer::load_all(ids, n, QUEUE_IDS_MAX, "ids") }?;
        requests::resume(&ids)
    })
}

/// Preempts a queue and waits until it is off, for at most `timeout_us` microseconds
/// (GPREEMPT_FOREVER: without a limit). It stays off until gpreempt_resume_queues(). After
/// GPREEMPT_ERROR_TIMED_OUT the preempt is withdrawn.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_preempt(id: u64, timeout_us: u64) -> c_int {
    guarded(|| requests::preempt(id, timeout_us))
}

/// As gpreempt_preempt() without waiting: gpreempt_get_queue() tells when the queue is off.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_preempt_async(id: u64) -> c_int {
    guarded(|| requests::preempt_async(id))
}

/// Gives a queue a priority of its own, 0 to 15, or restores that of its process
/// (GPREEMPT_PRIORITY_OF_PROCESS). Lasts as long as the queue. A priority above 7 needs root or the
/// group gpreempt.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_queue_priority(id: u64, priority: c_int) -> c_int {
    guarded(|| requests::set_queue_priority(id, priority))
}

/// Level 3: saves the running kernel in the middle and keeps the queue off until
/// gpreempt_restore(). Waits for it. GPREEMPT_ERROR_UNSUPPORTED where the device has no level 3.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_interrupt(id: u64) -> c_int {
    guarded(|| requests::stop_at(id, StopDepth::Interrupt))
}

/// Ends gpreempt_interrupt(): the kernel continues at its next instruction.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_restore(id: u64) -> c_int {
    guarded(|| requests::resume(&[id]))
}

/// Level 2: the device stops fetching, and the running kernel finishes first. Waits for it.
/// GPREEMPT_ERROR_UNSUPPORTED where the device has no level 2.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_deactivate(id: u64) -> c_int {
    guarded(|| requests::stop_at(id, StopDepth::Deactivate))
}

/// Ends gpreempt_deactivate().
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_reactivate(id: u64) -> c_int {
    guarded(|| requests::resume(&[id]))
}

/// Reads the highest preempt level of a queue's device: GPREEMPT_LEVEL_*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_level(id: u64, level: *mut c_int) -> c_int {
    // SAFETY: the caller has room for one number.
    unsafe { pointer::fill(level, "level", || Ok(i32::from(requests::queue(id)?.level))) }
}

/// The body of a C function that writes a list. The pointers are checked before the work is done.
///
/// # Safety
/// `out` has room for `capacity` values, and `count` for one.
unsafe fn list<T: Copy>(
    out: *mut T,
    capacity: usize,
    count: *mut usize,
    values: impl FnOnce() -> Result<Vec<T>, Failure>,
) -> c_int {
    guarded(|| {
        pointer::check(count, "count")?;
        if capacity > 0 {
            pointer::check(out, "the array")?;
        }
        let values = values()?;
        // SAFETY: promised by the caller.
        unsafe { pointer::store(count, values.len(), "count") }?;
        // SAFETY: promised by the caller.
        unsafe { pointer::store_all(out, capacity, &values, "the array") }?;
        if values.len() > capacity && capacity > 0 {
            let sentence = format!("there are {} queues, and room for {capacity}", values.len());
            return fail(ErrorCode::TooSmall, sentence);
        }
        Ok(())
    })
}

fn info_of(record: &QueueRecord) -> gpreempt_queue_info {
    let flags = [
        (record.is_on, GPREEMPT_QUEUE_ON),
        (record.is_active, GPREEMPT_QUEUE_ACTIVE),
        (record.is_suspended, GPREEMPT_QUEUE_SUSPENDED),
        (record.has_own_priority, GPREEMPT_QUEUE_OWN_PRIORITY),
        (record.is_suspended_by_asker, GPREEMPT_QUEUE_SUSPENDED_BY_US),
    ];
    let mut name: [c_char; 16] = [0; 16];
    // The last byte stays zero.
    for (to, from) in name.iter_mut().take(15).zip(record.name.as_str().bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    gpreempt_queue_info {
        size: u32::try_from(size_of::<gpreempt_queue_info>()).unwrap_or(0),
        pid: record.pid,
        id: record.id,
        native: record.native,
        start_ticks: record.start_ticks,
        pending: record.pending,
        ran_us: record.ran_us,
        preempts: record.preempts,
        uid: record.uid,
        device: record.device,
        device_kind: match record.kind {
            DeviceKind::Nvidia => GPREEMPT_DEVICE_NVIDIA,
            DeviceKind::Amd => GPREEMPT_DEVICE_AMD,
            DeviceKind::Emulated => GPREEMPT_DEVICE_EMULATED,
            DeviceKind::Other => GPREEMPT_DEVICE_OTHER,
        },
        priority: i32::from(record.priority.level()),
        level: i32::from(record.level),
        flags: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
        name,
        reserved: [0; 4],
    }
}
