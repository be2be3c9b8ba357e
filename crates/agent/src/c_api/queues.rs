//! The queues that gpreemptd controls: finding them, taking them off, letting them on.
//!
//! What a process suspends it has to resume; what it has not resumed goes on when it ends, however
//! it ends, and when the lease is over.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "these words are the header's")]

use std::ffi::{c_char, c_int};

use gpreempt_wire::queue::{DeviceKind, QueueRecord};

use super::pointer;
use super::types::{
    GPREEMPT_DEVICE_AMD, GPREEMPT_DEVICE_EMULATED, GPREEMPT_DEVICE_NVIDIA, GPREEMPT_DEVICE_OTHER,
    GPREEMPT_QUEUE_ACTIVE, GPREEMPT_QUEUE_ON, GPREEMPT_QUEUE_OWN_PRIORITY,
    GPREEMPT_QUEUE_SUSPENDED, GPREEMPT_QUEUE_SUSPENDED_BY_US, gpreempt_queue_info,
};
use crate::code::Code;
use crate::entry::guarded;
use crate::failure::Failure;
use crate::queues::{self, Depth};

/// Every queue that gpreemptd controls, in the order of their ids. `count` becomes the number there
/// is, also if that is more than `capacity` (then GPREEMPT_ERROR_TOO_SMALL, and the first ones are
/// there). `out` may be NULL if `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_get_all_queues(
    out: *mut gpreempt_queue_info,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        check_list(out, capacity, count)?;
        let infos: Vec<gpreempt_queue_info> = queues::all()?.iter().map(info_of).collect();
        // SAFETY: the caller has room for that many structures and for one number.
        unsafe { list(out, capacity, count, &infos) }
    })
}

/// One queue. GPREEMPT_ERROR_NO_SUCH_QUEUE if it never was or is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_get_queue(id: u64, out: *mut gpreempt_queue_info) -> c_int {
    guarded(|| {
        pointer::check(out, "out")?;
        let record = queues::one(id)?;
        // SAFETY: the caller has room for one structure.
        unsafe { pointer::store(out, info_of(&record), "out") }
    })
}

/// The ids of the queues whose priority is between two, both included. As
/// gpreempt_get_all_queues() otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_find_queues_by_priority(
    priority_min: c_int,
    priority_max: c_int,
    ids: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        check_list(ids, capacity, count)?;
        let found = queues::by_priority(priority_min, priority_max)?;
        // SAFETY: the caller has room for that many ids and for one number.
        unsafe { list(ids, capacity, count, &found) }
    })
}

/// Takes queues off their devices, all of them or, if one of them cannot be, none. Each may finish
/// what it has within `grace_us` microseconds (0 to 60000000) and is off after that at the latest.
/// Waits until all are off. A queue that this process has suspended already stays so, with a new
/// lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_suspend_queues(
    ids: *const u64,
    n: usize,
    grace_us: u32,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller has that many ids.
        let ids = unsafe { pointer::load_all(ids, n, "ids") }?;
        queues::suspend(&ids, grace_us)
    })
}

/// Ends suspensions by this process. GPREEMPT_ERROR_STATE, and nothing changed, if one of the
/// queues is not suspended by it. Does not wait: who runs now is gpreemptd's to say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_resume_queues(ids: *const u64, n: usize) -> c_int {
    guarded(|| {
        // SAFETY: the caller has that many ids.
        let ids = unsafe { pointer::load_all(ids, n, "ids") }?;
        queues::resume(&ids)
    })
}

/// Takes a queue off its device at once and waits for that, at most `timeout_us` microseconds
/// (GPREEMPT_FOREVER: as long as it takes). It stays off until gpreempt_resume_queues(). After
/// GPREEMPT_ERROR_TIMED_OUT the preempt is withdrawn.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_preempt(id: u64, timeout_us: u64) -> c_int {
    guarded(|| queues::preempt(id, timeout_us))
}

/// As gpreempt_preempt() without waiting: gpreempt_get_queue() tells when the queue is off.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_preempt_async(id: u64) -> c_int {
    guarded(|| queues::preempt_async(id))
}

/// Gives a queue a priority of its own, 0 to 15, or again that of its process
/// (GPREEMPT_PRIORITY_OF_PROCESS). Lasts as long as the queue. Above 7 is for root and the group
/// gpreempt.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_queue_priority(id: u64, priority: c_int) -> c_int {
    guarded(|| queues::set_priority(id, priority))
}

/// Level 3: saves the running kernel in the middle and keeps the queue off until
/// gpreempt_restore(). Waits for it. GPREEMPT_ERROR_UNSUPPORTED where the device has no level 3.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_interrupt(id: u64) -> c_int {
    guarded(|| queues::stop_at(id, Depth::Interrupt))
}

/// Ends gpreempt_interrupt(): the kernel goes on at its next instruction.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_restore(id: u64) -> c_int {
    guarded(|| queues::resume(&[id]))
}

/// Level 2: the device stops fetching, and the running kernel ends first. Waits for it.
/// GPREEMPT_ERROR_UNSUPPORTED where the device has no level 2.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_deactivate(id: u64) -> c_int {
    guarded(|| queues::stop_at(id, Depth::Deactivate))
}

/// Ends gpreempt_deactivate().
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_reactivate(id: u64) -> c_int {
    guarded(|| queues::resume(&[id]))
}

/// How deep a preempt reaches on a queue's device: GPREEMPT_LEVEL_*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_level(id: u64, level: *mut c_int) -> c_int {
    guarded(|| {
        pointer::check(level, "level")?;
        let found = i32::from(queues::one(id)?.level);
        // SAFETY: the caller has room for one number.
        unsafe { pointer::store(level, found, "level") }
    })
}

/// Refuses a list that could not be written, before anything is asked.
fn check_list<T>(out: *mut T, capacity: usize, count: *mut usize) -> Result<(), Failure> {
    pointer::check(count, "count")?;
    if capacity > 0 { pointer::check(out, "the array") } else { Ok(()) }
}

/// # Safety
/// `out` has room for `capacity` values, and `count` for one.
unsafe fn list<T: Copy>(
    out: *mut T,
    capacity: usize,
    count: *mut usize,
    values: &[T],
) -> Result<(), Failure> {
    // SAFETY: as promised.
    unsafe { pointer::store(count, values.len(), "count") }?;
    // SAFETY: as promised.
    unsafe { pointer::store_all(out, capacity, values, "the array") }?;
    if values.len() > capacity && capacity > 0 {
        let sentence = format!("there are {} queues, and room for {capacity}", values.len());
        return Err(Failure::new(Code::TooSmall, sentence));
    }
    Ok(())
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
