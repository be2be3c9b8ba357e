//! Constants and structures of the C API; `gpreempt.h` is generated from this file.

use std::ffi::{c_char, c_int, c_void};

/// The version of the library: major, minor and patch, a byte each, as 0x00MMmmpp.
pub const GPREEMPT_VERSION: u32 = 0x0000_0100;

/// Success.
pub const GPREEMPT_OK: c_int = 0;
/// An argument is NULL or out of range.
pub const GPREEMPT_ERROR_ARGUMENT: c_int = -1;
/// gpreemptd is not running.
pub const GPREEMPT_ERROR_NO_DAEMON: c_int = -2;
/// gpreemptd is older or newer than this library.
pub const GPREEMPT_ERROR_VERSION: c_int = -3;
/// The caller may not do that.
pub const GPREEMPT_ERROR_NOT_PERMITTED: c_int = -4;
/// There is no such process, or its pid was reused.
pub const GPREEMPT_ERROR_NO_SUCH_PROCESS: c_int = -5;
/// There is no such queue, or it was destroyed.
pub const GPREEMPT_ERROR_NO_SUCH_QUEUE: c_int = -6;
/// The process is not under gpreemptd's control.
pub const GPREEMPT_ERROR_NOT_CONTROLLED: c_int = -7;
/// The device does not support the operation.
pub const GPREEMPT_ERROR_UNSUPPORTED: c_int = -8;
/// The operation is already in progress, or the ring is full.
pub const GPREEMPT_ERROR_BUSY: c_int = -9;
/// A limit is reached: sessions, suspensions, threads that give hints, memory of a device or of the
/// host.
pub const GPREEMPT_ERROR_LIMIT: c_int = -10;
/// The operation did not finish in time.
pub const GPREEMPT_ERROR_TIMED_OUT: c_int = -11;
/// The connection to gpreemptd or the device was lost. The next call connects again.
pub const GPREEMPT_ERROR_DISCONNECTED: c_int = -12;
/// The device did not carry out the command, or reports a fault.
pub const GPREEMPT_ERROR_DEVICE: c_int = -13;
/// The array is too small; the count holds the number of elements.
pub const GPREEMPT_ERROR_TOO_SMALL: c_int = -14;
/// Not possible in the present state: an end without a begin, a resume of a queue that this process
/// did not suspend, a queue that a parent process created.
pub const GPREEMPT_ERROR_STATE: c_int = -15;
/// There is no such device, or its driver cannot be loaded.
pub const GPREEMPT_ERROR_NO_DEVICE: c_int = -16;
/// Out of memory.
pub const GPREEMPT_ERROR_NO_MEMORY: c_int = -17;
/// The operating system refused the operation.
pub const GPREEMPT_ERROR_SYSTEM: c_int = -18;
/// An internal error of this library. Nothing was changed.
pub const GPREEMPT_ERROR_INTERNAL: c_int = -19;

/// The lowest priority.
pub const GPREEMPT_PRIORITY_LOWEST: c_int = 0;
/// The priority of a scheduled process without a setting.
pub const GPREEMPT_PRIORITY_DEFAULT: c_int = 4;
/// The highest priority that every user may set. The high class begins above it.
pub const GPREEMPT_PRIORITY_LOW_HIGHEST: c_int = 7;
/// The highest priority.
pub const GPREEMPT_PRIORITY_HIGHEST: c_int = 15;
/// A queue has the priority of its process.
pub const GPREEMPT_PRIORITY_OF_PROCESS: c_int = -1;

/// The queue may run.
pub const GPREEMPT_QUEUE_ON: u32 = 1;
/// The queue has work.
pub const GPREEMPT_QUEUE_ACTIVE: u32 = 2;
/// A client suspended the queue or its process.
pub const GPREEMPT_QUEUE_SUSPENDED: u32 = 4;
/// The queue has a priority of its own.
pub const GPREEMPT_QUEUE_OWN_PRIORITY: u32 = 8;
/// The queue was suspended by this process.
pub const GPREEMPT_QUEUE_SUSPENDED_BY_US: u32 = 16;

/// A device of an unknown kind.
pub const GPREEMPT_DEVICE_OTHER: u32 = 0;
/// An NVIDIA GPU.
pub const GPREEMPT_DEVICE_NVIDIA: u32 = 1;
/// An AMD GPU.
pub const GPREEMPT_DEVICE_AMD: u32 = 2;
/// An emulated GPU.
pub const GPREEMPT_DEVICE_EMULATED: u32 = 3;

/// Level 1: new launches wait, submitted launches run.
pub const GPREEMPT_LEVEL_BLOCK: c_int = 1;
/// Level 2: the device stops fetching, the running kernel finishes first.
pub const GPREEMPT_LEVEL_DEACTIVATE: c_int = 2;
/// Level 3: the running kernel is saved in the middle.
pub const GPREEMPT_LEVEL_INTERRUPT: c_int = 3;

/// Submit to the emulated GPU.
pub const GPREEMPT_BACKEND_EMULATED: c_int = 1;
/// Submit to CUDA. libcuda is loaded by the first such queue.
pub const GPREEMPT_BACKEND_CUDA: c_int = 2;

/// A launch that would have to wait is GPREEMPT_ERROR_BUSY instead.
pub const GPREEMPT_LAUNCH_NO_WAIT: u32 = 1;

/// Evict a process and its descendants, together.
pub const GPREEMPT_EVICT_TREE: u32 = 1;
/// gpreemptd chooses the device.
pub const GPREEMPT_ANY_DEVICE: u32 = u32::MAX;

/// A wait without a limit.
pub const GPREEMPT_FOREVER: u64 = u64::MAX;

/// One queue: the unit that is preempted. On NVIDIA that is a context's channel group, with all of
/// its streams.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct gpreempt_queue_info {
    /// Bytes of this structure in the library.
    pub size: u32,
    /// The pid of the process.
    pub pid: u32,
    /// Its number in gpreemptd, never used for another queue.
    pub id: u64,
    /// Its number on the device, where it has one.
    pub native: u64,
    /// When the process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Packets in its ring that the device has not fetched.
    pub pending: u64,
    /// Time on the device so far, in microseconds.
    pub ran_us: u64,
    /// Preempts so far.
    pub preempts: u64,
    /// The user of the process.
    pub uid: u32,
    /// The device's number in gpreemptd.
    pub device: u32,
    /// The kind of the device: GPREEMPT_DEVICE_*.
    pub device_kind: u32,
    /// 0 (lowest) to 15 (highest).
    pub priority: i32,
    /// The highest preempt level of its device: GPREEMPT_LEVEL_*.
    pub level: i32,
    /// The sum of GPREEMPT_QUEUE_* flags.
    pub flags: u32,
    /// The name of the process, terminated by a zero.
    pub name: [c_char; 16],
    /// Zero.
    pub reserved: [u64; 4],
}

/// The options of a queue for submission. Set everything to zero first, then `size`.
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
    /// Launches in flight at most: further ones wait. 0 stands for 4 with priorities from 0 to 7,
    /// and for as many as fit with higher ones.
    pub depth: u32,
    /// Memory on the emulated GPU, initially zero. 0 stands for 64 KiB.
    pub memory_bytes: u32,
    /// The socket of the emulated GPU. NULL: the value of GPREEMPT_EMULATED_SOCKET.
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
    /// Emulated: 4. CUDA: ignored, the kernel defines it.
    pub argument_count: u32,
    /// The sum of GPREEMPT_LAUNCH_* flags.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 6],
}
