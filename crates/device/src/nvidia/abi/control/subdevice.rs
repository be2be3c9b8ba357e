//! Controls of a subdevice: what the device is called, and its channels.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::nvidia::abi::branch::Branch;
use crate::nvidia::abi::table::{layouts, numbers};

/// The device's UUID.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceUuid {
    index: u32,
    flags: u32,
    length: u32,
    data: [u8; 256],
}

impl DeviceUuid {
    /// Bytes, not text.
    const BINARY: u32 = 2;
    /// How many bytes a UUID has.
    const LENGTH: usize = 16;

    /// The question.
    pub fn ask() -> Self {
        Self { flags: Self::BINARY, length: 16, ..Self::new_zeroed() }
    }

    /// The answer, if it has the length of a UUID.
    pub fn uuid(&self) -> Option<[u8; Self::LENGTH]> {
        if usize::try_from(self.length) != Ok(Self::LENGTH) {
            return None;
        }
        self.data.first_chunk().copied()
    }
}

/// The processes that have an object of a class.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProcessIds {
    kind: u32,
    id: u32,
    count: u32,
    process_ids: [u32; 950],
}

impl ProcessIds {
    /// `id` is a class.
    const BY_CLASS: u32 = 0;

    /// The question for one class; [`SUBDEVICE`](crate::nvidia::abi::class::SUBDEVICE) finds every
    /// process that uses the device.
    pub fn of_class(class: u32) -> Self {
        Self { kind: Self::BY_CLASS, id: class, ..Self::new_zeroed() }
    }

    /// The answer.
    pub fn process_ids(&self) -> &[u32] {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        &self.process_ids[..count.min(self.process_ids.len())]
    }
}

/// Takes channels off the device and keeps them off, or lets them on again.
///
/// It outlives the caller, and the process that asked for it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DisableChannels {
    disable: u8,
    padding: [u8; 3],
    count: u32,
    only_scheduling: u8,
    rewind: u8,
    padding_event: [u8; 6],
    /// Zero: what is not is for callers inside the kernel.
    event: u64,
    clients: [u32; 64],
    channels: [u32; 64],
}

impl DisableChannels {
    /// How many channels one call takes.
    pub const CHANNELS_MAX: usize = 64;

    /// Takes channels (client and handle of each) off, or nothing if there are too many.
    pub fn off(channels: &[(u32, u32)]) -> Option<Self> {
        Self::new(1, channels)
    }

    /// The same, and empties their rings: the hardware forgets what was submitted and not yet
    /// fetched. The submitter's own copy of the ring's end stays what it was.
    pub fn off_and_clear(channels: &[(u32, u32)]) -> Option<Self> {
        Self::new(1, channels).map(|block| Self { rewind: 1, ..block })
    }

    /// Lets channels (client and handle of each) on again, or nothing if there are too many.
    pub fn on(channels: &[(u32, u32)]) -> Option<Self> {
        Self::new(0, channels)
    }

    fn new(disable: u8, channels: &[(u32, u32)]) -> Option<Self> {
        if channels.len() > Self::CHANNELS_MAX {
            return None;
        }
        let count = u32::try_from(channels.len()).ok()?;
        let mut block = Self { disable, count, ..Self::new_zeroed() };
        for (index, (client, channel)) in channels.iter().enumerate() {
            // PANIC: both lists have CHANNELS_MAX places.
            block.clients[index] = *client;
            block.channels[index] = *channel;
        }
        Some(block)
    }
}

/// Where in a kernel a channel may be taken off the device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetPreemptionMode {
    flags: u32,
    channel: u32,
    graphics_mode: u32,
    compute_mode: u32,
    route_flags: u32,
    padding: u32,
    route: u64,
}

/// Where in a kernel a channel may be taken off the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum PreemptionMode {
    /// Between kernels.
    Kernel = 0,
    /// Between work-groups.
    WorkGroup = 1,
    /// Between instructions.
    Instruction = 2,
}

impl PreemptionMode {
    /// The mode of that number; what is no mode is the finest one, which is CUDA's own choice.
    pub const fn of(number: u32) -> Self {
        match number {
            0 => Self::Kernel,
            1 => Self::WorkGroup,
            _ => Self::Instruction,
        }
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        // CAST: the enumeration's numbers are the driver's.
        self as u32
    }
}

impl SetPreemptionMode {
    /// `compute_mode` means something.
    const COMPUTE: u32 = 1;

    /// Sets the mode of compute work on `channel`, and leaves that of graphics alone.
    pub fn compute(channel: u32, mode: PreemptionMode) -> Self {
        let compute_mode = mode.number();
        Self { flags: Self::COMPUTE, channel, compute_mode, ..Self::new_zeroed() }
    }
}

/// How often a group was taken off the device, and where its work was then.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SwitchCounts {
    /// The group; a channel that is in none.
    pub group: u32,
    /// Zero.
    pub flags: u32,
    /// Off, in all.
    pub saves: u32,
    /// On again.
    pub restores: u32,
    /// Off between kernels.
    pub saves_kernel: u32,
    /// Off between work-groups.
    pub saves_work_group: u32,
    /// Off between instructions.
    pub saves_instruction: u32,
    /// Off within graphics.
    pub saves_graphics: u32,
}

