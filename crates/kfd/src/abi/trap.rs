//! The debugger's interface: one ioctl with many operations, and the blocks they carry.

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::exception::Exceptions;
use super::exchanges;
use super::table::{self, SINCE_13};

/// What every operation begins with; the rest depends on which one it is.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Trap {
    /// The process that is debugged.
    pub pid: u32,
    /// One of [`Operation`].
    pub operation: u32,
    /// One of the blocks below, and zeros.
    pub rest: [u64; 3],
}

impl Trap {
    /// An operation with its block.
    pub fn new<B: IntoBytes + Immutable>(pid: u32, operation: Operation, block: &B) -> Self {
        let mut trap = Self::new_zeroed();
        // CAST: `Operation` has 32 bits.
        (trap.pid, trap.operation) = (pid, operation as u32);
        let bytes = block.as_bytes();
        // PANIC: no block is longer than the rest, which every one of them asserts.
        trap.rest.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        trap
    }

    /// The block, as it came back.
    pub fn block<B: FromBytes>(&self) -> B {
        // PANIC: as above.
        B::read_from_prefix(self.rest.as_bytes()).expect("a block fits").0
    }
}

/// What a debugger can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Begins a session.
    Enable = 0,
    /// Ends it. Everything that is suspended is resumed.
    Disable = 1,
    /// Answers a process that waits for its debugger.
    SendRuntimeEvent = 2,
    /// Takes queues off the device.
    SuspendQueues = 6,
    /// Lets queues on again.
    ResumeQueues = 7,
    /// Asks what happened.
    QueryDebugEvent = 11,
    /// Asks more about it.
    QueryExceptionInfo = 12,
    /// Lists queues.
    QueueSnapshot = 13,
    /// Lists devices.
    DeviceSnapshot = 14,
}

/// For [`Operation::Enable`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Enable {
    /// What the debugger wants to be told.
    pub exceptions: Exceptions,
    /// The address of a [`RuntimeInfo`].
    pub info: u64,
    /// Its bytes; afterwards, how many there would have been.
    pub info_size: u32,
    /// A file that a byte is written to when something happens.
    pub events: u32,
}

/// For [`Operation::SuspendQueues`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SuspendQueues {
    /// What is taken note of by this.
    pub exceptions: Exceptions,
    /// The address of the names of queues; afterwards they have bits that say how it went.
    pub queues: u64,
    /// How many.
    pub count: u32,
    /// How long waves may go on first, in 1024 clocks.
    pub grace: u32,
}

/// For [`Operation::ResumeQueues`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResumeQueues {
    /// As for suspending.
    pub queues: u64,
    /// How many.
    pub count: u32,
    /// Zero.
    pub padding: u32,
}

/// For [`Operation::SendRuntimeEvent`] and [`Operation::QueryDebugEvent`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DebugEvent {
    /// What happened; when asking, what is taken note of by that.
    pub exceptions: Exceptions,
    /// On which device.
    pub gpu_id: u32,
    /// In which queue.
    pub queue_id: u32,
}

/// For [`Operation::QueryExceptionInfo`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExceptionInfo {
    /// The address of what is asked for.
    pub info: u64,
    /// Its bytes.
    pub info_size: u32,
    /// The device or the queue; zero for the process.
    pub source: u32,
    /// The code.
    pub code: u32,
    /// 1 if it is taken note of by this.
    pub clear: u32,
}

/// For [`Operation::QueueSnapshot`] and [`Operation::DeviceSnapshot`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Snapshot {
    /// What is taken note of by this.
    pub exceptions: Exceptions,
    /// The address of an array.
    pub entries: u64,
    /// How many fit; afterwards, how many there are.
    pub count: u32,
    /// Bytes of one; afterwards, how many of them were written.
    pub entry_size: u32,
}

/// How a process stands with its runtime.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RuntimeInfo {
    /// Where the runtime keeps what a debugger wants to know.
    pub r_debug: u64,
    /// See [`RuntimeState`].
    pub state: u32,
    /// Whether traps have their registers set up.
    pub ttmp_setup: u32,
}

/// Whether a process's queues can be controlled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeState {
    /// Not yet, or no longer: its runtime is not there.
    Disabled,
    /// They can.
    Enabled,
    /// No: another process on the same device has a debugger, or something else is in the way.
    Busy,
    /// No: the device refused.
    Failed,
}

