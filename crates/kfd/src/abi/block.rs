//! The ioctls of `/dev/kfd` that a process calls for itself, and the one that pauses a process.

use rustix::ioctl::Opcode;

use super::table::{
    self, ALWAYS, Layout, Minors, SINCE_7, SINCE_13, SINCE_17, UNTIL_16, exchanges, reads, writes,
};
use crate::layout::Block;

crate::blocks! {
    for Minors, derive(Clone, Copy, Debug, Default, PartialEq, Eq);
    pub struct GetVersion = "struct kfd_ioctl_get_version_args" in ALWAYS, 8 bytes {
        pub major: u32 = "major_version" at 0,
        pub minor: u32 = "minor_version" at 4,
    }
    /// Since 1.17 the kernel's block is longer. The kernel accepts this one and reads the missing
    /// fields as zero.
    pub struct CreateQueue = "struct kfd_ioctl_create_queue_args" in UNTIL_16, 88 bytes {
        pub ring_base: u64 = "ring_base_address" at 0,
        /// The address of the index that the process moves.
        pub write_pointer: u64 = "write_pointer_address" at 8,
        /// The address of the index that the device moves.
        pub read_pointer: u64 = "read_pointer_address" at 16,
        /// Output: the offset of the doorbell in `/dev/kfd`.
        pub doorbell_offset: u64 = "doorbell_offset" at 24,
        pub ring_size: u32 = "ring_size" at 32,
        pub gpu_id: u32 = "gpu_id" at 36,
        /// A [`QueueType`].
        pub queue_type: u32 = "queue_type" at 40,
        /// 0 creates the queue inactive, 100 active.
        pub percentage: u32 = "queue_percentage" at 44,
        /// 0 to [`PRIORITY_MAX`].
        pub priority: u32 = "queue_priority" at 48,
        /// Output.
        pub queue_id: u32 = "queue_id" at 52,
        pub end_of_pipe: u64 = "eop_buffer_address" at 56,
        pub end_of_pipe_size: u64 = "eop_buffer_size" at 64,
        /// The area into which the device saves the waves of a preempted queue.
        pub save_area: u64 = "ctx_save_restore_address" at 72,
        pub save_area_size: u32 = "ctx_save_restore_size" at 80,
        pub control_stack_size: u32 = "ctl_stack_size" at 84,
    }
    /// Blocks in the kernel while a debugger has the queue suspended.
    pub struct DestroyQueue = "struct kfd_ioctl_destroy_queue_args" in ALWAYS, 8 bytes {
        pub queue_id: u32 = "queue_id" at 0,
        pub padding: u32,
    }
    pub struct UpdateQueue = "struct kfd_ioctl_update_queue_args" in ALWAYS, 24 bytes {
        /// The kernel has no call that returns it: the creator of the queue must remember it.
        pub ring_base: u64 = "ring_base_address" at 0,
        pub queue_id: u32 = "queue_id" at 8,
        pub ring_size: u32 = "ring_size" at 12,
        /// 0 takes the queue off the device, 100 lets it run.
        pub percentage: u32 = "queue_percentage" at 16,
        pub priority: u32 = "queue_priority" at 20,
    }
    /// Registers or unregisters the caller's runtime. Blocks until the debugger replies, if the
    /// caller has one.
    pub struct RuntimeEnable = "struct kfd_ioctl_runtime_enable_args" in SINCE_13, 16 bytes {
        /// The address of the runtime's `r_debug` structure.
        pub r_debug: u64 = "r_debug" at 0,
        /// 1 registers, 0 unregisters.
        pub mode: u32 = "mode_mask" at 8,
        /// Output.
        pub capabilities: u32 = "capabilities_mask" at 12,
    }
    /// Checkpoint and restore. The code only uses the operations of [`CriuOperation`], which read
    /// no address.
    pub struct Criu = "struct kfd_ioctl_criu_args" in SINCE_7, 56 bytes {
        pub devices: u64 = "devices" at 0,
        pub objects: u64 = "bos" at 8,
        pub private_data: u64 = "priv_data" at 16,
        pub private_data_size: u64 = "priv_data_size" at 24,
        pub device_count: u32 = "num_devices" at 32,
        pub buffer_count: u32 = "num_bos" at 36,
        pub object_count: u32 = "num_objects" at 40,
        pub pid: u32 = "pid" at 44,
        /// A [`CriuOperation`].
        pub operation: u32 = "op" at 48,
        pub padding: u32,
    }
}

/// Blocks that are longer in newer versions, with every listed field at its old offset.
pub(crate) const GROWN: &[Layout] =
    &[Layout { size: 96, versions: &SINCE_17, ..<CreateQueue as Block>::LAYOUT }];

table::numbers! {
    constants {
        GET_VERSION: Opcode = reads::<GetVersion>(0x01), "AMDKFD_IOC_GET_VERSION" in ALWAYS;
        CREATE_QUEUE: Opcode =
            exchanges::<CreateQueue>(0x02), "AMDKFD_IOC_CREATE_QUEUE" in UNTIL_16;
        DESTROY_QUEUE: Opcode =
            exchanges::<DestroyQueue>(0x03), "AMDKFD_IOC_DESTROY_QUEUE" in ALWAYS;
        UPDATE_QUEUE: Opcode = writes::<UpdateQueue>(0x07), "AMDKFD_IOC_UPDATE_QUEUE" in ALWAYS;
        CRIU: Opcode = exchanges::<Criu>(0x22), "AMDKFD_IOC_CRIU_OP" in SINCE_7;
        RUNTIME_ENABLE: Opcode =
            exchanges::<RuntimeEnable>(0x25), "AMDKFD_IOC_RUNTIME_ENABLE" in SINCE_13;
        PRIORITY_MAX: u32 = 15, "KFD_MAX_QUEUE_PRIORITY" in ALWAYS;
    }

    enum CriuOperation in SINCE_7 {
        /// Describes the process, which takes all its queues off its devices. The kernel counts
        /// these pauses, but one `Unpause` is all it accepts: never call this twice.
        ProcessInfo = 0, "KFD_CRIU_OP_PROCESS_INFO";
        Unpause = 2, "KFD_CRIU_OP_UNPAUSE";
    }

    /// The kinds of queue in `CREATE_QUEUE` and in snapshots.
    enum QueueType in ALWAYS {
        /// Kernels, in the hardware's PM4 packets.
        Compute = 0, "KFD_IOC_QUEUE_TYPE_COMPUTE";
        /// Copies.
        Sdma = 1, "KFD_IOC_QUEUE_TYPE_SDMA";
        /// Kernels, in HSA's AQL packets: what ROCm creates.
        ComputeAql = 2, "KFD_IOC_QUEUE_TYPE_COMPUTE_AQL";
        /// Copies between devices.
        SdmaXgmi = 3, "KFD_IOC_QUEUE_TYPE_SDMA_XGMI";
    }

    "KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK" in SINCE_13 => 1_u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(UPDATE_QUEUE, 0x4018_4b07);
        assert_eq!(CRIU, 0xc038_4b22);
        assert_eq!(CREATE_QUEUE, 0xc058_4b02);
    }
}
