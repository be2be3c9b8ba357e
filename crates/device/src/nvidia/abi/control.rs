//! Control commands of clients, subdevices and groups, and the blocks that go with them.
#![expect(unsafe_code, reason = "an unsafe trait carries the promise that command and block fit")]

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::hold::{ChannelSchedule, ChannelToken};
use super::{Block, Branch, Command, numbers};

/// A block that goes with [`Control`](super::escape::Control).
///
/// # Safety
/// `Self` is the block the driver reads and writes for `COMMAND` in every branch of its
/// [`Block::LAYOUT`], and the driver follows no address in it.
pub unsafe trait RmControl: Block + FromBytes + IntoBytes + Immutable + KnownLayout {
    const COMMAND: u32;
    const C_NAME: &'static str;
}

/// Pairs blocks with their commands and collects the commands in `COMMANDS`, which
/// `tests/abi_headers.rs` compares with the headers.
macro_rules! commands {
    ($($block:ident = $command:literal, $c_name:literal;)+) => {
        $(
            // SAFETY: the header that defines the command pairs it with this block, which
            // `tests/abi_headers.rs` checks. The block holds numbers, handles and flags; the one
            // address among them all, `DisableChannels::event`, is zero.
            unsafe impl RmControl for $block {
                const COMMAND: u32 = $command;
                const C_NAME: &'static str = $c_name;
            }
        )+

        pub(crate) const COMMANDS: &[Command] = &[$(Command {
            c_name: $c_name,
            command: $command,
            layout: <$block as Block>::LAYOUT,
        }),+];
    };
}

commands! {
    HandleInfo = 0xd02, "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO";
    IdInfo = 0x205, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2";
    SetSlice = 0xa06c_0103, "NVA06C_CTRL_CMD_SET_TIMESLICE";
    ReadSlice = 0xa06c_0104, "NVA06C_CTRL_CMD_GET_TIMESLICE";
    Preempt = 0xa06c_0105, "NVA06C_CTRL_CMD_PREEMPT";
    SetInterleave = 0xa06c_0107, "NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL";
    ReadInterleave = 0xa06c_0108, "NVA06C_CTRL_CMD_GET_INTERLEAVE_LEVEL";
    DeviceUuid = 0x2080_014a, "NV2080_CTRL_CMD_GPU_GET_GID_INFO";
    DisableChannels = 0x2080_110b, "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS";
    SetPreemptionMode = 0x2080_1210, "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE";
    SwitchCounts = 0x2080_1215, "NV2080_CTRL_CMD_GR_GET_CTXSW_STATS";
    ChannelSchedule = 0xa06f_0103, "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE";
    ChannelToken = 0xc36f_0108, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN";
}

