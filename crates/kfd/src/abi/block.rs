//! The ioctls of `/dev/kfd` that concern the caller itself, and the one that pauses a process.

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::table::{self, ALWAYS, Block, Layout, SINCE_7, SINCE_13, SINCE_17, UNTIL_16};
use super::{exchanges, reads, writes};

/// Which interface the kernel has.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetVersion {
    /// The number before the dot.
    pub major: u32,
    /// The number behind it.
    pub minor: u32,
}

/// Makes a queue. Since 1.17 the kernel's block is longer, and takes this one all the same: what is
/// missing is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQueue {
    /// Where the ring is.
    pub ring_base: u64,
    /// Where the index is that the process moves.
    pub write_pointer: u64,
    /// Where the index is that the device moves.
    pub read_pointer: u64,
    /// Where in `/dev/kfd` the doorbell is. From KFD.
    pub doorbell_offset: u64,
    /// Bytes of the ring.
    pub ring_size: u32,
    /// Which device.
    pub gpu_id: u32,
    /// One of [`QueueType`].
    pub queue_type: u32,
    /// 0 to stand still, 100 to run.
    pub percentage: u32,
    /// 0 to 15.
    pub priority: u32,
    /// Its name. From KFD.
    pub queue_id: u32,
    /// Where events of ends of pipes are written.
    pub end_of_pipe: u64,
    /// Bytes there.
    pub end_of_pipe_size: u64,
    /// Where its waves are saved.
    pub save_area: u64,
    /// Bytes there.
    pub save_area_size: u32,
    /// Bytes of it that hold the control stack.
    pub control_stack_size: u32,
}

/// Gives a queue back. Waits while a debugger has it suspended.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQueue {
    /// Which one.
    pub queue_id: u32,
    /// Zero.
    pub padding: u32,
}

/// Changes a queue of the caller's own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UpdateQueue {
    /// Where the ring is; there is nobody to ask, so whoever made the queue has to know.
    pub ring_base: u64,
    /// Which one.
    pub queue_id: u32,
    /// Bytes of the ring.
    pub ring_size: u32,
    /// 0 takes it off the device, 100 lets it on again.
    pub percentage: u32,
    /// 0 to 15.
    pub priority: u32,
}

/// Says that the caller's runtime begins or ends. If the caller has a debugger, this waits for it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RuntimeEnable {
    /// Where the runtime keeps what a debugger wants to know.
    pub r_debug: u64,
    /// 1 to begin, 0 to end.
    pub mode: u32,
    /// What the kernel can do. From KFD.
    pub capabilities: u32,
}

/// What checkpoint and restore are made of. Only what pauses a process is used here.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Criu {
    /// Unused here, like the next three.
    pub devices: u64,
    /// Unused.
    pub objects: u64,
    /// Unused.
    pub private_data: u64,
    /// Unused.
    pub private_data_size: u64,
    /// How many devices the process uses. From KFD.
    pub device_count: u32,
    /// How many buffers it has. From KFD.
    pub buffer_count: u32,
    /// How many other things it has. From KFD.
    pub object_count: u32,
    /// Its number. From KFD.
    pub pid: u32,
    /// One of [`CriuOperation`].
    pub operation: u32,
    /// Zero.
    pub padding: u32,
}

/// What to do to a process as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CriuOperation {
    /// Asks about it, which takes all its queues off its devices. Counts: two need two ends, and
    /// there is only one, so never do it twice.
    ProcessInfo = 0,
    /// Lets its queues on again.
    Unpause = 2,
}

/// What a queue is for, as `CREATE_QUEUE` and snapshots count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QueueType {
    /// Kernels, in the hardware's own packets.
    Compute = 0,
    /// Copies.
    Sdma = 1,
    /// Kernels, in packets of HSA: what ROCm makes.
    ComputeAql = 2,
    /// Copies between devices.
    SdmaXgmi = 3,
}

/// The highest priority of a queue.
pub const PRIORITY_MAX: u32 = 15;

/// `AMDKFD_IOC_GET_VERSION`.
pub const GET_VERSION: Opcode = reads::<GetVersion>(0x01);
/// `AMDKFD_IOC_CREATE_QUEUE`.
pub const CREATE_QUEUE: Opcode = exchanges::<CreateQueue>(0x02);
/// `AMDKFD_IOC_DESTROY_QUEUE`.
pub const DESTROY_QUEUE: Opcode = exchanges::<DestroyQueue>(0x03);
/// `AMDKFD_IOC_UPDATE_QUEUE`.
pub const UPDATE_QUEUE: Opcode = writes::<UpdateQueue>(0x07);
/// `AMDKFD_IOC_CRIU_OP`.
pub const CRIU: Opcode = exchanges::<Criu>(0x22);
/// `AMDKFD_IOC_RUNTIME_ENABLE`.
pub const RUNTIME_ENABLE: Opcode = exchanges::<RuntimeEnable>(0x25);

