//! Blocks that have another layout in another branch, as 580 has them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
pub use super::r550::DeviceName;
pub use super::r570::Engines;
use super::table::layouts;

/// Puts a group on the device's list, or takes it off.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupSchedule {
    /// Not zero: on.
    pub enable: u8,
    /// Not zero: leave the list itself alone.
    pub skip_submit: u8,
    /// Not zero: leave the channels themselves alone.
    pub skip_enable: u8,
}

impl GroupSchedule {
    /// On or off.
    pub fn new(enable: bool) -> Self {
        Self { enable: u8::from(enable), skip_submit: 0, skip_enable: 0 }
    }
}

/// From 580 on.
const SINCE_580: &[Branch] = &[Branch::R580, Branch::R595];

layouts! {
    GroupSchedule = "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS" in SINCE_580, 3 bytes:
        enable = "bEnable" at 0, skip_submit = "bSkipSubmit" at 1, skip_enable = "bSkipEnable" at 2;
}
