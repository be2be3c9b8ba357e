//! Controls of a client: which devices there are, and what the client has.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::nvidia::abi::branch::Branch;
use crate::nvidia::abi::table::{layouts, numbers};

/// What an object is, or where. Call it on the client that has the object.
///
/// Only for a client that is known to exist: for any other the driver writes a line into the
/// kernel's log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HandleInfo {
    /// The object.
    pub object: u32,
    /// [`HandleInfo::PARENT`] or [`HandleInfo::CLASS`].
    pub index: u32,
    /// The answer.
    pub result: u64,
}

impl HandleInfo {
    /// Ask for the parent's handle.
    pub const PARENT: u32 = 1;
    /// Ask for the class.
    pub const CLASS: u32 = 2;

    /// The question for the class of `object`.
    pub const fn class_of(object: u32) -> Self {
        Self { object, index: Self::CLASS, result: 0 }
    }

    /// The question for the parent of `object`.
    pub const fn parent_of(object: u32) -> Self {
        Self { object, index: Self::PARENT, result: 0 }
    }
}

/// The devices that are awake: those whose file somebody has open.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachedIds {
    /// The driver's numbers; [`AttachedIds::NONE`] where there is no device.
    pub gpu_ids: [u32; 32],
}

impl AttachedIds {
    /// No device.
    pub const NONE: u32 = u32::MAX;

    /// The devices in the answer.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.gpu_ids.iter().copied().filter(|id| *id != Self::NONE)
    }
}

/// Where the driver keeps a device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdInfo {
    /// Which device: as in [`AttachedIds`].
    pub gpu_id: u32,
    /// Not used here.
    pub flags: u32,
    /// What [`DeviceParameters`](crate::nvidia::abi::alloc::DeviceParameters) wants.
    pub device_instance: u32,
    /// What [`SubdeviceParameters`](crate::nvidia::abi::alloc::SubdeviceParameters) wants.
    pub subdevice_instance: u32,
    /// Not used here.
    pub sli_status: u32,
    /// Not used here.
    pub board_id: u32,
    /// Counted from 0 in the order of the bus.
    pub gpu_instance: u32,
    /// The node of the system's memory, or -1.
    pub numa_node: i32,
}

impl IdInfo {
    /// The question for one device.
    pub fn of(gpu_id: u32) -> Self {
        Self { gpu_id, ..Self::new_zeroed() }
    }
}

/// Where a device is plugged in.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PciInfo {
    /// Which device: as in [`AttachedIds`].
    pub gpu_id: u32,
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u16,
    /// PCI slot.
    pub slot: u16,
}

impl PciInfo {
    /// The question for one device.
    pub const fn of(gpu_id: u32) -> Self {
        Self { gpu_id, domain: 0, bus: 0, slot: 0 }
    }
}

layouts! {
    HandleInfo = "NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS" in &Branch::ALL, 16 bytes:
        object = "hObject" at 0, index = "index" at 4, result = "data.iResult" at 8;
    AttachedIds = "NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS" in &Branch::ALL, 128 bytes:
        gpu_ids = "gpuIds" at 0;
    IdInfo = "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS" in &Branch::ALL, 32 bytes:
        gpu_id = "gpuId" at 0, flags = "gpuFlags" at 4, device_instance = "deviceInstance" at 8,
        subdevice_instance = "subDeviceInstance" at 12, sli_status = "sliStatus" at 16,
        board_id = "boardId" at 20, gpu_instance = "gpuInstance" at 24, numa_node = "numaId" at 28;
    PciInfo = "NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS" in &Branch::ALL, 12 bytes:
        gpu_id = "gpuId" at 0, domain = "domain" at 4, bus = "bus" at 8, slot = "slot" at 10;
}

numbers! {
    "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT"
        in &Branch::ALL => HandleInfo::PARENT,
    "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID"
        in &Branch::ALL => HandleInfo::CLASS,
    "NV0000_CTRL_GPU_INVALID_ID" in &Branch::ALL => AttachedIds::NONE,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_places_are_no_devices() {
        let mut ids = AttachedIds { gpu_ids: [AttachedIds::NONE; 32] };
        assert_eq!(ids.iter().count(), 0);
        ids.gpu_ids[0] = 0x100;
        ids.gpu_ids[5] = 0x4100;
        assert_eq!(ids.iter().collect::<Vec<_>>(), [0x100, 0x4100]);
    }
}
