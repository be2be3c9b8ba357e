//! The ioctls of `/dev/kfd` that a process calls for itself, and the one that pauses a process.
#![expect(missing_debug_implementations, reason = "zerocopy derives helper types")]

use rustix::ioctl::Opcode;

use super::table::{
    self, ALWAYS, Block, Layout, SINCE_7, SINCE_13, SINCE_17, UNTIL_16, exchanges, reads, writes,
};

table::blocks! {
    GetVersion = "struct kfd_ioctl_get_version_args" in ALWAYS, 8 bytes {
        major: u32 = "major_version" at 0,
        minor: u32 = "minor_version" at 4,
    }
    /// Since 1.17 the kernel's block is longer. The kernel accepts this one and reads the missing
    /// fields as zero.
    CreateQueue = "struct kfd_ioctl_create_queue_args" in UNTIL_16, 88 bytes {
        ring_base: u64 = "ring_base_address" at 0,
        /// The address of the index that the process moves.
        write_pointer: u64 = "write_pointer_address" at 8,
        /// The address of the index that the device moves.
        read_pointer: u64 = "read_pointer_address" at 16,
        /// Output: the offset of the doorbell in `/dev/kfd`.
        doorbell_offset: u64 = "doorbell_offset" at 24,
        ring_size: u32 = "ring_size" at 32,
        gpu_id: u32 = "gpu_id" at 36,
        /// A [`QueueType`].
        queue_type: u32 = "queue_type" at 40,
        /// 0 creates the queue inactive, 100 active.
        percentage: u32 = "queue_percentage" at 44,
        /// 0 to [`PRIORITY_MAX`].
        priority: u32 = "queue_priority" at 48,
        /// Output.
        queue_id: u32 = "queue_id" at 52,
        end_of_pipe: u64 = "eop_buffer_address" at 56,
        end_of_pipe_size: u64 = "eop_buffer_size" at 64,
        /// The area into which the device saves the waves of a preempted queue.
        save_area: u64 = "ctx_save_restore_address" at 72,
        save_area_size: u32 = "ctx_save_restore_size" at 80,
        control_stack_size: u32 = "ctl_stack_size" at 84,
    }
    /// Blocks in the kernel while a debugger has the queue suspended.
    DestroyQueue = "struct kfd_ioctl_destroy_queue_args" in ALWAYS, 8 bytes {
        queue_id: u32 = "queue_id" at 0,
        padding: u32,
    }
    UpdateQueue = "struct kfd_ioctl_update_queue_args" in ALWAYS, 24 bytes {
        /// The kernel has no call that returns it: the creator of the queue must remember it.
        ring_base: u64 = "ring_base_address" at 0,
        queue_id: u32 = "queue_id" at 8,
        ring_size: u32 = "ring_size" at 12,
        /// 0 takes the queue off the device, 100 lets it run.
        percentage: u32 = "queue_percentage" at 16,
        priority: u32 = "queue_priority" at 20,
    }
    /// Registers or unregisters the caller's runtime. Blocks until the debugger replies, if the
    /// caller has one.
    RuntimeEnable = "struct kfd_ioctl_runtime_enable_args" in SINCE_13, 16 bytes {
        /// The address of the runtime's `r_debug` structure.
        r_debug: u64 = "r_debug" at 0,
        /// 1 registers, 0 unregisters.
        mode: u32 = "mode_mask" at 8,
        /// Output.
        capabilities: u32 = "capabilities_mask" at 12,
    }
    /// Checkpoint and restore. The code only uses the operations of [`CriuOperation`], which read
    /// no address.
    Criu = "struct kfd_ioctl_criu_args" in SINCE_7, 56 bytes {
        devices: u64 = "devices" at 0,
        objects: u64 = "bos" at 8,
        private_data: u64 = "priv_data" at 16,
        private_data_size: u64 = "priv_data_size" at 24,
        device_count: u32 = "num_devices" at 32,
        buffer_count: u32 = "num_bos" at 36,
        object_count: u32 = "num_objects" at 40,
        pid: u32 = "pid" at 44,
        /// A [`CriuOperation`].
        operation: u32 = "op" at 48,
        padding: u32,
    }
}

/// Blocks that are longer in newer versions, with every listed field at its old offset.
pub(crate) const GROWN: &[Layout] =
    &[Layout { size: 96, minors: SINCE_17, ..<CreateQueue as Block>::LAYOUT }];

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
        /// The highest priority of a queue.
        PRIORITY_MAX: u32 = 15, "KFD_MAX_QUEUE_PRIORITY" in ALWAYS;
    }

    /// The operations on a whole process.
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
