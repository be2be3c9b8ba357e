//! The blocks that add a channel to another process's group: control commands, the ioctl for host
//! memory, and those of `/dev/nvidia-uvm`, which holds the address spaces of programs.
//!
//! The blocks are those of branch 580 alone, where this was run: in others some have another size,
//! and there gpreempt places no holds ([`Branch::can_hold`]). The ioctls of `/dev/nvidia-uvm` are
//! plain numbers that do not contain the size of their block.

use rustix::ioctl::{Opcode, opcode};
use zerocopy::FromZeros;

use super::escape::MAGIC;
use super::{Branch, Status, numbers};

gpreempt_kfd::blocks! {
    for [Branch], derive(Clone, Copy, Debug);
    /// Makes pages of the calling process known to the device. The ioctl is one of the
    /// `/dev/nvidiaN` that is registered with the client's file.
    pub struct HostMemory = "nv_ioctl_nvos02_parameters_with_fd"
        in Branch::WITH_HOLDS, 56 bytes {
        client: u32 = "params.hRoot" at 0,
        device: u32 = "params.hObjectParent" at 4,
        object: u32 = "params.hObjectNew" at 8,
        class: u32 = "params.hClass" at 12,
        flags: u32 = "params.flags" at 16,
        padding: u32,
        address: u64 = "params.pMemory" at 24,
        /// The number of bytes, less one.
        limit: u64 = "params.limit" at 32,
        pub status: Status = "params.status" at 40,
        padding_status: u32,
        /// None: -1.
        file: i32 = "fd" at 48,
        padding_end: u32,
    }

    /// Allocates a channel.
    pub struct ChannelParameters = "NV_CHANNEL_ALLOC_PARAMS" in Branch::WITH_HOLDS, 368 bytes {
        error: u32 = "hObjectError" at 0,
        buffer: u32 = "hObjectBuffer" at 4,
        /// The address of its ring, in the address space of its group.
        ring: u64 = "gpFifoOffset" at 8,
        entries: u32 = "gpFifoEntries" at 16,
        flags: u32 = "flags" at 20,
        context_share: u32 = "hContextShare" at 24,
        address_space: u32 = "hVASpace" at 28,
        /// The object that contains its ring indices, for each part of the device.
        index_memory: [u32; 8] = "hUserdMemory" at 32,
        index_offset: [u64; 8] = "userdOffset" at 64,
        /// Zero: the group's.
        engine: u32 = "engineType" at 128,
        rest: [u32; 59],
    }

    /// Puts a channel on the run list, or takes it off.
    pub struct ChannelSchedule = "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS"
        in Branch::WITH_HOLDS, 3 bytes {
        enable: u8 = "bEnable" at 0,
        skip_submit: u8 = "bSkipSubmit" at 1,
        skip_enable: u8 = "bSkipEnable" at 2,
    }

    /// Reads the word to write to the doorbell for a channel.
    pub struct ChannelToken = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS"
        in Branch::WITH_HOLDS, 4 bytes {
        pub token: u32 = "workSubmitToken" at 0,
    }

    /// Registers a channel with unified memory, so that it may run.
    pub struct RegisterChannel = "UVM_REGISTER_CHANNEL_PARAMS" in Branch::WITH_HOLDS, 56 bytes {
        pub uuid: [u8; 16] = "gpuUuid" at 0,
        /// The file of the client, as the caller numbers it.
        pub control_file: i32 = "rmCtrlFd" at 16,
        pub client: u32 = "hClient" at 20,
        pub channel: u32 = "hChannel" at 24,
        padding: u32,
        /// The addresses at which the driver may map what the channel needs.
        pub base: u64 = "base" at 32,
        pub length: u64 = "length" at 40,
        pub status: Status = "rmStatus" at 48,
        padding_end: u32,
    }

    /// Reverts a [`RegisterChannel`].
    pub struct UnregisterChannel = "UVM_UNREGISTER_CHANNEL_PARAMS"
        in Branch::WITH_HOLDS, 28 bytes {
        pub uuid: [u8; 16] = "gpuUuid" at 0,
        pub client: u32 = "hClient" at 16,
        pub channel: u32 = "hChannel" at 20,
        pub status: Status = "rmStatus" at 24,
    }

    /// Reserves a range of the address space, or with [`FREE_RANGE`] frees it.
    pub struct Range = "UVM_CREATE_EXTERNAL_RANGE_PARAMS" in Branch::WITH_HOLDS, 24 bytes {
        base: u64 = "base" at 0,
        length: u64 = "length" at 8,
        pub status: Status = "rmStatus" at 16,
        padding: u32,
    }

    /// [`Range`] under another name in the headers.
    struct FreeRange = "UVM_FREE_PARAMS" in Branch::WITH_HOLDS, 24 bytes {
        base: u64 = "base" at 0,
        length: u64 = "length" at 8,
        status: Status = "rmStatus" at 16,
        padding: u32,
    }

    /// The access of a GPU to a mapping.
    pub struct Attributes = "UvmGpuMappingAttributes" in Branch::WITH_HOLDS, 36 bytes {
        pub uuid: [u8; 16] = "gpuUuid" at 0,
        /// [`Attributes::READ_WRITE_ATOMIC`].
        pub mapping: u32 = "gpuMappingType" at 16,
        caching: u32 = "gpuCachingType" at 20,
        format: u32 = "gpuFormatType" at 24,
        element_bits: u32 = "gpuElementBits" at 28,
        compression: u32 = "gpuCompressionType" at 32,
    }

    /// Maps an object into a [`Range`].
    pub struct MapObject = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS" in Branch::WITH_HOLDS, 9264 bytes {
        pub base: u64 = "base" at 0,
        pub length: u64 = "length" at 8,
        offset: u64 = "offset" at 16,
        pub attributes: [Attributes; 256] = "perGpuAttributes" at 24,
        /// How many of the attributes are set.
        pub count: u64 = "gpuAttributesCount" at 9240,
        /// The file of the client, as the caller numbers it.
        pub control_file: i32 = "rmCtrlFd" at 9248,
        pub client: u32 = "hClient" at 9252,
        pub memory: u32 = "hMemory" at 9256,
        pub status: Status = "rmStatus" at 9260,
    }
}