impl RuntimeInfo {
    /// Whether queues can be controlled.
    pub const fn runtime(&self) -> RuntimeState {
        match self.state {
            0 => RuntimeState::Disabled,
            1 => RuntimeState::Enabled,
            2 => RuntimeState::Busy,
            _ => RuntimeState::Failed,
        }
    }
}

/// One queue in a snapshot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct QueueEntry {
    /// What happened in it that nobody took note of.
    pub exceptions: Exceptions,
    /// Where its ring is.
    pub ring_base: u64,
    /// Where the index is that the process moves.
    pub write_pointer: u64,
    /// Where the index is that the device moves.
    pub read_pointer: u64,
    /// Where its waves are saved.
    pub save_area: u64,
    /// Its name in its process.
    pub queue_id: u32,
    /// Its device.
    pub gpu_id: u32,
    /// Bytes of the ring.
    pub ring_size: u32,
    /// See [`QueueType`](super::block::QueueType).
    pub queue_type: u32,
    /// Bytes of the save area.
    pub save_area_size: u32,
    /// Nothing yet.
    pub reserved: u32,
}

/// One device in a snapshot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DeviceEntry {
    /// What happened on it that nobody took note of.
    pub exceptions: Exceptions,
    /// Where local memory, scratch memory and all the rest begin and end.
    pub apertures: [u64; 6],
    /// Its name.
    pub gpu_id: u32,
    /// Its place on the bus.
    pub location: u32,
    /// Whose it is and what it is: vendor, device, revision, and the board's vendor and device.
    pub identity: [u32; 5],
    /// The version of its firmware.
    pub firmware: u32,
    /// For example 90402 for gfx9.4.2.
    pub gfx_version: u32,
    /// How many SIMDs it has.
    pub simds: u32,
    /// How many waves fit on one.
    pub waves_per_simd: u32,
    /// How many arrays of them there are.
    pub arrays: u32,
    /// How many arrays an engine has.
    pub arrays_per_engine: u32,
    /// How many dies with compute units it has.
    pub xccs: u32,
    /// What it can do.
    pub capability: u32,
    /// What it can do for a debugger.
    pub debug: u32,
}

/// `AMDKFD_IOC_DBG_TRAP`.
pub const DBG_TRAP: Opcode = exchanges::<Trap>(0x26);

/// In the name of a queue: it was not suspended because of the hardware.
pub const QUEUE_ERROR: u32 = 1 << 30;
/// In the name of a queue: there is no such queue, or it is new, or about to be destroyed.
pub const QUEUE_INVALID: u32 = 1 << 31;

table::layouts! {
    Trap = "struct kfd_ioctl_dbg_trap_args" in SINCE_13, 32 bytes:
        pid = "pid" at 0,
        operation = "op" at 4;
    Enable = "struct kfd_ioctl_dbg_trap_enable_args" in SINCE_13, 24 bytes:
        exceptions = "exception_mask" at 0,
        info = "rinfo_ptr" at 8,
        info_size = "rinfo_size" at 16,
        events = "dbg_fd" at 20;
    SuspendQueues = "struct kfd_ioctl_dbg_trap_suspend_queues_args" in SINCE_13, 24 bytes:
        exceptions = "exception_mask" at 0,
        queues = "queue_array_ptr" at 8,
        count = "num_queues" at 16,
        grace = "grace_period" at 20;
    ResumeQueues = "struct kfd_ioctl_dbg_trap_resume_queues_args" in SINCE_13, 16 bytes:
        queues = "queue_array_ptr" at 0,
        count = "num_queues" at 8;
    DebugEvent = "struct kfd_ioctl_dbg_trap_query_debug_event_args" in SINCE_13, 16 bytes:
        exceptions = "exception_mask" at 0,
        gpu_id = "gpu_id" at 8,
        queue_id = "queue_id" at 12;
    ExceptionInfo = "struct kfd_ioctl_dbg_trap_query_exception_info_args" in SINCE_13, 24 bytes:
        info = "info_ptr" at 0,
        info_size = "info_size" at 8,
        source = "source_id" at 12,
        code = "exception_code" at 16,
        clear = "clear_exception" at 20;
    Snapshot = "struct kfd_ioctl_dbg_trap_queue_snapshot_args" in SINCE_13, 24 bytes:
        exceptions = "exception_mask" at 0,
        entries = "snapshot_buf_ptr" at 8,
        count = "num_queues" at 16,
        entry_size = "entry_size" at 20;
    RuntimeInfo = "struct kfd_runtime_info" in SINCE_13, 16 bytes:
        r_debug = "r_debug" at 0,
        state = "runtime_state" at 8,
        ttmp_setup = "ttmp_setup" at 12;
    QueueEntry = "struct kfd_queue_snapshot_entry" in SINCE_13, 64 bytes:
        exceptions = "exception_status" at 0,
        ring_base = "ring_base_address" at 8,
        write_pointer = "write_pointer_address" at 16,
        read_pointer = "read_pointer_address" at 24,
        save_area = "ctx_save_restore_address" at 32,
        queue_id = "queue_id" at 40,
        gpu_id = "gpu_id" at 44,
        ring_size = "ring_size" at 48,
        queue_type = "queue_type" at 52,
        save_area_size = "ctx_save_restore_area_size" at 56;
    DeviceEntry = "struct kfd_dbg_device_info_entry" in SINCE_13, 120 bytes:
        exceptions = "exception_status" at 0,
        gpu_id = "gpu_id" at 56,
        location = "location_id" at 60,
        firmware = "fw_version" at 84,
        gfx_version = "gfx_target_version" at 88,
        simds = "simd_count" at 92,
        waves_per_simd = "max_waves_per_simd" at 96,
        arrays = "array_count" at 100,
        arrays_per_engine = "simd_arrays_per_engine" at 104,
        xccs = "num_xcc" at 108,
        capability = "capability" at 112,
        debug = "debug_prop" at 116;
}

