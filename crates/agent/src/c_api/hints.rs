//! Hints: a request is coming, a request is done.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_int;

use crate::entry::guarded;
use crate::hints;

/// Says that this thread is about to submit work that should be done in `deadline_us` microseconds
/// (0 if that does not matter), so that the device is made free before the work is there. Costs no
/// system call, unless gpreemptd has to be woken, and apart from a thread's first hint.
/// GPREEMPT_ERROR_STATE if this thread has begun already and not ended.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_hint_begin(deadline_us: u64) -> c_int {
    guarded(|| hints::begin(deadline_us))
}

/// Says that the work of this thread is done. GPREEMPT_ERROR_STATE if it has not begun.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_hint_end() -> c_int {
    guarded(hints::end)
}
