//! The C functions that move GPU memory between a GPU and the host.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::c_int;

use crate::ffi_guard::guarded;
use crate::memory;

/// Moves the GPU memory of a process to the host. It does no GPU work until its memory is back, at
/// the same addresses and with the same contents. Returns when the memory is on the host, after at
/// most `timeout_us` microseconds (0 to 86400000000); after GPREEMPT_ERROR_TIMED_OUT the move
/// continues. The memory returns after `lease_ms` milliseconds (0 to 86400000; 0: without a lease)
/// or with gpreempt_restore_process(). `flags`: 0, or GPREEMPT_EVICT_TREE.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_evict(pid: u32, lease_ms: u32, flags: u32, timeout_us: u64) -> c_int {
    guarded(|| memory::evict(pid, lease_ms, flags, timeout_us))
}

/// Ends gpreempt_evict(). Returns when the memory is on the GPU, after at most `timeout_us`
/// microseconds (0 to 86400000000). After GPREEMPT_ERROR_TIMED_OUT it returns as soon as the GPU
/// has room for it. GPREEMPT_ERROR_STATE if the process is not evicted.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_restore_process(pid: u32, timeout_us: u64) -> c_int {
    guarded(|| memory::restore(pid, timeout_us))
}

/// Makes room for the calling process: returns when `bytes` of memory are free on a device, after
/// at most `timeout_us` microseconds (0 to 86400000000). Processes with a lower priority that are
/// evictable are evicted for it. They return when this process ends, or claims 0 bytes. The memory
/// is not reserved: allocate it at once. `device` is its number in gpreemptd, or
/// GPREEMPT_ANY_DEVICE. After an error, GPREEMPT_ERROR_LIMIT for memory that is short, nothing
/// stays evicted.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_make_room(bytes: u64, device: u32, timeout_us: u64) -> c_int {
    guarded(|| memory::make_room(bytes, device, timeout_us))
}

/// Says whether a process, and the children it starts from now on, may be evicted when processes
/// with a higher priority need room: 0 or 1. `pid` 0 is the calling process.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_evictable(pid: u32, evictable: c_int) -> c_int {
    guarded(|| memory::set_evictable(pid, evictable))
}