table::layouts! {
    GetVersion = "struct kfd_ioctl_get_version_args" in ALWAYS, 8 bytes:
        major = "major_version" at 0,
        minor = "minor_version" at 4;
    CreateQueue = "struct kfd_ioctl_create_queue_args" in UNTIL_16, 88 bytes:
        ring_base = "ring_base_address" at 0,
        write_pointer = "write_pointer_address" at 8,
        read_pointer = "read_pointer_address" at 16,
        doorbell_offset = "doorbell_offset" at 24,
        ring_size = "ring_size" at 32,
        gpu_id = "gpu_id" at 36,
        queue_type = "queue_type" at 40,
        percentage = "queue_percentage" at 44,
        priority = "queue_priority" at 48,
        queue_id = "queue_id" at 52,
        end_of_pipe = "eop_buffer_address" at 56,
        end_of_pipe_size = "eop_buffer_size" at 64,
        save_area = "ctx_save_restore_address" at 72,
        save_area_size = "ctx_save_restore_size" at 80,
        control_stack_size = "ctl_stack_size" at 84;
    DestroyQueue = "struct kfd_ioctl_destroy_queue_args" in ALWAYS, 8 bytes:
        queue_id = "queue_id" at 0;
    UpdateQueue = "struct kfd_ioctl_update_queue_args" in ALWAYS, 24 bytes:
        ring_base = "ring_base_address" at 0,
        queue_id = "queue_id" at 8,
        ring_size = "ring_size" at 12,
        percentage = "queue_percentage" at 16,
        priority = "queue_priority" at 20;
    RuntimeEnable = "struct kfd_ioctl_runtime_enable_args" in SINCE_13, 16 bytes:
        r_debug = "r_debug" at 0,
        mode = "mode_mask" at 8,
        capabilities = "capabilities_mask" at 12;
    Criu = "struct kfd_ioctl_criu_args" in SINCE_7, 56 bytes:
        devices = "devices" at 0,
        objects = "bos" at 8,
        private_data = "priv_data" at 16,
        private_data_size = "priv_data_size" at 24,
        device_count = "num_devices" at 32,
        buffer_count = "num_bos" at 36,
        object_count = "num_objects" at 40,
        pid = "pid" at 44,
        operation = "op" at 48;
}

/// Blocks that are longer in newer versions, with everything where it was.
pub(crate) const GROWN: &[Layout] =
    &[Layout { size: 96, minors: SINCE_17, ..<CreateQueue as Block>::LAYOUT }];

table::numbers! {
    "AMDKFD_IOC_GET_VERSION" in ALWAYS => GET_VERSION,
    "AMDKFD_IOC_CREATE_QUEUE" in UNTIL_16 => CREATE_QUEUE,
    "AMDKFD_IOC_DESTROY_QUEUE" in ALWAYS => DESTROY_QUEUE,
    "AMDKFD_IOC_UPDATE_QUEUE" in ALWAYS => UPDATE_QUEUE,
    "AMDKFD_IOC_CRIU_OP" in SINCE_7 => CRIU,
    "AMDKFD_IOC_RUNTIME_ENABLE" in SINCE_13 => RUNTIME_ENABLE,
    "KFD_CRIU_OP_PROCESS_INFO" in SINCE_7 => CriuOperation::ProcessInfo,
    "KFD_CRIU_OP_UNPAUSE" in SINCE_7 => CriuOperation::Unpause,
    "KFD_IOC_QUEUE_TYPE_COMPUTE" in ALWAYS => QueueType::Compute,
    "KFD_IOC_QUEUE_TYPE_SDMA" in ALWAYS => QueueType::Sdma,
    "KFD_IOC_QUEUE_TYPE_COMPUTE_AQL" in ALWAYS => QueueType::ComputeAql,
    "KFD_IOC_QUEUE_TYPE_SDMA_XGMI" in ALWAYS => QueueType::SdmaXgmi,
    "KFD_MAX_QUEUE_PRIORITY" in ALWAYS => PRIORITY_MAX,
    "KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK" in SINCE_13 => 1_u32,
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
