//! The ioctls of `/dev/nvidiactl` and `/dev/nvidia*`, and the blocks they carry.
//!
//! An ioctl has two ways to fail: `errno`, and the status in its block. A call has worked when both
//! say so.

use rustix::ioctl::{Opcode, opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
use super::status::Status;
use super::table::{layouts, numbers};

/// The group of every ioctl of the driver.
const MAGIC: u8 = b'F';

/// Gives an object, and everything below it, back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Free {
    /// The client that owns the object.
    pub client: u32,
    /// The object's parent.
    pub parent: u32,
    /// The object.
    pub object: u32,
    /// How it went.
    pub status: Status,
}

/// Calls a control command of an object.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// The client that owns the object.
    pub client: u32,
    /// The object.
    pub object: u32,
    /// See [`RmControl::COMMAND`](super::control::RmControl::COMMAND).
    pub command: u32,
    /// Zero.
    pub flags: u32,
    /// The address of the command's block.
    pub parameters: u64,
    /// How many bytes that block has; the driver refuses any other number than its own.
    pub parameters_size: u32,
    /// How it went.
    pub status: Status,
}

/// Makes an object.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Alloc {
    /// The client that will own the object.
    pub client: u32,
    /// Where in the client's tree.
    pub parent: u32,
    /// The new handle, or zero to be given one.
    pub object: u32,
    /// See [`class`](super::class).
    pub class: u32,
    /// The address of the class's block, or zero.
    pub parameters: u64,
    /// Zero: the rights that come with the class.
    pub rights: u64,
    /// How many bytes the class's block has.
    pub parameters_size: u32,
    /// Zero.
    pub flags: u32,
    /// How it went.
    pub status: Status,
    padding: u32,
}

/// Makes an object of one client visible in another. What may be duplicated is up to [`Share`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Duplicate {
    /// The client that gets the object.
    pub client: u32,
    /// Where in its tree.
    pub parent: u32,
    /// The new handle, or zero to be given one.
    pub object: u32,
    /// The client that has the object.
    pub client_source: u32,
    /// The object there.
    pub object_source: u32,
    /// Zero.
    pub flags: u32,
    /// How it went.
    pub status: Status,
}

/// Says who may do what with an object.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Share {
    /// The client that owns the object.
    pub client: u32,
    /// The object.
    pub object: u32,
    /// Whom, where the kind asks for one.
    pub target: u32,
    /// The rights, for example [`Share::DUPLICATE`].
    pub rights: u32,
    /// The kind of target, for example [`Share::CLIENT`].
    pub kind: u16,
    /// [`Share::ADD`] or [`Share::REMOVE`].
    pub action: u8,
    padding: u8,
    /// How it went.
    pub status: Status,
}

impl Share {
    /// The right to [`Duplicate`].
    pub const DUPLICATE: u32 = 1;
    /// The target is every client.
    pub const EVERYBODY: u16 = 1;
    /// The target is one client.
    pub const CLIENT: u16 = 3;
    /// Add to what was allowed before.
    pub const ADD: u8 = 4;
    /// Take away what an [`Share::ADD`] allowed.
    pub const REMOVE: u8 = 5;
}

/// Prepares a file for `mmap(2)` of a piece of an object.
///
/// The driver refuses this for clients of other processes, and complains in the kernel log about
/// later calls of the thread that tried.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapMemory {
    /// The client that owns the object.
    pub client: u32,
    /// The device or subdevice.
    pub device: u32,
    /// The object.
    pub memory: u32,
    padding: u32,
    /// Where the piece begins.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// What the driver calls the mapping; [`UnmapMemory`] wants it back.
    pub linear_address: u64,
    /// How it went.
    pub status: Status,
    /// Zero, or [`MapMemory::READ_ONLY`].
    pub flags: u32,
    /// The file to prepare: a `/dev/nvidia*` that nothing else is mapped with.
    pub file: i32,
    padding_end: u32,
}

impl MapMemory {
    /// The mapping is for reading. The driver does not insist, so ask `mmap(2)` for the same.
    pub const READ_ONLY: u32 = 1;
}

/// Undoes a [`MapMemory`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnmapMemory {
    /// As in [`MapMemory`].
    pub client: u32,
    /// As in [`MapMemory`].
    pub device: u32,
    /// As in [`MapMemory`].
    pub memory: u32,
    padding: u32,
    /// What [`MapMemory`] said.
    pub linear_address: u64,
    /// How it went.
    pub status: Status,
    /// Zero.
    pub flags: u32,
}