impl SwitchCounts {
    /// The question for one group.
    pub fn of(group: u32) -> Self {
        Self { group, ..Self::new_zeroed() }
    }
}

layouts! {
    DeviceUuid = "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS" in &Branch::ALL, 268 bytes:
        index = "index" at 0, flags = "flags" at 4, length = "length" at 8, data = "data" at 12;
    ProcessIds = "NV2080_CTRL_GPU_GET_PIDS_PARAMS" in &Branch::ALL, 3812 bytes:
        kind = "idType" at 0, id = "id" at 4, count = "pidTblCount" at 8,
        process_ids = "pidTbl" at 12;
    DisableChannels = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS" in &Branch::ALL, 536 bytes:
        disable = "bDisable" at 0, count = "numChannels" at 4,
        only_scheduling = "bOnlyDisableScheduling" at 8, rewind = "bRewindGpPut" at 9,
        event = "pRunlistPreemptEvent" at 16, clients = "hClientList" at 24,
        channels = "hChannelList" at 280;
    SetPreemptionMode = "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS"
        in &Branch::ALL, 32 bytes:
        flags = "flags" at 0, channel = "hChannel" at 4, graphics_mode = "gfxpPreemptMode" at 8,
        compute_mode = "cilpPreemptMode" at 12, route_flags = "grRouteInfo.flags" at 16,
        route = "grRouteInfo.route" at 24;
    SwitchCounts = "NV2080_CTRL_GR_GET_CTXSW_STATS_PARAMS" in &Branch::ALL, 32 bytes:
        group = "hChannel" at 0, flags = "flags" at 4, saves = "saveCnt" at 8,
        restores = "restoreCnt" at 12, saves_kernel = "wfiSaveCnt" at 16,
        saves_work_group = "ctaSaveCnt" at 20, saves_instruction = "cilpSaveCnt" at 24,
        saves_graphics = "gfxpSaveCnt" at 28;
}

numbers! {
    "NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY" in &Branch::ALL => DeviceUuid::BINARY,
    "NV2080_GPU_MAX_SHA1_BINARY_GID_LENGTH" in &Branch::ALL => DeviceUuid::LENGTH,
    "NV2080_CTRL_GPU_GET_PIDS_ID_TYPE_CLASS" in &Branch::ALL => ProcessIds::BY_CLASS,
    "NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES"
        in &Branch::ALL => DisableChannels::CHANNELS_MAX,
    "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP_SET"
        in &Branch::ALL => SetPreemptionMode::COMPUTE,
    "NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_WFI"
        in &Branch::ALL => PreemptionMode::Kernel,
    "NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CTA"
        in &Branch::ALL => PreemptionMode::WorkGroup,
    "NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP"
        in &Branch::ALL => PreemptionMode::Instruction,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_of_channels_fits_and_a_longer_one_does_not() {
        let channels: Vec<(u32, u32)> = (0..65).map(|n| (0xc1d0_0000, 0x5c00_0000 + n)).collect();
        assert!(DisableChannels::off(&channels).is_none());
        let block = DisableChannels::off(&channels[..64]).unwrap();
        assert_eq!((block.disable, block.count, block.event), (1, 64, 0));
        assert_eq!((block.clients[63], block.channels[63]), (0xc1d0_0000, 0x5c00_003f));
        let block = DisableChannels::on(&channels[..1]).unwrap();
        assert_eq!((block.disable, block.count, block.channels[1]), (0, 1, 0));
    }

    #[test]
    fn only_clearing_takes_pending_work_out_of_the_ring() {
        let channels = [(0xc1d0_0000, 0x5c00_0020)];
        let flags = |block: Option<DisableChannels>| {
            let block = block.unwrap();
            (block.disable, block.rewind, block.only_scheduling, block.channels[0])
        };
        assert_eq!(flags(DisableChannels::off_and_clear(&channels)), (1, 1, 0, 0x5c00_0020));
        assert_eq!(flags(DisableChannels::off(&channels)), (1, 0, 0, 0x5c00_0020));
        assert_eq!(flags(DisableChannels::on(&channels)), (0, 0, 0, 0x5c00_0020));
        assert!(DisableChannels::off_and_clear(&[(1, 2); 65]).is_none());
    }

    #[test]
    fn an_answer_that_is_no_uuid_is_not_taken_for_one() {
        let mut block = DeviceUuid::ask();
        block.data[15] = 7;
        assert_eq!(block.uuid().map(|uuid| uuid[15]), Some(7));
        block.length = 20;
        assert_eq!(block.uuid(), None);
    }

    #[test]
    fn a_count_beyond_the_table_is_cut() {
        let mut block = ProcessIds::of_class(0x2080);
        block.process_ids[1] = 42;
        block.count = 2;
        assert_eq!(block.process_ids(), [0, 42]);
        block.count = u32::MAX;
        assert_eq!(block.process_ids().len(), 950);
    }

    #[test]
    fn setting_the_mode_of_compute_work_leaves_graphics_alone() {
        let block = SetPreemptionMode::compute(0x5c00_0010, PreemptionMode::WorkGroup);
        let words: [u32; 8] = zerocopy::transmute!(block);
        assert_eq!(words, [1, 0x5c00_0010, 0, 1, 0, 0, 0, 0]);
    }
}