impl HostMemory {
    /// Memory that the operating system has already.
    pub const CLASS: u32 = 0x71;
    /// Scattered pages, cached by the processor, not mapped again for it.
    pub const FLAGS: u32 = 1 << 4 | 1 << 12 | 1 << 30;

    /// The pages at an address of the calling process.
    pub fn new(client: u32, device: u32, object: u32, address: u64, length: u64) -> Self {
        Self {
            client,
            device,
            object,
            class: Self::CLASS,
            flags: Self::FLAGS,
            address,
            limit: length.saturating_sub(1),
            file: -1,
            ..Self::new_zeroed()
        }
    }
}

impl ChannelParameters {
    /// The channel runs only after a [`ChannelSchedule`].
    pub const SCHEDULE_LATER: u32 = 1 << 6;

    /// A channel with a ring at that address, its indices in an object, at an offset.
    pub fn new(ring: u64, entries: u32, context_share: u32, indices: (u32, u64)) -> Self {
        let mut parameters = Self::new_zeroed();
        (parameters.ring, parameters.entries) = (ring, entries);
        (parameters.flags, parameters.context_share) = (Self::SCHEDULE_LATER, context_share);
        (parameters.index_memory[0], parameters.index_offset[0]) = indices;
        parameters
    }
}

impl ChannelSchedule {
    pub fn on() -> Self {
        Self { enable: 1, ..Self::new_zeroed() }
    }
}

impl Range {
    pub fn new(base: u64, length: u64) -> Self {
        Self { base, length, ..Self::new_zeroed() }
    }
}

impl Attributes {
    pub const READ_WRITE_ATOMIC: u32 = 1;
}

pub const HOST_MEMORY: Opcode = opcode::read_write::<HostMemory>(MAGIC, 0x27);
pub const REGISTER_CHANNEL: Opcode = 27;
pub const UNREGISTER_CHANNEL: Opcode = 28;
pub const MAP_OBJECT: Opcode = 33;
/// Frees a [`Range`].
pub const FREE_RANGE: Opcode = 34;
/// Reserves a [`Range`].
pub const TAKE_RANGE: Opcode = 73;

const _: () = assert!(HOST_MEMORY == 0xc038_4627);
const _: () = assert!(size_of::<FreeRange>() == size_of::<Range>());

numbers! {
    Branch::WITH_HOLDS => {
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_ALLOC_MEMORY, nv_ioctl_nvos02_parameters_with_fd)"
            = HOST_MEMORY,
        "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR" = HostMemory::CLASS,
        "DRF_DEF(OS02, _FLAGS, _PHYSICALITY, _NONCONTIGUOUS) | \
         DRF_DEF(OS02, _FLAGS, _COHERENCY, _CACHED) | DRF_DEF(OS02, _FLAGS, _MAPPING, _NO_MAP)"
            = HostMemory::FLAGS,
        "DRF_DEF(OS04, _FLAGS, _DELAY_CHANNEL_SCHEDULING, _TRUE)"
            = ChannelParameters::SCHEDULE_LATER,
        "UVM_REGISTER_CHANNEL" = REGISTER_CHANNEL,
        "UVM_UNREGISTER_CHANNEL" = UNREGISTER_CHANNEL,
        "UVM_MAP_EXTERNAL_ALLOCATION" = MAP_OBJECT,
        "UVM_FREE" = FREE_RANGE,
        "UVM_CREATE_EXTERNAL_RANGE" = TAKE_RANGE,
        "UvmGpuMappingTypeReadWriteAtomic" = Attributes::READ_WRITE_ATOMIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_waits_to_be_scheduled() {
        let block = ChannelParameters::new(0xe0_0000_1000, 512, 0x5c00_0011, (0x5d00_1000, 0x6000));
        let words: [u32; 92] = zerocopy::transmute!(block);
        assert_eq!(words[2..7], [0x1000, 0xe0, 512, 0x40, 0x5c00_0011]);
        assert_eq!(words[8], 0x5d00_1000);
        assert_eq!(words[16], 0x6000);
        assert!(words[9..16].iter().chain(&words[17..]).all(|word| *word == 0));
    }

    #[test]
    fn host_memory_ends_at_its_last_byte() {
        let block = HostMemory::new(1, 2, 3, 0x7000_0000, 0x1_0000);
        assert_eq!((block.limit, block.file, block.flags), (0xffff, -1, 0x4000_1010));
    }
}
