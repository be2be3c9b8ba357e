//! The ioctls of `/dev/nvidia-uvm`, where the address spaces of programs are.
//!
//! They are plain numbers that say nothing of their blocks' sizes, and only of the branch in which
//! this was run ([`super::hold`]).

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::branch::Branch;
use super::status::Status;
use super::table::{layouts, numbers};

/// Makes a channel known, so that it may run.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterChannel {
    /// Which GPU.
    pub uuid: [u8; 16],
    /// The file of the client, as the caller numbers it.
    pub control_file: i32,
    /// The client.
    pub client: u32,
    /// The channel.
    pub channel: u32,
    padding: u32,
    /// Where what it needs may be mapped.
    pub base: u64,
    /// How many bytes there.
    pub length: u64,
    /// How it went.
    pub status: Status,
    padding_end: u32,
}

/// Undoes a [`RegisterChannel`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnregisterChannel {
    /// Which GPU.
    pub uuid: [u8; 16],
    /// The client.
    pub client: u32,
    /// The channel.
    pub channel: u32,
    /// How it went.
    pub status: Status,
}

/// Takes a piece of the address space, or with [`FREE_RANGE`] gives it back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Range {
    /// Where it begins.
    pub base: u64,
    /// How many bytes it has.
    pub length: u64,
    /// How it went.
    pub status: Status,
    padding: u32,
}

impl Range {
    /// That piece.
    pub fn new(base: u64, length: u64) -> Self {
        Self { base, length, ..Self::new_zeroed() }
    }
}

/// How a GPU sees a mapping.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attributes {
    /// Which GPU.
    pub uuid: [u8; 16],
    /// [`Attributes::READ_WRITE_ATOMIC`].
    pub mapping: u32,
    caching: u32,
    format: u32,
    element_bits: u32,
    compression: u32,
}

impl Attributes {
    /// It may do everything.
    pub const READ_WRITE_ATOMIC: u32 = 1;
}

/// Maps an object into a [`Range`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapObject {
    /// Where the range begins.
    pub base: u64,
    /// How many bytes are mapped.
    pub length: u64,
    /// From where in the object.
    pub offset: u64,
    /// How each GPU sees it.
    pub attributes: [Attributes; 256],
    /// How many GPUs.
    pub count: u64,
    /// The file of the client, as the caller numbers it.
    pub control_file: i32,
    /// The client.
    pub client: u32,
    /// The object.
    pub memory: u32,
    /// How it went.
    pub status: Status,
}

/// The ioctl of [`RegisterChannel`].
pub const REGISTER_CHANNEL: Opcode = 27;
/// The ioctl of [`UnregisterChannel`].
pub const UNREGISTER_CHANNEL: Opcode = 28;
/// The ioctl of [`MapObject`].
pub const MAP_OBJECT: Opcode = 33;
/// The ioctl that gives a [`Range`] back.
pub const FREE_RANGE: Opcode = 34;
/// The ioctl that takes a [`Range`].
pub const TAKE_RANGE: Opcode = 73;

/// Where it was run.
const HERE: &[Branch] = &[Branch::R580];

/// The same block under another name in the headers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FreeRange {
    base: u64,
    length: u64,
    status: Status,
    padding: u32,
}

const _: () = assert!(size_of::<FreeRange>() == size_of::<Range>());

layouts! {
    RegisterChannel = "UVM_REGISTER_CHANNEL_PARAMS" in HERE, 56 bytes:
        uuid = "gpuUuid" at 0, control_file = "rmCtrlFd" at 16, client = "hClient" at 20,
        channel = "hChannel" at 24, base = "base" at 32, length = "length" at 40,
        status = "rmStatus" at 48;
    UnregisterChannel = "UVM_UNREGISTER_CHANNEL_PARAMS" in HERE, 28 bytes:
        uuid = "gpuUuid" at 0, client = "hClient" at 16, channel = "hChannel" at 20,
        status = "rmStatus" at 24;
    Range = "UVM_CREATE_EXTERNAL_RANGE_PARAMS" in HERE, 24 bytes:
        base = "base" at 0, length = "length" at 8, status = "rmStatus" at 16;
    FreeRange = "UVM_FREE_PARAMS" in HERE, 24 bytes:
        base = "base" at 0, length = "length" at 8, status = "rmStatus" at 16;
    Attributes = "UvmGpuMappingAttributes" in HERE, 36 bytes:
        uuid = "gpuUuid" at 0, mapping = "gpuMappingType" at 16, caching = "gpuCachingType" at 20,
        format = "gpuFormatType" at 24, element_bits = "gpuElementBits" at 28,
        compression = "gpuCompressionType" at 32;
    MapObject = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS" in HERE, 9264 bytes:
        base = "base" at 0, length = "length" at 8, offset = "offset" at 16,
        attributes = "perGpuAttributes" at 24, count = "gpuAttributesCount" at 9240,
        control_file = "rmCtrlFd" at 9248, client = "hClient" at 9252, memory = "hMemory" at 9256,
        status = "rmStatus" at 9260;
}

numbers! {
    "UVM_REGISTER_CHANNEL" in HERE => REGISTER_CHANNEL,
    "UVM_UNREGISTER_CHANNEL" in HERE => UNREGISTER_CHANNEL,
    "UVM_MAP_EXTERNAL_ALLOCATION" in HERE => MAP_OBJECT,
    "UVM_FREE" in HERE => FREE_RANGE,
    "UVM_CREATE_EXTERNAL_RANGE" in HERE => TAKE_RANGE,
    "UvmGpuMappingTypeReadWriteAtomic" in HERE => Attributes::READ_WRITE_ATOMIC,
}
