//! The ioctls of `/dev/nvidiactl` and `/dev/nvidia*`, the blocks they carry, and the blocks that go
//! with the allocation of objects.
//!
//! An ioctl has two ways to fail: `errno`, and the status in its block. A call has worked when both
//! say so.
#![expect(unsafe_code, reason = "an unsafe trait carries the promise that class and block fit")]

use rustix::ioctl::{Opcode, opcode};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Block, Branch, Status, class, numbers};

/// The group of every ioctl of the driver.
pub(super) const MAGIC: u8 = b'F';

/// A block that goes with [`Alloc`] of a class.
///
/// # Safety
/// `Self` is the block the driver reads and writes for `CLASS` in every branch of its
/// [`Block::LAYOUT`], and the driver follows no address in it.
pub unsafe trait RmAlloc: Block + FromBytes + IntoBytes + Immutable + KnownLayout {
    const CLASS: u32;
}

// SAFETY: cl0080.h pairs NV01_DEVICE_0 with this block; it holds numbers and handles.
unsafe impl RmAlloc for DeviceParameters {
    const CLASS: u32 = class::DEVICE;
}

// SAFETY: cl2080.h pairs NV20_SUBDEVICE_0 with this block; it holds a number.
unsafe impl RmAlloc for SubdeviceParameters {
    const CLASS: u32 = class::SUBDEVICE;
}