/// One device in the answer to [`DEVICE_INFO`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Not zero where the rest means anything.
    pub is_valid: u8,
    padding: [u8; 3],
    /// PCI domain.
    pub pci_domain: u32,
    /// PCI bus.
    pub pci_bus: u8,
    /// PCI slot.
    pub pci_slot: u8,
    /// PCI function.
    pub pci_function: u8,
    padding_pci: u8,
    /// PCI vendor.
    pub pci_vendor: u16,
    /// PCI device.
    pub pci_device: u16,
    /// The driver's own number, as in [`AttachedIds`](super::control::root::AttachedIds).
    pub gpu_id: u32,
    /// Not used here.
    pub interrupt_line: u16,
    padding_interrupt: u16,
    /// Not used here.
    pub register_address: u64,
    /// Not used here.
    pub register_size: u64,
    /// Not used here.
    pub memory_address: u64,
    /// Not used here.
    pub memory_size: u64,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Not used here.
    pub name: [u8; 10],
    padding_end: [u8; 2],
}

/// The block of [`DEVICE_INFO`]: as many devices as the driver can have.
pub type DeviceInfos = [DeviceInfo; 32];

/// Ties a `/dev/nvidia*` to a `/dev/nvidiactl`, so that both belong to one client.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterFile {
    /// The `/dev/nvidiactl`.
    pub control_file: i32,
}

/// Asks for the driver's version, or whether it is ours.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CheckVersion {
    /// [`CheckVersion::QUERY`].
    pub command: u32,
    /// [`CheckVersion::RECOGNIZED`] if the driver answered.
    pub reply: u32,
    /// The version, ended by a zero.
    pub version: [u8; 64],
}

impl CheckVersion {
    /// Only tell the version.
    pub const QUERY: u32 = b'2' as u32;
    /// The answer is in `version`.
    pub const RECOGNIZED: u32 = 1;
}

/// The ioctl of [`Free`].
pub const FREE: Opcode = opcode::read_write::<Free>(MAGIC, 0x29);
/// The ioctl of [`Control`].
pub const CONTROL: Opcode = opcode::read_write::<Control>(MAGIC, 0x2a);
/// The ioctl of [`Alloc`].
pub const ALLOC: Opcode = opcode::read_write::<Alloc>(MAGIC, 0x2b);
/// The ioctl of [`Duplicate`].
pub const DUPLICATE: Opcode = opcode::read_write::<Duplicate>(MAGIC, 0x34);
/// The ioctl of [`Share`].
pub const SHARE: Opcode = opcode::read_write::<Share>(MAGIC, 0x35);
/// The ioctl of [`MapMemory`].
pub const MAP_MEMORY: Opcode = opcode::read_write::<MapMemory>(MAGIC, 0x4e);
/// The ioctl of [`UnmapMemory`].
pub const UNMAP_MEMORY: Opcode = opcode::read_write::<UnmapMemory>(MAGIC, 0x4f);
/// The ioctl of [`DeviceInfos`].
pub const DEVICE_INFO: Opcode = opcode::read_write::<DeviceInfos>(MAGIC, 0xc8);
/// The ioctl of [`RegisterFile`], on the `/dev/nvidia*`.
pub const REGISTER_FILE: Opcode = opcode::read_write::<RegisterFile>(MAGIC, 0xc9);
/// The ioctl of [`CheckVersion`].
pub const CHECK_VERSION: Opcode = opcode::read_write::<CheckVersion>(MAGIC, 0xd2);

const _: () = assert!(FREE == 0xc010_4629);
const _: () = assert!(CONTROL == 0xc020_462a);
const _: () = assert!(ALLOC == 0xc030_462b);
const _: () = assert!(DUPLICATE == 0xc01c_4634);
const _: () = assert!(SHARE == 0xc018_4635);
const _: () = assert!(MAP_MEMORY == 0xc038_464e);
const _: () = assert!(UNMAP_MEMORY == 0xc020_464f);
const _: () = assert!(DEVICE_INFO == 0xc900_46c8);
const _: () = assert!(REGISTER_FILE == 0xc004_46c9);
const _: () = assert!(CHECK_VERSION == 0xc048_46d2);

