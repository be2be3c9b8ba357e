//! What programs in C see: numbers and structures. `gpreempt.h` is made from this.

use std::ffi::{c_char, c_int, c_void};

/// The version of the library: major, minor and patch, a byte each, as 0x00MMmmpp.
pub const GPREEMPT_VERSION: u32 = 0x0000_0100;

/// It worked.
pub const GPREEMPT_OK: c_int = 0;
/// An argument is NULL or out of range.
pub const GPREEMPT_ERROR_ARGUMENT: c_int = -1;
/// gpreemptd is not running.
pub const GPREEMPT_ERROR_NO_DAEMON: c_int = -2;
/// gpreemptd is older or newer than this library.
pub const GPREEMPT_ERROR_VERSION: c_int = -3;
/// The caller may not do that.
pub const GPREEMPT_ERROR_NOT_PERMITTED: c_int = -4;
/// There is no such process, or it is not the one it was.
pub const GPREEMPT_ERROR_NO_SUCH_PROCESS: c_int = -5;
/// There is no such queue, or it is gone.
pub const GPREEMPT_ERROR_NO_SUCH_QUEUE: c_int = -6;
/// The process is not under gpreemptd's control.
pub const GPREEMPT_ERROR_NOT_CONTROLLED: c_int = -7;
/// The device cannot do that.
pub const GPREEMPT_ERROR_UNSUPPORTED: c_int = -8;
/// What was asked for is going on already, or the ring is full.
pub const GPREEMPT_ERROR_BUSY: c_int = -9;
/// Too much: sessions, suspensions, threads that give hints.
pub const GPREEMPT_ERROR_LIMIT: c_int = -10;
/// It did not happen in time.
pub const GPREEMPT_ERROR_TIMED_OUT: c_int = -11;
/// gpreemptd or the device went away in the middle. The next call connects again.
pub const GPREEMPT_ERROR_DISCONNECTED: c_int = -12;
/// The device was told and did not, or reports a fault.
pub const GPREEMPT_ERROR_DEVICE: c_int = -13;
/// The array is too small; the count says how many there are.
pub const GPREEMPT_ERROR_TOO_SMALL: c_int = -14;
/// Not in this state: an end without a begin, a resume of what was not suspended by this process,
/// a queue that a parent process created.
pub const GPREEMPT_ERROR_STATE: c_int = -15;
/// There is no such device, or its driver cannot be loaded.
pub const GPREEMPT_ERROR_NO_DEVICE: c_int = -16;
/// There is no memory left.
pub const GPREEMPT_ERROR_NO_MEMORY: c_int = -17;
/// The operating system refuses.
pub const GPREEMPT_ERROR_SYSTEM: c_int = -18;
/// A mistake in this library. Nothing else happened.
pub const GPREEMPT_ERROR_INTERNAL: c_int = -19;

/// The lowest priority.
pub const GPREEMPT_PRIORITY_LOWEST: c_int = 0;
/// The priority of those of whom nothing is known.
pub const GPREEMPT_PRIORITY_DEFAULT: c_int = 4;
/// The highest priority that everybody may have. Above it begins the high class.
pub const GPREEMPT_PRIORITY_LOW_HIGHEST: c_int = 7;
/// The highest priority.
pub const GPREEMPT_PRIORITY_HIGHEST: c_int = 15;
/// A queue has the priority of its process.
pub const GPREEMPT_PRIORITY_OF_PROCESS: c_int = -1;

/// The queue may run.
pub const GPREEMPT_QUEUE_ON: u32 = 1;
/// The queue has work.
pub const GPREEMPT_QUEUE_ACTIVE: u32 = 2;
/// Somebody suspended the queue or its process.
pub const GPREEMPT_QUEUE_SUSPENDED: u32 = 4;
/// The queue has a priority of its own.
pub const GPREEMPT_QUEUE_OWN_PRIORITY: u32 = 8;
/// The queue was suspended by this process.
pub const GPREEMPT_QUEUE_SUSPENDED_BY_US: u32 = 16;

/// A device of no known kind.
pub const GPREEMPT_DEVICE_OTHER: u32 = 0;
/// An NVIDIA GPU.
pub const GPREEMPT_DEVICE_NVIDIA: u32 = 1;
/// An AMD GPU.
pub const GPREEMPT_DEVICE_AMD: u32 = 2;
/// An emulated GPU.
pub const GPREEMPT_DEVICE_EMULATED: u32 = 3;