gpreempt_kfd::blocks! {
    for [Branch], derive(Clone, Copy, Debug);
    /// Frees an object and everything below it.
    pub struct Free = "NVOS00_PARAMETERS" in Branch::ALL, 16 bytes {
        pub client: u32 = "hRoot" at 0,
        pub parent: u32 = "hObjectParent" at 4,
        pub object: u32 = "hObjectOld" at 8,
        pub status: Status = "status" at 12,
    }

    /// Calls a control command of an object.
    pub struct Control = "NVOS54_PARAMETERS" in Branch::ALL, 32 bytes {
        pub client: u32 = "hClient" at 0,
        pub object: u32 = "hObject" at 4,
        /// See [`RmControl::COMMAND`](super::RmControl::COMMAND).
        pub command: u32 = "cmd" at 8,
        /// Zero.
        pub flags: u32 = "flags" at 12,
        /// The address of the command's block.
        pub parameters: u64 = "params" at 16,
        /// The size of that block; the driver refuses any other number than its own.
        pub parameters_size: u32 = "paramsSize" at 24,
        pub status: Status = "status" at 28,
    }

    /// Allocates an object.
    pub struct Alloc = "NVOS64_PARAMETERS" in Branch::ALL, 48 bytes {
        pub client: u32 = "hRoot" at 0,
        pub parent: u32 = "hObjectParent" at 4,
        /// The new handle, or zero for one that the driver chooses.
        pub object: u32 = "hObjectNew" at 8,
        pub class: u32 = "hClass" at 12,
        /// The address of the class's block, or zero.
        pub parameters: u64 = "pAllocParms" at 16,
        /// Zero: the rights that come with the class.
        rights: u64 = "pRightsRequested" at 24,
        parameters_size: u32 = "paramsSize" at 32,
        flags: u32 = "flags" at 36,
        pub status: Status = "status" at 40,
        padding: u32,
    }

    /// Makes an object of one client visible in another. [`Share`] decides what may be duplicated.
    pub struct Duplicate = "NVOS55_PARAMETERS" in Branch::ALL, 28 bytes {
        /// The client that gets the object, and where in its tree.
        pub client: u32 = "hClient" at 0,
        pub parent: u32 = "hParent" at 4,
        /// The new handle, or zero for one that the driver chooses.
        pub object: u32 = "hObject" at 8,
        pub client_source: u32 = "hClientSrc" at 12,
        pub object_source: u32 = "hObjectSrc" at 16,
        flags: u32 = "flags" at 20,
        pub status: Status = "status" at 24,
    }

    /// Sets which clients have which rights on an object.
    pub struct Share = "NVOS57_PARAMETERS" in Branch::ALL, 24 bytes {
        pub client: u32 = "hClient" at 0,
        pub object: u32 = "hObject" at 4,
        /// The other client, where the kind asks for one.
        pub target: u32 = "sharePolicy.target" at 8,
        pub rights: u32 = "sharePolicy.accessMask" at 12,
        /// [`Share::CLIENT`] or [`Share::ALL_CLIENTS`].
        pub kind: u16 = "sharePolicy.type" at 16,
        /// [`Share::ADD`] or [`Share::REMOVE`].
        pub action: u8 = "sharePolicy.action" at 18,
        padding: u8,
        pub status: Status = "status" at 20,
    }

    /// Prepares a file for `mmap(2)` of a piece of an object.
    ///
    /// The driver refuses this for clients of other processes, and complains in the kernel log
    /// about later calls of the thread that tried.
    pub struct MapMemory = "nv_ioctl_nvos33_parameters_with_fd" in Branch::ALL, 56 bytes {
        pub client: u32 = "params.hClient" at 0,
        /// The device or subdevice.
        pub device: u32 = "params.hDevice" at 4,
        pub memory: u32 = "params.hMemory" at 8,
        padding: u32,
        offset: u64 = "params.offset" at 16,
        pub length: u64 = "params.length" at 24,
        /// The driver's own name of the mapping.
        linear_address: u64 = "params.pLinearAddress" at 32,
        pub status: Status = "params.status" at 40,
        /// Zero, or [`MapMemory::READ_ONLY`].
        pub flags: u32 = "params.flags" at 44,
        /// The file to prepare: a `/dev/nvidia*` that nothing else is mapped with.
        pub file: i32 = "fd" at 48,
        padding_end: u32,
    }

    /// One device in the answer to [`DEVICE_INFO`].
    pub struct DeviceInfo = "nv_ioctl_card_info_t" in Branch::ALL, 72 bytes {
        /// Not zero where the other fields have a meaning.
        pub is_valid: u8 = "valid" at 0,
        padding: [u8; 3],
        pci_domain: u32 = "pci_info.domain" at 4,
        pci_bus: u8 = "pci_info.bus" at 8,
        pci_slot: u8 = "pci_info.slot" at 9,
        pci_function: u8 = "pci_info.function" at 10,
        padding_pci: u8,
        pci_vendor: u16 = "pci_info.vendor_id" at 12,
        pci_device: u16 = "pci_info.device_id" at 14,
        /// The driver's own number of the device.
        pub gpu_id: u32 = "gpu_id" at 16,
        interrupt_line: u16 = "interrupt_line" at 20,
        padding_interrupt: u16,
        register_address: u64 = "reg_address" at 24,
        register_size: u64 = "reg_size" at 32,
        memory_address: u64 = "fb_address" at 40,
        memory_size: u64 = "fb_size" at 48,
        /// The N of `/dev/nvidiaN`.
        pub minor: u32 = "minor_number" at 56,
        name: [u8; 10] = "dev_name" at 60,
        padding_end: [u8; 2],
    }

    /// Registers a `/dev/nvidia*` with a `/dev/nvidiactl`, so that both belong to one client.
    pub struct RegisterFile = "nv_ioctl_register_fd_t" in Branch::ALL, 4 bytes {
        pub control_file: i32 = "ctl_fd" at 0,
    }

    /// Allocates a device.
    pub struct DeviceParameters = "NV0080_ALLOC_PARAMETERS" in Branch::ALL, 56 bytes {
        /// [`IdInfo::device_instance`](super::control::IdInfo::device_instance).
        device_instance: u32 = "deviceId" at 0,
        /// The client whose address space to share: the caller's own.
        client_share: u32 = "hClientShare" at 4,
        target_client: u32 = "hTargetClient" at 8,
        target_device: u32 = "hTargetDevice" at 12,
        flags: u32 = "flags" at 16,
        padding: u32,
        address_space_size: u64 = "vaSpaceSize" at 24,
        address_space_start: u64 = "vaStartInternal" at 32,
        address_space_limit: u64 = "vaLimitInternal" at 40,
        address_space_mode: u32 = "vaMode" at 48,
        padding_end: u32,
    }

    /// Allocates a subdevice.
    pub struct SubdeviceParameters = "NV2080_ALLOC_PARAMETERS" in Branch::ALL, 4 bytes {
        /// Zero: devices that consist of several are no longer made.
        pub subdevice_instance: u32 = "subDeviceId" at 0,
    }
}