gpreempt_kfd::blocks! {
    for [Branch], derive(Clone, Copy, Debug);
    /// Reads the class or the parent of an object. Call it on the client that has the object, and
    /// only if that client exists: otherwise the driver writes a line into the kernel's log.
    pub struct HandleInfo = "NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS" in Branch::ALL, 16 bytes {
        object: u32 = "hObject" at 0,
        index: u32 = "index" at 4,
        pub result: u64 = "data.iResult" at 8,
    }

    /// Reads where the driver keeps a device.
    pub struct IdInfo = "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS" in Branch::ALL, 32 bytes {
        gpu_id: u32 = "gpuId" at 0,
        flags: u32 = "gpuFlags" at 4,
        /// The argument of [`DeviceParameters`](super::escape::DeviceParameters).
        pub device_instance: u32 = "deviceInstance" at 8,
        /// The argument of [`SubdeviceParameters`](super::escape::SubdeviceParameters).
        pub subdevice_instance: u32 = "subDeviceInstance" at 12,
        sli_status: u32 = "sliStatus" at 16,
        board_id: u32 = "boardId" at 20,
        gpu_instance: u32 = "gpuInstance" at 24,
        numa_node: i32 = "numaId" at 28,
    }

    /// Sets the time slice of a group.
    pub struct SetSlice = "NVA06C_CTRL_SET_TIMESLICE_PARAMS" in Branch::ALL, 8 bytes {
        /// 0 counts as 1.
        pub slice_us: u64 = "timesliceUs" at 0,
    }

    pub struct ReadSlice = "NVA06C_CTRL_GET_TIMESLICE_PARAMS" in Branch::ALL, 8 bytes {
        pub slice_us: u64 = "timesliceUs" at 0,
    }

    /// Switches the group off the engine. The hardware switches it on again when its turn comes.
    ///
    /// # Invariants
    /// A call that does not wait must not be repeated before the first has had its effect: the
    /// headers leave open what happens then.
    pub struct Preempt = "NVA06C_CTRL_PREEMPT_PARAMS" in Branch::ALL, 8 bytes {
        /// Not zero: return when the group is off.
        wait: u8 = "bWait" at 0,
        /// Not zero: wait for at most `timeout_us`.
        has_timeout: u8 = "bManualTimeout" at 1,
        padding: [u8; 2],
        timeout_us: u32 = "timeoutUs" at 4,
    }

    /// Sets how often the group is in the run list. Needs `CAP_SYS_NICE` or root.
    pub struct SetInterleave = "NVA06C_CTRL_SET_INTERLEAVE_LEVEL_PARAMS" in Branch::ALL, 4 bytes {
        /// [`SetInterleave::LOW`] to [`SetInterleave::HIGH`].
        pub level: u32 = "tsgInterleaveLevel" at 0,
    }

    pub struct ReadInterleave = "NVA06C_CTRL_GET_INTERLEAVE_LEVEL_PARAMS" in Branch::ALL, 4 bytes {
        pub level: u32 = "tsgInterleaveLevel" at 0,
    }

    pub struct DeviceUuid = "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS" in Branch::ALL, 268 bytes {
        index: u32 = "index" at 0,
        flags: u32 = "flags" at 4,
        length: u32 = "length" at 8,
        data: [u8; 256] = "data" at 12,
    }

    /// Takes channels off the device and keeps them off, or enables them again. The effect outlives
    /// the caller.
    pub struct DisableChannels = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS"
        in Branch::ALL, 536 bytes {
        disable: u8 = "bDisable" at 0,
        padding: [u8; 3],
        count: u32 = "numChannels" at 4,
        only_scheduling: u8 = "bOnlyDisableScheduling" at 8,
        rewind: u8 = "bRewindGpPut" at 9,
        padding_event: [u8; 6],
        /// Zero. The driver uses the address only for callers inside the kernel and refuses it from
        /// any other (subdeviceCtrlCmdFifoDisableChannels in kernel_fifo_ctrl.c, the same in all
        /// four branches).
        event: u64 = "pRunlistPreemptEvent" at 16,
        clients: [u32; 64] = "hClientList" at 24,
        channels: [u32; 64] = "hChannelList" at 280,
    }

    /// Sets where in a kernel a channel may be preempted.
    pub struct SetPreemptionMode = "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS"
        in Branch::ALL, 32 bytes {
        flags: u32 = "flags" at 0,
        channel: u32 = "hChannel" at 4,
        graphics_mode: u32 = "gfxpPreemptMode" at 8,
        compute_mode: u32 = "cilpPreemptMode" at 12,
        route_flags: u32 = "grRouteInfo.flags" at 16,
        padding: u32,
        route: u64 = "grRouteInfo.route" at 24,
    }

    /// Reads how often a group was switched off the engine, and where its work was then.
    pub struct SwitchCounts = "NV2080_CTRL_GR_GET_CTXSW_STATS_PARAMS" in Branch::ALL, 32 bytes {
        /// The group, or a channel that is in none.
        group: u32 = "hChannel" at 0,
        flags: u32 = "flags" at 4,
        /// All switches off the engine.
        pub saves: u32 = "saveCnt" at 8,
        pub restores: u32 = "restoreCnt" at 12,
        /// Those between kernels.
        pub saves_kernel: u32 = "wfiSaveCnt" at 16,
        /// Those between work-groups.
        pub saves_work_group: u32 = "ctaSaveCnt" at 20,
        /// Those between instructions.
        pub saves_instruction: u32 = "cilpSaveCnt" at 24,
        /// Those within graphics.
        pub saves_graphics: u32 = "gfxpSaveCnt" at 28,
    }
}

impl HandleInfo {
    const PARENT: u32 = 1;
    const CLASS: u32 = 2;

    pub const fn class_of(object: u32) -> Self {
        Self { object, index: Self::CLASS, result: 0 }
    }

    pub const fn parent_of(object: u32) -> Self {
        Self { object, index: Self::PARENT, result: 0 }
    }
}

impl IdInfo {
    pub fn of(gpu_id: u32) -> Self {
        Self { gpu_id, ..Self::new_zeroed() }
    }
}

impl Preempt {
    /// The longest wait.
    pub const TIMEOUT_US_MAX: u32 = 1_000_000;

    /// A call that returns at once.
    pub const fn at_once() -> Self {
        Self { wait: 0, has_timeout: 0, padding: [0; 2], timeout_us: 0 }
    }