/// Level 1: new launches wait, what is submitted runs.
pub const GPREEMPT_LEVEL_BLOCK: c_int = 1;
/// Level 2: the device stops fetching, the running kernel ends first.
pub const GPREEMPT_LEVEL_DEACTIVATE: c_int = 2;
/// Level 3: the running kernel is saved in the middle.
pub const GPREEMPT_LEVEL_INTERRUPT: c_int = 3;

/// Submit to the emulated GPU.
pub const GPREEMPT_BACKEND_EMULATED: c_int = 1;
/// Submit to CUDA. libcuda is loaded then, not before.
pub const GPREEMPT_BACKEND_CUDA: c_int = 2;

/// A launch that would have to wait is GPREEMPT_ERROR_BUSY instead.
pub const GPREEMPT_LAUNCH_NO_WAIT: u32 = 1;

/// No limit to a wait.
pub const GPREEMPT_FOREVER: u64 = u64::MAX;

/// One queue: what the hardware can stop. On NVIDIA that is a context's channel group, with all of
/// its streams.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct gpreempt_queue_info {
    /// Bytes of this structure, as the library knows it.
    pub size: u32,
    /// The process.
    pub pid: u32,
    /// Its number in gpreemptd. No two queues ever have the same.
    pub id: u64,
    /// Its number on the device, where it has one.
    pub native: u64,
    /// When the process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Work that waits in its ring.
    pub pending: u64,
    /// Time it had the device so far, in microseconds.
    pub ran_us: u64,
    /// Times it was preempted so far.
    pub preempts: u64,
    /// Whose process it is.
    pub uid: u32,
    /// The device's number in gpreemptd.
    pub device: u32,
    /// What kind of device: GPREEMPT_DEVICE_*.
    pub device_kind: u32,
    /// 0 (lowest) to 15 (highest).
    pub priority: i32,
    /// How deep a preempt reaches on its device: GPREEMPT_LEVEL_*.
    pub level: i32,
    /// GPREEMPT_QUEUE_*, added up.
    pub flags: u32,
    /// The name of the process, ended by a zero.
    pub name: [c_char; 16],
    /// Zero.
    pub reserved: [u64; 4],
}

/// How a queue for submitting is made. Set everything to zero first, then `size`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct gpreempt_queue_options {
    /// Bytes of this structure: sizeof(gpreempt_queue_options).
    pub size: u32,
    /// GPREEMPT_BACKEND_*.
    pub backend: i32,
    /// 0 (lowest) to 15 (highest).
    pub priority: i32,
    /// The device: its number on the emulated GPU. CUDA takes that of the current context.
    pub device: u32,
    /// How many launches may be in flight: further ones wait. 0 is 4 for priorities from 0 to 7,
    /// and as many as fit for higher ones.
    pub depth: u32,
    /// Memory on the emulated GPU, all zero at first. 0 is 64 KiB.
    pub memory_bytes: u32,
    /// The socket of the emulated GPU. NULL: the variable GPREEMPT_EMULATED_SOCKET says it.
    pub socket: *const c_char,
    /// Zero.
    pub reserved: [u64; 4],
}

/// One launch of a kernel. Set everything to zero first, then `size`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct gpreempt_launch {
    /// Bytes of this structure: sizeof(gpreempt_launch).
    pub size: u32,
    /// CUDA: bytes of dynamic shared memory. Emulated: 0.
    pub shared_bytes: u32,
    /// CUDA: a CUfunction. Emulated: a kernel's number.
    pub kernel: usize,
    /// Work-groups. Emulated: the first number counts, the others are 1.
    pub grid: [u32; 3],
    /// CUDA: threads in a group. Emulated: waves in a group, then 1 and 1.
    pub block: [u32; 3],
    /// Pointers to the arguments, as cuLaunchKernel takes them. Emulated: four pointers to
    /// uint32_t: the region's address, a number, busy nanoseconds of a wave, the region's bytes.
    pub arguments: *mut *mut c_void,
    /// Emulated: 4. CUDA: not looked at, the kernel knows.
    pub argument_count: u32,
    /// GPREEMPT_LAUNCH_*, added up.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 6],
}