impl Share {
    /// The right to [`Duplicate`].
    pub const DUPLICATE: u32 = 1;
    pub const ALL_CLIENTS: u16 = 1;
    pub const CLIENT: u16 = 3;
    /// Add to what was allowed before.
    pub const ADD: u8 = 4;
    /// Remove what an [`Share::ADD`] allowed.
    pub const REMOVE: u8 = 5;
}

impl MapMemory {
    /// The driver does not enforce it, so ask `mmap(2)` for the same.
    pub const READ_ONLY: u32 = 1;
}

impl DeviceParameters {
    /// The device with this instance, in a client of the caller.
    pub fn new(device_instance: u32, client: u32) -> Self {
        Self { device_instance, client_share: client, ..Self::new_zeroed() }
    }
}

/// The block of [`DEVICE_INFO`]: as many devices as the driver can have.
pub type DeviceInfos = [DeviceInfo; 32];

pub const FREE: Opcode = opcode::read_write::<Free>(MAGIC, 0x29);
pub const CONTROL: Opcode = opcode::read_write::<Control>(MAGIC, 0x2a);
pub const ALLOC: Opcode = opcode::read_write::<Alloc>(MAGIC, 0x2b);
pub const DUPLICATE: Opcode = opcode::read_write::<Duplicate>(MAGIC, 0x34);
pub const SHARE: Opcode = opcode::read_write::<Share>(MAGIC, 0x35);
pub const MAP_MEMORY: Opcode = opcode::read_write::<MapMemory>(MAGIC, 0x4e);
pub const DEVICE_INFO: Opcode = opcode::read_write::<DeviceInfos>(MAGIC, 0xc8);
/// The ioctl of [`RegisterFile`], on the `/dev/nvidia*`.
pub const REGISTER_FILE: Opcode = opcode::read_write::<RegisterFile>(MAGIC, 0xc9);

const _: () = assert!(FREE == 0xc010_4629);
const _: () = assert!(CONTROL == 0xc020_462a);
const _: () = assert!(ALLOC == 0xc030_462b);
const _: () = assert!(DUPLICATE == 0xc01c_4634);
const _: () = assert!(SHARE == 0xc018_4635);
const _: () = assert!(MAP_MEMORY == 0xc038_464e);
const _: () = assert!(DEVICE_INFO == 0xc900_46c8);
const _: () = assert!(REGISTER_FILE == 0xc004_46c9);

numbers! {
    Branch::ALL => {
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_FREE, NVOS00_PARAMETERS)" = FREE,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_CONTROL, NVOS54_PARAMETERS)" = CONTROL,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_ALLOC, NVOS64_PARAMETERS)" = ALLOC,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_DUP_OBJECT, NVOS55_PARAMETERS)" = DUPLICATE,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_SHARE, NVOS57_PARAMETERS)" = SHARE,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_MAP_MEMORY, nv_ioctl_nvos33_parameters_with_fd)"
            = MAP_MEMORY,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_CARD_INFO, nv_ioctl_card_info_t[NV_MAX_DEVICES])"
            = DEVICE_INFO,
        "_IOWR(NV_IOCTL_MAGIC, NV_ESC_REGISTER_FD, nv_ioctl_register_fd_t)" = REGISTER_FILE,
        "1 << RS_ACCESS_DUP_OBJECT" = Share::DUPLICATE,
        "RS_SHARE_TYPE_ALL" = Share::ALL_CLIENTS,
        "RS_SHARE_TYPE_CLIENT" = Share::CLIENT,
        "RS_SHARE_ACTION_FLAG_COMPOSE" = Share::ADD,
        "RS_SHARE_ACTION_FLAG_COMPOSE | RS_SHARE_ACTION_FLAG_REVOKE" = Share::REMOVE,
        "NVOS33_FLAGS_ACCESS_READ_ONLY" = MapMemory::READ_ONLY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_allocated_by_instance_and_client() {
        let words: [u32; 14] = zerocopy::transmute!(DeviceParameters::new(3, 0xc1d0_0001));
        assert_eq!(words[..2], [3, 0xc1d0_0001]);
        assert_eq!(words[2..], [0; 12]);
    }
}
