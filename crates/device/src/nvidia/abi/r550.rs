//! Blocks that have another layout in a later branch, as 550 has them.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
use super::table::layouts;

/// Puts a group on the device's list, or takes it off.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupSchedule {
    /// Not zero: on.
    pub enable: u8,
    /// Not zero: leave the list itself alone.
    pub skip_submit: u8,
}

impl GroupSchedule {
    /// On or off.
    pub fn new(enable: bool) -> Self {
        Self { enable: u8::from(enable), skip_submit: 0 }
    }
}

/// The engines of a device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Engines {
    /// How many there are.
    pub count: u32,
    /// Their kinds.
    pub list: [u32; 64],
}

/// The name of a device's model.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceName {
    flags: u32,
    /// ASCII, ended by a zero.
    pub ascii: [u8; 64],
    /// Only text of two bytes per character gets so far.
    padding: [u8; 64],
}

impl DeviceName {
    /// The question.
    pub fn ask() -> Self {
        Self::new_zeroed()
    }
}

/// Up to 570.
const UNTIL_570: &[Branch] = &[Branch::R550, Branch::R570];
/// Up to 580.
const UNTIL_580: &[Branch] = &[Branch::R550, Branch::R570, Branch::R580];

layouts! {
    GroupSchedule = "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS" in UNTIL_570, 2 bytes:
        enable = "bEnable" at 0, skip_submit = "bSkipSubmit" at 1;
    Engines = "NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS" in &[Branch::R550], 260 bytes:
        count = "engineCount" at 0, list = "engineList" at 4;
    DeviceName = "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS" in UNTIL_580, 132 bytes:
        flags = "gpuNameStringFlags" at 0, ascii = "gpuNameString.ascii" at 4;
}
