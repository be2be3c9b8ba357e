//! Controls of a group of channels.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::nvidia::abi::branch::Branch;
use crate::nvidia::abi::table::{layouts, numbers};

/// Sets how long the group may run before the device looks at the next one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetSlice {
    /// Microseconds; 0 counts as 1.
    pub slice_us: u64,
}

/// Reads what [`SetSlice`] sets.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadSlice {
    /// Microseconds.
    pub slice_us: u64,
}

/// Takes the group off the device. It comes back by itself when its turn comes.
///
/// # Invariants
/// A call that does not wait must not be repeated before the first has had its effect: the headers
/// leave open what happens then.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Preempt {
    /// Not zero: return when the group is off.
    pub wait: u8,
    /// Not zero: wait for at most `timeout_us`.
    pub has_timeout: u8,
    padding: [u8; 2],
    /// Microseconds, at most [`Preempt::TIMEOUT_US_MAX`].
    pub timeout_us: u32,
}

impl Preempt {
    /// The longest wait.
    pub const TIMEOUT_US_MAX: u32 = 1_000_000;

    /// A call that returns at once.
    pub const fn at_once() -> Self {
        Self { wait: 0, has_timeout: 0, padding: [0; 2], timeout_us: 0 }
    }

    /// A call that returns when the group is off the device, or after `timeout_us` (no longer than
    /// [`Preempt::TIMEOUT_US_MAX`]).
    pub fn waiting(timeout_us: u32) -> Self {
        let timeout_us = timeout_us.min(Self::TIMEOUT_US_MAX);
        Self { wait: 1, has_timeout: 1, padding: [0; 2], timeout_us }
    }
}

/// The group's number in the hardware.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupInfo {
    /// The number.
    pub group_id: u32,
}

/// Sets how often the group is in the device's list. Needs `CAP_SYS_NICE` or root.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetInterleave {
    /// [`SetInterleave::LOW`] to [`SetInterleave::HIGH`].
    pub level: u32,
}

impl SetInterleave {
    /// Seldom; what everybody has.
    pub const LOW: u32 = 0;
    /// More often.
    pub const MEDIUM: u32 = 1;
    /// Between any two others.
    pub const HIGH: u32 = 2;
}

/// Reads what [`SetInterleave`] sets.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadInterleave {
    /// As in [`SetInterleave`].
    pub level: u32,
}

layouts! {
    SetSlice = "NVA06C_CTRL_SET_TIMESLICE_PARAMS" in &Branch::ALL, 8 bytes:
        slice_us = "timesliceUs" at 0;
    ReadSlice = "NVA06C_CTRL_GET_TIMESLICE_PARAMS" in &Branch::ALL, 8 bytes:
        slice_us = "timesliceUs" at 0;
    Preempt = "NVA06C_CTRL_PREEMPT_PARAMS" in &Branch::ALL, 8 bytes:
        wait = "bWait" at 0, has_timeout = "bManualTimeout" at 1, timeout_us = "timeoutUs" at 4;
    GroupInfo = "NVA06C_CTRL_GET_INFO_PARAMS" in &Branch::ALL, 4 bytes:
        group_id = "tsgID" at 0;
    SetInterleave = "NVA06C_CTRL_SET_INTERLEAVE_LEVEL_PARAMS" in &Branch::ALL, 4 bytes:
        level = "tsgInterleaveLevel" at 0;
    ReadInterleave = "NVA06C_CTRL_GET_INTERLEAVE_LEVEL_PARAMS" in &Branch::ALL, 4 bytes:
        level = "tsgInterleaveLevel" at 0;
}

numbers! {
    "NVA06C_CTRL_CMD_PREEMPT_MAX_MANUAL_TIMEOUT_US"
        in &Branch::ALL => Preempt::TIMEOUT_US_MAX,
    "NVA06C_CTRL_INTERLEAVE_LEVEL_LOW" in &Branch::ALL => SetInterleave::LOW,
    "NVA06C_CTRL_INTERLEAVE_LEVEL_MEDIUM" in &Branch::ALL => SetInterleave::MEDIUM,
    "NVA06C_CTRL_INTERLEAVE_LEVEL_HIGH" in &Branch::ALL => SetInterleave::HIGH,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_longer_than_the_driver_allows() {
        assert_eq!(Preempt::waiting(5).timeout_us, 5);
        assert_eq!(Preempt::waiting(u32::MAX).timeout_us, Preempt::TIMEOUT_US_MAX);
    }
}
