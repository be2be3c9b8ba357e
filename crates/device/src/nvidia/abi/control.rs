//! Control commands: what can be asked of an object.
//!
//! The files below hold the blocks; this one says which block goes with which command.
#![expect(unsafe_code, reason = "an unsafe trait carries the promise that command and block fit")]

pub mod chosen;
pub mod group;
pub mod root;
pub mod subdevice;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::table::{Block, Command};
use super::{hold, r550, r570, r580, r595};

/// A block that goes with [`Control`](super::escape::Control).
///
/// # Safety
/// `Self` is the block the driver reads and writes for `COMMAND` in every branch of its
/// [`Block::LAYOUT`], and the driver follows no address in it.
pub unsafe trait RmControl: Block + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The command.
    const COMMAND: u32;
    /// What the headers call it.
    const C_NAME: &'static str;
}

// SAFETY: ctrl0000client.h pairs the two; the block holds a handle and numbers.
unsafe impl RmControl for root::HandleInfo {
    const COMMAND: u32 = 0xd02;
    const C_NAME: &'static str = "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO";
}

// SAFETY: ctrl0000gpu.h pairs the two; the block holds numbers.
unsafe impl RmControl for root::AttachedIds {
    const COMMAND: u32 = 0x201;
    const C_NAME: &'static str = "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS";
}

// SAFETY: ctrl0000gpu.h pairs the two; the block holds numbers.
unsafe impl RmControl for root::IdInfo {
    const COMMAND: u32 = 0x205;
    const C_NAME: &'static str = "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2";
}

// SAFETY: ctrl0000gpu.h pairs the two; the block holds numbers.
unsafe impl RmControl for root::PciInfo {
    const COMMAND: u32 = 0x21b;
    const C_NAME: &'static str = "NV0000_CTRL_CMD_GPU_GET_PCI_INFO";
}

// SAFETY: ctrla06c.h pairs the two; in 550 and 570 the block is these two flags.
unsafe impl RmControl for r550::GroupSchedule {
    const COMMAND: u32 = 0xa06c_0101;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE";
}

// SAFETY: ctrla06c.h pairs the two; since 580 the block is these three flags.
unsafe impl RmControl for r580::GroupSchedule {
    const COMMAND: u32 = 0xa06c_0101;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE";
}

// SAFETY: ctrla06c.h pairs the two; the block holds a number.
unsafe impl RmControl for group::SetSlice {
    const COMMAND: u32 = 0xa06c_0103;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_SET_TIMESLICE";
}

// SAFETY: ctrla06c.h pairs the two; the block holds a number.
unsafe impl RmControl for group::ReadSlice {
    const COMMAND: u32 = 0xa06c_0104;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_GET_TIMESLICE";
}

// SAFETY: ctrla06c.h pairs the two; the block holds flags and a number.
unsafe impl RmControl for group::Preempt {
    const COMMAND: u32 = 0xa06c_0105;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_PREEMPT";
}

// SAFETY: ctrla06c.h pairs the two; the block holds a number.
unsafe impl RmControl for group::GroupInfo {
    const COMMAND: u32 = 0xa06c_0106;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_GET_INFO";
}

// SAFETY: ctrla06c.h pairs the two; the block holds a number.
unsafe impl RmControl for group::SetInterleave {
    const COMMAND: u32 = 0xa06c_0107;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL";
}

// SAFETY: ctrla06c.h pairs the two; the block holds a number.
unsafe impl RmControl for group::ReadInterleave {
    const COMMAND: u32 = 0xa06c_0108;
    const C_NAME: &'static str = "NVA06C_CTRL_CMD_GET_INTERLEAVE_LEVEL";
}

// SAFETY: ctrl2080gpu.h pairs the two; up to 580 the block holds a number and 128 bytes of text.
unsafe impl RmControl for r550::DeviceName {
    const COMMAND: u32 = 0x2080_0110;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GPU_GET_NAME_STRING";
}

