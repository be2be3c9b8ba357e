//! The blocks that go with the making of objects, and the promise that they fit.
#![expect(unsafe_code, reason = "an unsafe trait carries the promise that class and block fit")]

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
use super::class;
use super::table::{Block, layouts};

/// A block that goes with [`Alloc`](super::escape::Alloc) of a class.
///
/// # Safety
/// `Self` is the block the driver reads and writes for `CLASS` in every branch of its
/// [`Block::LAYOUT`], and the driver follows no address in it.
pub unsafe trait RmAlloc: Block + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The class.
    const CLASS: u32;
}

/// Which device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceParameters {
    /// [`IdInfo::device_instance`](super::control::root::IdInfo::device_instance).
    pub device_instance: u32,
    /// The client whose address space to share: one's own.
    pub client_share: u32,
    target_client: u32,
    target_device: u32,
    flags: u32,
    padding: u32,
    address_space_size: u64,
    address_space_start: u64,
    address_space_limit: u64,
    address_space_mode: u32,
    padding_end: u32,
}

impl DeviceParameters {
    /// The device with this instance, in a client of one's own.
    pub fn new(device_instance: u32, client: u32) -> Self {
        Self { device_instance, client_share: client, ..Self::new_zeroed() }
    }
}

/// Which part of a device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SubdeviceParameters {
    /// Zero: devices that consist of several are history.
    pub subdevice_instance: u32,
}

// SAFETY: cl0080.h pairs NV01_DEVICE_0 with this block; it holds numbers and handles.
unsafe impl RmAlloc for DeviceParameters {
    const CLASS: u32 = class::DEVICE;
}

// SAFETY: cl2080.h pairs NV20_SUBDEVICE_0 with this block; it holds a number.
unsafe impl RmAlloc for SubdeviceParameters {
    const CLASS: u32 = class::SUBDEVICE;
}

layouts! {
    DeviceParameters = "NV0080_ALLOC_PARAMETERS" in &Branch::ALL, 56 bytes:
        device_instance = "deviceId" at 0, client_share = "hClientShare" at 4,
        target_client = "hTargetClient" at 8, target_device = "hTargetDevice" at 12,
        flags = "flags" at 16, address_space_size = "vaSpaceSize" at 24,
        address_space_start = "vaStartInternal" at 32,
        address_space_limit = "vaLimitInternal" at 40, address_space_mode = "vaMode" at 48;
    SubdeviceParameters = "NV2080_ALLOC_PARAMETERS" in &Branch::ALL, 4 bytes:
        subdevice_instance = "subDeviceId" at 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_asked_for_by_instance_and_client() {
        let words: [u32; 14] = zerocopy::transmute!(DeviceParameters::new(3, 0xc1d0_0001));
        assert_eq!(words[..2], [3, 0xc1d0_0001]);
        assert_eq!(words[2..], [0; 12]);
    }
}
