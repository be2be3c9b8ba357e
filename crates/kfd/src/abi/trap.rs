//! The debugger's interface: one ioctl with many operations, and the blocks they carry.

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::exception::Exceptions;
use super::table::{self, Minors, SINCE_13, exchanges};

impl Trap {
    pub fn new<B: IntoBytes + Immutable>(pid: u32, operation: Operation, block: &B) -> Self {
        let mut trap = Self::new_zeroed();
        // CAST: `Operation` has 32 bits.
        (trap.pid, trap.operation) = (pid, operation as u32);
        let bytes = block.as_bytes();
        // PANIC: no block is longer than the rest, which `blocks!` asserts for each of them.
        trap.rest.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        trap
    }

    pub fn block<B: FromBytes>(&self) -> B {
        // PANIC: as above.
        B::read_from_prefix(self.rest.as_bytes()).expect("a block fits").0
    }
}

/// Whether KFD can control the queues of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeState {
    /// The process has not registered a runtime, or has unregistered it.
    Disabled,
    Enabled,
    /// No: for example, another process on the same device has the only debugger slot.
    Busy,
    /// No: the device refused.
    Failed,
}

impl RuntimeInfo {
    pub const fn runtime(&self) -> RuntimeState {
        match self.state {
            0 => RuntimeState::Disabled,
            1 => RuntimeState::Enabled,
            2 => RuntimeState::Busy,
            _ => RuntimeState::Failed,
        }
    }
}

/// Set by KFD in a queue's id: the hardware did not suspend the queue.
pub const QUEUE_ERROR: u32 = 1 << 30;
/// Set by KFD in a queue's id: the queue does not exist, is new, or is being destroyed.
pub const QUEUE_INVALID: u32 = 1 << 31;

crate::blocks! {
    for Minors, derive(Clone, Copy, Debug, Default, PartialEq, Eq);
    /// The header of every operation, followed by the operation's own block.
    pub struct Trap = "struct kfd_ioctl_dbg_trap_args" in SINCE_13, 32 bytes {
        pub pid: u32 = "pid" at 0,
        /// An [`Operation`].
        pub operation: u32 = "op" at 4,
        pub rest: [u64; 3],
    }
    pub struct Enable = "struct kfd_ioctl_dbg_trap_enable_args" in SINCE_13, 24 bytes {
        /// What the debugger subscribes to.
        pub exceptions: Exceptions = "exception_mask" at 0,
        /// The address of a [`RuntimeInfo`].
        pub info: u64 = "rinfo_ptr" at 8,
        /// Its size; output: the kernel's size.
        pub info_size: u32 = "rinfo_size" at 16,
        /// The descriptor to which KFD writes a byte per event.
        pub events: u32 = "dbg_fd" at 20,
    }
    pub struct SuspendQueues = "struct kfd_ioctl_dbg_trap_suspend_queues_args"
        in SINCE_13, 24 bytes {
        /// Cleared by this call.
        pub exceptions: Exceptions = "exception_mask" at 0,
        /// The address of an array of queue ids. Output: with [`QUEUE_ERROR`] or [`QUEUE_INVALID`].
        pub queues: u64 = "queue_array_ptr" at 8,
        pub count: u32 = "num_queues" at 16,
        /// How long waves may continue first, in 1024 clocks.
        pub grace: u32 = "grace_period" at 20,
    }
    pub struct ResumeQueues = "struct kfd_ioctl_dbg_trap_resume_queues_args" in SINCE_13, 16 bytes {
        pub queues: u64 = "queue_array_ptr" at 0,
        pub count: u32 = "num_queues" at 8,
        pub padding: u32,
    }
    /// The block of [`Operation::SendRuntimeEvent`] and [`Operation::QueryDebugEvent`].
    pub struct DebugEvent = "struct kfd_ioctl_dbg_trap_query_debug_event_args"
        in SINCE_13, 16 bytes {
        /// Input: the exceptions to clear. Output: those that were raised.
        pub exceptions: Exceptions = "exception_mask" at 0,
        pub gpu_id: u32 = "gpu_id" at 8,
        pub queue_id: u32 = "queue_id" at 12,
    }
    pub struct ExceptionInfo = "struct kfd_ioctl_dbg_trap_query_exception_info_args"
        in SINCE_13, 24 bytes {
        pub info: u64 = "info_ptr" at 0,
        pub info_size: u32 = "info_size" at 8,
        /// The device or queue; 0 for the process.
        pub source: u32 = "source_id" at 12,
        pub code: u32 = "exception_code" at 16,
        /// 1 clears the exception.
        pub clear: u32 = "clear_exception" at 20,
    }
    /// The block of [`Operation::QueueSnapshot`] and [`Operation::DeviceSnapshot`].
    pub struct Snapshot = "struct kfd_ioctl_dbg_trap_queue_snapshot_args" in SINCE_13, 24 bytes {
        /// Cleared by this call.
        pub exceptions: Exceptions = "exception_mask" at 0,
        pub entries: u64 = "snapshot_buf_ptr" at 8,
        /// Input: how many fit. Output: how many there are.
        pub count: u32 = "num_queues" at 16,
        /// Output: how many bytes of each the kernel wrote.
        pub entry_size: u32 = "entry_size" at 20,
    }
    pub struct RuntimeInfo = "struct kfd_runtime_info" in SINCE_13, 16 bytes {
        pub r_debug: u64 = "r_debug" at 0,
        /// See [`RuntimeState`].
        pub state: u32 = "runtime_state" at 8,
        pub ttmp_setup: u32 = "ttmp_setup" at 12,
    }
    pub struct QueueEntry = "struct kfd_queue_snapshot_entry" in SINCE_13, 64 bytes {
        /// Raised and not cleared.
        pub exceptions: Exceptions = "exception_status" at 0,
        pub ring_base: u64 = "ring_base_address" at 8,
        /// The address of the index that the process moves.
        pub write_pointer: u64 = "write_pointer_address" at 16,
        /// The address of the index that the device moves.
        pub read_pointer: u64 = "read_pointer_address" at 24,
        pub save_area: u64 = "ctx_save_restore_address" at 32,
        pub queue_id: u32 = "queue_id" at 40,
        pub gpu_id: u32 = "gpu_id" at 44,
        pub ring_size: u32 = "ring_size" at 48,
        /// A [`QueueType`](super::block::QueueType).
        pub queue_type: u32 = "queue_type" at 52,
        pub save_area_size: u32 = "ctx_save_restore_area_size" at 56,
        pub reserved: u32,
    }
    pub struct DeviceEntry = "struct kfd_dbg_device_info_entry" in SINCE_13, 120 bytes {
        pub exceptions: Exceptions = "exception_status" at 0,
        /// Bases and limits of local memory, scratch memory and the rest.
        pub apertures: [u64; 6],
        pub gpu_id: u32 = "gpu_id" at 56,
        pub location: u32 = "location_id" at 60,
        /// Vendor, device, revision, subsystem vendor and subsystem device.
        pub identity: [u32; 5],
        pub firmware: u32 = "fw_version" at 84,
        /// For example 90402 for gfx942.
        pub gfx_version: u32 = "gfx_target_version" at 88,
        pub simds: u32 = "simd_count" at 92,
        pub waves_per_simd: u32 = "max_waves_per_simd" at 96,
        pub arrays: u32 = "array_count" at 100,
        pub arrays_per_engine: u32 = "simd_arrays_per_engine" at 104,
        pub xccs: u32 = "num_xcc" at 108,
        pub capability: u32 = "capability" at 112,
        pub debug: u32 = "debug_prop" at 116,
    }
}