// SAFETY: ctrl2080gpu.h pairs the two; in 595 the block holds a number and 64 bytes of text.
unsafe impl RmControl for r595::DeviceName {
    const COMMAND: u32 = 0x2080_0110;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GPU_GET_NAME_STRING";
}

// SAFETY: ctrl2080gpu.h pairs the two; the block holds numbers and bytes.
unsafe impl RmControl for subdevice::DeviceUuid {
    const COMMAND: u32 = 0x2080_014a;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GPU_GET_GID_INFO";
}

// SAFETY: ctrl2080gpu.h pairs the two; in 550 the block holds 64 numbers and their count.
unsafe impl RmControl for r550::Engines {
    const COMMAND: u32 = 0x2080_0170;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2";
}

// SAFETY: ctrl2080gpu.h pairs the two; since 570 the block holds 84 numbers and their count.
unsafe impl RmControl for r570::Engines {
    const COMMAND: u32 = 0x2080_0170;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2";
}

// SAFETY: ctrl2080gpu.h pairs the two; the block holds numbers.
unsafe impl RmControl for subdevice::ProcessIds {
    const COMMAND: u32 = 0x2080_018d;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GPU_GET_PIDS";
}

// SAFETY: ctrl2080fifo.h pairs the two; the block holds handles, numbers, and one address that the
// driver uses only for callers inside the kernel: anybody else is refused if it is not zero
// (subdeviceCtrlCmdFifoDisableChannels in kernel_fifo_ctrl.c, the same in all four branches).
unsafe impl RmControl for subdevice::DisableChannels {
    const COMMAND: u32 = 0x2080_110b;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS";
}

// SAFETY: ctrl2080gr.h pairs the two; the block holds a handle and numbers.
unsafe impl RmControl for subdevice::SetPreemptionMode {
    const COMMAND: u32 = 0x2080_1210;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE";
}

// SAFETY: ctrl2080gr.h pairs the two; the block holds a handle and numbers.
unsafe impl RmControl for subdevice::SwitchCounts {
    const COMMAND: u32 = 0x2080_1215;
    const C_NAME: &'static str = "NV2080_CTRL_CMD_GR_GET_CTXSW_STATS";
}

// SAFETY: ctrla06fgpfifo.h pairs the two; in 580 the block is these three flags.
unsafe impl RmControl for hold::ChannelSchedule {
    const COMMAND: u32 = 0xa06f_0103;
    const C_NAME: &'static str = "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE";
}

// SAFETY: ctrlc36f.h pairs the two; the block holds a number.
unsafe impl RmControl for hold::ChannelToken {
    const COMMAND: u32 = 0xc36f_0108;
    const C_NAME: &'static str = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN";
}

const fn command<C: RmControl>() -> Command {
    Command { c_name: C::C_NAME, command: C::COMMAND, layout: <C as Block>::LAYOUT }
}

/// Every command.
pub(super) const COMMANDS: &[Command] = &[
    command::<root::HandleInfo>(),
    command::<root::AttachedIds>(),
    command::<root::IdInfo>(),
    command::<root::PciInfo>(),
    command::<r550::GroupSchedule>(),
    command::<r580::GroupSchedule>(),
    command::<group::SetSlice>(),
    command::<group::ReadSlice>(),
    command::<group::Preempt>(),
    command::<group::GroupInfo>(),
    command::<group::SetInterleave>(),
    command::<group::ReadInterleave>(),
    command::<r550::DeviceName>(),
    command::<r595::DeviceName>(),
    command::<subdevice::DeviceUuid>(),
    command::<r550::Engines>(),
    command::<r570::Engines>(),
    command::<subdevice::ProcessIds>(),
    command::<subdevice::DisableChannels>(),
    command::<subdevice::SetPreemptionMode>(),
    command::<subdevice::SwitchCounts>(),
    command::<hold::ChannelSchedule>(),
    command::<hold::ChannelToken>(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_is_in_the_table_that_is_checked() {
        let promises = include_str!("control.rs").matches("\nunsafe impl RmControl for ").count();
        assert_eq!(COMMANDS.len(), promises);
    }
}
