//! Whole processes: their priority, and taking them off their devices.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "these words are the header's")]

use std::ffi::c_int;

use super::pointer;
use crate::entry::guarded;
use crate::processes;

/// Gives a process, and the children it starts from now on, a priority: 0 (lowest) to 15 (highest).
/// `pid` 0 is the calling process. It need not use a GPU yet. Above 7 is for root and the group
/// gpreempt.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_priority(pid: u32, priority: c_int) -> c_int {
    guarded(|| processes::set_priority(pid, priority))
}

/// The priority that a process has; GPREEMPT_ERROR_NOT_CONTROLLED if it has no queue that gpreemptd
/// controls. `pid` 0 is the calling process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_get_priority(pid: u32, priority: *mut c_int) -> c_int {
    guarded(|| {
        pointer::check(priority, "priority")?;
        let found = processes::priority(pid)?;
        // SAFETY: the caller has room for one number.
        unsafe { pointer::store(priority, found, "priority") }
    })
}

/// Restores a process and leaves it alone from now on. `pid` 0 is the calling process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_detach(pid: u32) -> c_int {
    guarded(|| processes::detach(pid))
}

/// Takes a process off its devices, for at most `lease_ms` milliseconds (1 to 86400000). Does not
/// wait. It keeps its memory. Unlike a suspension of queues this one outlives the calling process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_suspend_process(pid: u32, lease_ms: u32) -> c_int {
    guarded(|| processes::suspend(pid, lease_ms))
}

/// Ends the suspension of a process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_resume_process(pid: u32) -> c_int {
    guarded(|| processes::resume(pid))
}
