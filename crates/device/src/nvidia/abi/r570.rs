//! Blocks that have another layout in another branch, as 570 has them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
pub use super::r550::{DeviceName, GroupSchedule};
use super::table::layouts;

/// The engines of a device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Engines {
    /// How many there are.
    pub count: u32,
    /// Their kinds.
    pub list: [u32; 84],
}

/// From 570 on.
const SINCE_570: &[Branch] = &[Branch::R570, Branch::R580, Branch::R595];

layouts! {
    Engines = "NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS" in SINCE_570, 340 bytes:
        count = "engineCount" at 0, list = "engineList" at 4;
}