table::numbers! {
    constants {
        DBG_TRAP: Opcode = exchanges::<Trap>(0x26), "AMDKFD_IOC_DBG_TRAP" in SINCE_13;
    }

    /// The operations of [`DBG_TRAP`] that the code uses.
    enum Operation in SINCE_13 {
        Enable = 0, "KFD_IOC_DBG_TRAP_ENABLE";
        /// Ends the session. KFD resumes every suspended queue.
        Disable = 1, "KFD_IOC_DBG_TRAP_DISABLE";
        /// Replies to a process that waits for its debugger.
        SendRuntimeEvent = 2, "KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT";
        SuspendQueues = 6, "KFD_IOC_DBG_TRAP_SUSPEND_QUEUES";
        ResumeQueues = 7, "KFD_IOC_DBG_TRAP_RESUME_QUEUES";
        QueryDebugEvent = 11, "KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT";
        QueryExceptionInfo = 12, "KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO";
        QueueSnapshot = 13, "KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT";
        DeviceSnapshot = 14, "KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT";
    }

    "offsetof(struct kfd_ioctl_dbg_trap_args, enable)" in SINCE_13 =>
        core::mem::offset_of!(Trap, rest);
    "offsetof(struct kfd_ioctl_dbg_trap_send_runtime_event_args, gpu_id)" in SINCE_13 => 8_u32;
    "offsetof(struct kfd_ioctl_dbg_trap_send_runtime_event_args, queue_id)" in SINCE_13 => 12_u32;
    "offsetof(struct kfd_ioctl_dbg_trap_device_snapshot_args, snapshot_buf_ptr)" in SINCE_13 =>
        8_u32;
    "offsetof(struct kfd_ioctl_dbg_trap_device_snapshot_args, num_devices)" in SINCE_13 => 16_u32;
    "offsetof(struct kfd_ioctl_dbg_trap_device_snapshot_args, entry_size)" in SINCE_13 => 20_u32;
    "offsetof(struct kfd_dbg_device_info_entry, vendor_id)" in SINCE_13 => 64_u32;
    "KFD_DBG_QUEUE_ERROR_BIT" in SINCE_13 => 30_u32;
    "KFD_DBG_QUEUE_INVALID_BIT" in SINCE_13 => 31_u32;
    "DEBUG_RUNTIME_STATE_DISABLED" in SINCE_13 => 0_u32;
    "DEBUG_RUNTIME_STATE_ENABLED" in SINCE_13 => 1_u32;
    "DEBUG_RUNTIME_STATE_ENABLED_BUSY" in SINCE_13 => 2_u32;
    "DEBUG_RUNTIME_STATE_ENABLED_ERROR" in SINCE_13 => 3_u32;
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
