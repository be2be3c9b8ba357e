//! What it takes to add a channel of ours to somebody else's group.
//!
//! The blocks are those of branch 580 alone, where this was run: in others some have another size,
//! and there nothing is held ([`Branch::can_hold`](super::Branch::can_hold)).

use rustix::ioctl::{Opcode, opcode};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
use super::status::Status;
use super::table::{layouts, numbers};

/// Pages of the calling process, made known to the device. The ioctl is one of the `/dev/nvidiaN`
/// that is registered with the client's file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostMemory {
    /// The client that will own it.
    pub client: u32,
    /// The device it is for.
    pub device: u32,
    /// Its name.
    pub object: u32,
    /// [`HostMemory::CLASS`].
    pub class: u32,
    /// [`HostMemory::FLAGS`].
    pub flags: u32,
    padding: u32,
    /// Where the pages are in the calling process.
    pub address: u64,
    /// How many bytes they have, less one.
    pub limit: u64,
    /// How it went.
    pub status: Status,
    padding_status: u32,
    /// None: -1.
    pub file: i32,
    padding_end: u32,
}

impl HostMemory {
    /// Memory that the operating system has already.
    pub const CLASS: u32 = 0x71;
    /// Scattered pages, cached by the processor, not mapped again for it.
    pub const FLAGS: u32 = 1 << 4 | 1 << 12 | 1 << 30;

    /// The pages at an address of ours.
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

/// The ioctl of [`HostMemory`].
pub const HOST_MEMORY: Opcode = opcode::read_write::<HostMemory>(b'F', 0x27);

const _: () = assert!(HOST_MEMORY == 0xc038_4627);

/// Which channel.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChannelParameters {
    error: u32,
    buffer: u32,
    /// Where its ring begins, in the address space of its group.
    pub ring: u64,
    /// How many entries that has.
    pub entries: u32,
    /// [`ChannelParameters::SCHEDULE_LATER`].
    pub flags: u32,
    /// What the channels of the group share.
    pub context_share: u32,
    address_space: u32,
    /// Where its indices are: the object, for each part of the device.
    pub index_memory: [u32; 8],
    /// And the offset in it.
    pub index_offset: [u64; 8],
    /// Zero: the group's.
    pub engine: u32,
    rest: [u32; 59],
}

impl ChannelParameters {
    /// The channel runs only when it is told to.
    pub const SCHEDULE_LATER: u32 = 1 << 6;

    /// A channel with a ring at that address, its indices at the beginning of `indices`.
    pub fn new(ring: u64, entries: u32, context_share: u32, indices: u32) -> Self {
        let mut parameters = Self::new_zeroed();
        (parameters.ring, parameters.entries) = (ring, entries);
        (parameters.flags, parameters.context_share) = (Self::SCHEDULE_LATER, context_share);
        parameters.index_memory[0] = indices;
        parameters
    }
}

/// Puts a channel on the device's list, or takes it off.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChannelSchedule {
    /// Not zero: on.
    pub enable: u8,
    skip_submit: u8,
    skip_enable: u8,
}

impl ChannelSchedule {
    /// On.
    pub fn on() -> Self {
        Self { enable: 1, ..Self::new_zeroed() }
    }
}

/// What to write to the doorbell for a channel.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChannelToken {
    /// The word.
    pub token: u32,
}

/// Where it was run.
const HERE: &[Branch] = &[Branch::R580];

layouts! {
    HostMemory = "nv_ioctl_nvos02_parameters_with_fd" in HERE, 56 bytes:
        client = "params.hRoot" at 0, device = "params.hObjectParent" at 4,
        object = "params.hObjectNew" at 8, class = "params.hClass" at 12,
        flags = "params.flags" at 16, address = "params.pMemory" at 24,
        limit = "params.limit" at 32, status = "params.status" at 40, file = "fd" at 48;
    ChannelParameters = "NV_CHANNEL_ALLOC_PARAMS" in HERE, 368 bytes:
        error = "hObjectError" at 0, buffer = "hObjectBuffer" at 4, ring = "gpFifoOffset" at 8,
        entries = "gpFifoEntries" at 16, flags = "flags" at 20,
        context_share = "hContextShare" at 24, address_space = "hVASpace" at 28,
        index_memory = "hUserdMemory" at 32,
        index_offset = "userdOffset" at 64, engine = "engineType" at 128;
    ChannelSchedule = "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS" in HERE, 3 bytes:
        enable = "bEnable" at 0, skip_submit = "bSkipSubmit" at 1, skip_enable = "bSkipEnable" at 2;
    ChannelToken = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS" in HERE, 4 bytes:
        token = "workSubmitToken" at 0;
}

numbers! {
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_ALLOC_MEMORY, nv_ioctl_nvos02_parameters_with_fd)"
        in HERE => HOST_MEMORY,
    "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR" in HERE => HostMemory::CLASS,
    "DRF_DEF(OS02, _FLAGS, _PHYSICALITY, _NONCONTIGUOUS) | \
     DRF_DEF(OS02, _FLAGS, _COHERENCY, _CACHED) | DRF_DEF(OS02, _FLAGS, _MAPPING, _NO_MAP)"
        in HERE => HostMemory::FLAGS,
    "DRF_DEF(OS04, _FLAGS, _DELAY_CHANNEL_SCHEDULING, _TRUE)"
        in HERE => ChannelParameters::SCHEDULE_LATER,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_waits_to_be_scheduled() {
        let block = ChannelParameters::new(0xe0_0000_1000, 512, 0x5c00_0011, 0x5d00_1000);
        let words: [u32; 92] = zerocopy::transmute!(block);
        assert_eq!(words[2..7], [0x1000, 0xe0, 512, 0x40, 0x5c00_0011]);
        assert_eq!(words[8], 0x5d00_1000);
        assert!(words[9..].iter().all(|word| *word == 0));
    }

    #[test]
    fn host_memory_ends_at_its_last_byte() {
        let block = HostMemory::new(1, 2, 3, 0x7000_0000, 0x1_0000);
        assert_eq!((block.limit, block.file, block.flags), (0xffff, -1, 0x4000_1010));
    }
}