layouts! {
    Free = "NVOS00_PARAMETERS" in &Branch::ALL, 16 bytes:
        client = "hRoot" at 0, parent = "hObjectParent" at 4, object = "hObjectOld" at 8,
        status = "status" at 12;
    Control = "NVOS54_PARAMETERS" in &Branch::ALL, 32 bytes:
        client = "hClient" at 0, object = "hObject" at 4, command = "cmd" at 8,
        flags = "flags" at 12, parameters = "params" at 16, parameters_size = "paramsSize" at 24,
        status = "status" at 28;
    Alloc = "NVOS64_PARAMETERS" in &Branch::ALL, 48 bytes:
        client = "hRoot" at 0, parent = "hObjectParent" at 4, object = "hObjectNew" at 8,
        class = "hClass" at 12, parameters = "pAllocParms" at 16, rights = "pRightsRequested" at 24,
        parameters_size = "paramsSize" at 32, flags = "flags" at 36, status = "status" at 40;
    Duplicate = "NVOS55_PARAMETERS" in &Branch::ALL, 28 bytes:
        client = "hClient" at 0, parent = "hParent" at 4, object = "hObject" at 8,
        client_source = "hClientSrc" at 12, object_source = "hObjectSrc" at 16,
        flags = "flags" at 20, status = "status" at 24;
    Share = "NVOS57_PARAMETERS" in &Branch::ALL, 24 bytes:
        client = "hClient" at 0, object = "hObject" at 4, target = "sharePolicy.target" at 8,
        rights = "sharePolicy.accessMask" at 12, kind = "sharePolicy.type" at 16,
        action = "sharePolicy.action" at 18, status = "status" at 20;
    MapMemory = "nv_ioctl_nvos33_parameters_with_fd" in &Branch::ALL, 56 bytes:
        client = "params.hClient" at 0, device = "params.hDevice" at 4,
        memory = "params.hMemory" at 8, offset = "params.offset" at 16,
        length = "params.length" at 24, linear_address = "params.pLinearAddress" at 32,
        status = "params.status" at 40, flags = "params.flags" at 44, file = "fd" at 48;
    UnmapMemory = "NVOS34_PARAMETERS" in &Branch::ALL, 32 bytes:
        client = "hClient" at 0, device = "hDevice" at 4, memory = "hMemory" at 8,
        linear_address = "pLinearAddress" at 16, status = "status" at 24, flags = "flags" at 28;
    DeviceInfo = "nv_ioctl_card_info_t" in &Branch::ALL, 72 bytes:
        is_valid = "valid" at 0, pci_domain = "pci_info.domain" at 4,
        pci_bus = "pci_info.bus" at 8, pci_slot = "pci_info.slot" at 9,
        pci_function = "pci_info.function" at 10, pci_vendor = "pci_info.vendor_id" at 12,
        pci_device = "pci_info.device_id" at 14, gpu_id = "gpu_id" at 16,
        interrupt_line = "interrupt_line" at 20, register_address = "reg_address" at 24,
        register_size = "reg_size" at 32, memory_address = "fb_address" at 40,
        memory_size = "fb_size" at 48, minor = "minor_number" at 56, name = "dev_name" at 60;
    RegisterFile = "nv_ioctl_register_fd_t" in &Branch::ALL, 4 bytes:
        control_file = "ctl_fd" at 0;
    CheckVersion = "nv_ioctl_rm_api_version_t" in &Branch::ALL, 72 bytes:
        command = "cmd" at 0, reply = "reply" at 4, version = "versionString" at 8;
}

numbers! {
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_FREE, NVOS00_PARAMETERS)" in &Branch::ALL => FREE,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_CONTROL, NVOS54_PARAMETERS)" in &Branch::ALL => CONTROL,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_ALLOC, NVOS64_PARAMETERS)" in &Branch::ALL => ALLOC,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_DUP_OBJECT, NVOS55_PARAMETERS)"
        in &Branch::ALL => DUPLICATE,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_SHARE, NVOS57_PARAMETERS)" in &Branch::ALL => SHARE,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_MAP_MEMORY, nv_ioctl_nvos33_parameters_with_fd)"
        in &Branch::ALL => MAP_MEMORY,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_UNMAP_MEMORY, NVOS34_PARAMETERS)"
        in &Branch::ALL => UNMAP_MEMORY,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_CARD_INFO, nv_ioctl_card_info_t[NV_MAX_DEVICES])"
        in &Branch::ALL => DEVICE_INFO,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_REGISTER_FD, nv_ioctl_register_fd_t)"
        in &Branch::ALL => REGISTER_FILE,
    "_IOWR(NV_IOCTL_MAGIC, NV_ESC_CHECK_VERSION_STR, nv_ioctl_rm_api_version_t)"
        in &Branch::ALL => CHECK_VERSION,
    "1 << RS_ACCESS_DUP_OBJECT" in &Branch::ALL => Share::DUPLICATE,
    "RS_SHARE_TYPE_ALL" in &Branch::ALL => Share::EVERYBODY,
    "RS_SHARE_TYPE_CLIENT" in &Branch::ALL => Share::CLIENT,
    "RS_SHARE_ACTION_FLAG_COMPOSE" in &Branch::ALL => Share::ADD,
    "RS_SHARE_ACTION_FLAG_COMPOSE | RS_SHARE_ACTION_FLAG_REVOKE"
        in &Branch::ALL => Share::REMOVE,
    "NVOS33_FLAGS_ACCESS_READ_ONLY" in &Branch::ALL => MapMemory::READ_ONLY,
    "NV_RM_API_VERSION_CMD_QUERY" in &Branch::ALL => CheckVersion::QUERY,
    "NV_RM_API_VERSION_REPLY_RECOGNIZED" in &Branch::ALL => CheckVersion::RECOGNIZED,
}