/// Where the blocks of the operations begin, and blocks that two of them share.
macro_rules! same {
    ($($c_expression:literal => $value:expr),+ $(,)?) => {
        table::numbers! { $($c_expression in SINCE_13 => $value),+ }
    };
}

same! {
    "AMDKFD_IOC_DBG_TRAP" => DBG_TRAP,
    "KFD_IOC_DBG_TRAP_ENABLE" => Operation::Enable,
    "KFD_IOC_DBG_TRAP_DISABLE" => Operation::Disable,
    "KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT" => Operation::SendRuntimeEvent,
    "KFD_IOC_DBG_TRAP_SUSPEND_QUEUES" => Operation::SuspendQueues,
    "KFD_IOC_DBG_TRAP_RESUME_QUEUES" => Operation::ResumeQueues,
    "KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT" => Operation::QueryDebugEvent,
    "KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO" => Operation::QueryExceptionInfo,
    "KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT" => Operation::QueueSnapshot,
    "KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT" => Operation::DeviceSnapshot,
    "offsetof(struct kfd_ioctl_dbg_trap_args, enable)" => core::mem::offset_of!(Trap, rest),
    "offsetof(struct kfd_ioctl_dbg_trap_send_runtime_event_args, gpu_id)" => 8_u32,
    "offsetof(struct kfd_ioctl_dbg_trap_send_runtime_event_args, queue_id)" => 12_u32,
    "offsetof(struct kfd_ioctl_dbg_trap_device_snapshot_args, snapshot_buf_ptr)" => 8_u32,
    "offsetof(struct kfd_ioctl_dbg_trap_device_snapshot_args, num_devices)" => 16_u32,
    "offsetof(struct kfd_ioctl_dbg_trap_device_snapshot_args, entry_size)" => 20_u32,
    "offsetof(struct kfd_dbg_device_info_entry, vendor_id)" => 64_u32,
    "KFD_DBG_QUEUE_ERROR_BIT" => 30_u32,
    "KFD_DBG_QUEUE_INVALID_BIT" => 31_u32,
    "DEBUG_RUNTIME_STATE_DISABLED" => 0_u32,
    "DEBUG_RUNTIME_STATE_ENABLED" => 1_u32,
    "DEBUG_RUNTIME_STATE_ENABLED_BUSY" => 2_u32,
    "DEBUG_RUNTIME_STATE_ENABLED_ERROR" => 3_u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_as_it_went_in() {
        assert_eq!(DBG_TRAP, 0xc020_4b26);
        let block = DebugEvent { exceptions: Exceptions::RUNTIME, gpu_id: 7, queue_id: 9 };
        let trap = Trap::new(42, Operation::QueryDebugEvent, &block);
        assert_eq!((trap.pid, trap.operation, trap.rest[2]), (42, 11, 0));
        let back: DebugEvent = trap.block();
        assert_eq!((back.exceptions, back.gpu_id, back.queue_id), (Exceptions::RUNTIME, 7, 9));
    }
}
