//! Blocks that have another layout in an earlier branch, as 595 has them.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
pub use super::r570::Engines;
pub use super::r580::GroupSchedule;
use super::table::layouts;

/// The name of a device's model.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceName {
    flags: u32,
    /// ASCII, ended by a zero.
    pub ascii: [u8; 64],
}

impl DeviceName {
    /// The question.
    pub fn ask() -> Self {
        Self::new_zeroed()
    }
}

layouts! {
    DeviceName = "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS" in &[Branch::R595], 68 bytes:
        flags = "gpuNameStringFlags" at 0, ascii = "gpuNameString.ascii" at 4;
}