    /// A call that returns when the group is off the engine, or after `timeout_us` (no longer than
    /// [`Preempt::TIMEOUT_US_MAX`]).
    pub fn waiting(timeout_us: u32) -> Self {
        let timeout_us = timeout_us.min(Self::TIMEOUT_US_MAX);
        Self { wait: 1, has_timeout: 1, padding: [0; 2], timeout_us }
    }
}

impl SetInterleave {
    /// The default.
    pub const LOW: u32 = 0;
    pub const MEDIUM: u32 = 1;
    /// Between any two others.
    pub const HIGH: u32 = 2;
}

impl DeviceUuid {
    /// Bytes, not text.
    const BINARY: u32 = 2;
    const LENGTH: usize = 16;

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

impl DisableChannels {
    /// How many channels one call takes.
    pub const CHANNELS_MAX: usize = 64;

    /// Takes channels (client and handle of each) off, or nothing if there are too many.
    pub fn off(channels: &[(u32, u32)]) -> Option<Self> {
        Self::new(1, channels)
    }

    /// The same, and empties their rings: the hardware drops what was submitted and not yet
    /// fetched. The submitter's own copy of the ring's end stays what it was.
    pub fn off_and_clear(channels: &[(u32, u32)]) -> Option<Self> {
        Self::new(1, channels).map(|block| Self { rewind: 1, ..block })
    }

    /// Enables channels (client and handle of each) again, or nothing if there are too many.
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

/// Where in a kernel a channel may be preempted.
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
    /// The mode of that number; an unknown number is the finest mode, which is CUDA's own choice.
    pub const fn of(number: u32) -> Self {
        match number {
            0 => Self::Kernel,
            1 => Self::WorkGroup,
            _ => Self::Instruction,
        }
    }

    pub const fn number(self) -> u32 {
        // CAST: the enumeration's numbers are the driver's.
        self as u32
    }
}

impl SetPreemptionMode {
    /// `compute_mode` is set.
    const COMPUTE: u32 = 1;

    /// Sets the mode of compute work on `channel`, and not that of graphics.
    pub fn compute(channel: u32, mode: PreemptionMode) -> Self {
        let compute_mode = mode.number();
        Self { flags: Self::COMPUTE, channel, compute_mode, ..Self::new_zeroed() }
    }
}

impl SwitchCounts {
    pub fn of(group: u32) -> Self {
        Self { group, ..Self::new_zeroed() }
    }
}

numbers! {
    Branch::ALL => {
        "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT" = HandleInfo::PARENT,
        "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID" = HandleInfo::CLASS,
        "NVA06C_CTRL_CMD_PREEMPT_MAX_MANUAL_TIMEOUT_US" = Preempt::TIMEOUT_US_MAX,
        "NVA06C_CTRL_INTERLEAVE_LEVEL_LOW" = SetInterleave::LOW,
        "NVA06C_CTRL_INTERLEAVE_LEVEL_MEDIUM" = SetInterleave::MEDIUM,
        "NVA06C_CTRL_INTERLEAVE_LEVEL_HIGH" = SetInterleave::HIGH,
        "NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY" = DeviceUuid::BINARY,
        "NV2080_GPU_MAX_SHA1_BINARY_GID_LENGTH" = DeviceUuid::LENGTH,
        "NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES" = DisableChannels::CHANNELS_MAX,
        "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP_SET" = SetPreemptionMode::COMPUTE,
        "NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_WFI" = PreemptionMode::Kernel,
        "NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CTA" = PreemptionMode::WorkGroup,
        "NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP" = PreemptionMode::Instruction,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_longer_than_the_driver_allows() {
        assert_eq!(Preempt::waiting(5).timeout_us, 5);
        assert_eq!(Preempt::waiting(u32::MAX).timeout_us, Preempt::TIMEOUT_US_MAX);
    }

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
    fn an_answer_of_another_length_is_no_uuid() {
        let mut block = DeviceUuid::ask();
        block.data[15] = 7;
        assert_eq!(block.uuid().map(|uuid| uuid[15]), Some(7));
        block.length = 20;
        assert_eq!(block.uuid(), None);
    }

    #[test]
    fn setting_the_mode_of_compute_work_leaves_graphics_alone() {
        let block = SetPreemptionMode::compute(0x5c00_0010, PreemptionMode::WorkGroup);
        let words: [u32; 8] = zerocopy::transmute!(block);
        assert_eq!(words, [1, 0x5c00_0010, 0, 1, 0, 0, 0, 0]);
    }
}
