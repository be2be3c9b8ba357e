//! NVIDIA's resource manager (RM): objects in clients, reached through an open `/dev/nvidiactl`.
//!
//! A client belongs to the open file it was made with, and so does the right to use it: every
//! holder of the file may. Two kinds of failure are kept apart: the kernel's, and the driver's own.
#![expect(unsafe_code, reason = "control blocks are passed by address")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use zerocopy::FromZeros;

use super::abi::class;
use super::abi::control::{HandleInfo, RmControl};
use super::abi::escape::{
    self, Alloc, Control, DeviceInfo, DeviceInfos, Duplicate, Free, MapMemory, RegisterFile,
    RmAlloc, Share,
};
use super::abi::hold::{ChannelParameters, HOST_MEMORY, HostMemory};
use super::abi::status::Status;
use crate::ioctl::exchange;

/// The name of an object in a client, or of a client.
pub type Handle = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmError {
    #[error("the kernel refused the call: {0}")]
    Os(Errno),
    #[error("the driver refused: {0}")]
    Refused(Status),
}

/// An open `/dev/nvidiactl`, gpreempt's own or borrowed from another process.
#[derive(Debug)]
pub struct Rm {
    file: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    Absent,
    OfAnotherFile,
    Usable,
}

/// Handles that no client of any program has: an allocation under them is always refused.
const NO_PARENT: Handle = 0x5d00_0ffe;
const NO_OBJECT: Handle = 0x5d00_0fff;

impl Rm {
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Calls a control command of an object.
    pub fn control<C: RmControl>(
        &self,
        client: Handle,
        object: Handle,
        parameters: &mut C,
    ) -> Result<(), RmError> {
        let size = u32::try_from(size_of::<C>()).map_err(|_| RmError::Os(Errno::OVERFLOW))?;
        let mut block = Control {
            client,
            object,
            command: C::COMMAND,
            flags: 0,
            parameters: std::ptr::from_mut(parameters).addr() as u64,
            parameters_size: size,
            status: Status::OK,
        };
        // SAFETY: `Control` is the block of this number; its address is that of `parameters`, which
        // is exclusively borrowed until the call returns and has the size the block says; the
        // driver uses it as `C` describes, which is what implementing `RmControl` vouches for.
        unsafe { exchange(&self.file, escape::CONTROL, &mut block) }.map_err(RmError::Os)?;
        check(block.status)
    }

    /// Whether a client of that name exists, and whether it can be used through this file. Asks by
    /// allocating an object under a parent that cannot exist: a control call on a client that does
    /// not exist would leave a line in the kernel's log each time.
    pub fn client_state(&self, client: Handle) -> Result<ClientState, RmError> {
        // SAFETY: no parameters.
        let block = unsafe { self.allocate((client, NO_PARENT, NO_OBJECT), class::SUBDEVICE, 0) }?;
        Ok(match block.status {
            Status::INVALID_OBJECT_HANDLE => ClientState::Absent,
            Status::OBJECT_NOT_FOUND => ClientState::Usable,
            _ => ClientState::OfAnotherFile,
        })
    }

    /// Whether a client of that name can be used through this file.
    pub fn has_client(&self, client: Handle) -> Result<bool, RmError> {
        Ok(self.client_state(client)? == ClientState::Usable)
    }

    /// Allocates a client of gpreempt's own: it lives as long as this file.
    pub fn new_client(&self) -> Result<Handle, RmError> {
        // SAFETY: no parameters.
        let block = unsafe { self.allocate((0, 0, 0), class::CLIENT, 0) }?;
        check(block.status)?;
        Ok(block.object)
    }

    /// Allocates an object in a client of gpreempt's own.
    pub fn alloc<A: RmAlloc>(
        &self,
        client: Handle,
        parent: Handle,
        object: Handle,
        parameters: &mut A,
    ) -> Result<(), RmError> {
        let address = std::ptr::from_mut(parameters).addr() as u64;
        // SAFETY: the parameters are exclusively borrowed until the call returns; that they are the
        // block of the class is what implementing `RmAlloc` vouches for.
        check(unsafe { self.allocate((client, parent, object), A::CLASS, address) }?.status)
    }

    /// Allocates an object whose class needs no parameters.
    pub fn alloc_plain(
        &self,
        client: Handle,
        parent: Handle,
        object: Handle,
        class: u32,
    ) -> Result<(), RmError> {
        // SAFETY: no parameters.
        check(unsafe { self.allocate((client, parent, object), class, 0) }?.status)
    }

    /// Allocates a channel of that generation's class in a group.
    pub fn alloc_channel(
        &self,
        client: Handle,
        group: Handle,
        object: Handle,
        generation: class::Generation,
        parameters: &mut ChannelParameters,
    ) -> Result<(), RmError> {
        let address = std::ptr::from_mut(parameters).addr() as u64;
        // SAFETY: the parameters are exclusively borrowed until the call returns; every class of
        // channels takes this block, which has the driver's size in the branch where this is run.
        check(
            unsafe { self.allocate((client, group, object), generation.channel(), address) }?
                .status,
        )
    }

    /// Allocates an object at (client, parent, object). The status is in the answer.
    ///
    /// # Safety
    /// `parameters` is zero, or the address of the block that the driver reads and writes for
    /// `class`, which belongs to the caller alone until the call returns.
    unsafe fn allocate(
        &self,
        at: (Handle, Handle, Handle),
        class: u32,
        parameters: u64,
    ) -> Result<Alloc, RmError> {
        let mut block = Alloc::new_zeroed();
        (block.client, block.parent, block.object) = at;
        (block.class, block.parameters) = (class, parameters);
        // SAFETY: `Alloc` is the block of this number; the caller vouches for the address in it.
        unsafe { exchange(&self.file, escape::ALLOC, &mut block) }.map_err(RmError::Os)?;
        Ok(block)
    }

    /// Makes pages of this process known to a device of a client. `node` is the device's,
    /// registered with this file. The device may write them until the object is freed, so the
    /// caller keeps them for that long, outside of any Rust value.
    pub fn alloc_host_memory(
        &self,
        node: BorrowedFd<'_>,
        mut block: HostMemory,
    ) -> Result<(), RmError> {
        // SAFETY: `HostMemory` is the block of this number. The driver takes the pages at its
        // address for the device; they are shared memory that nothing but volatile loads and
        // stores ever touches.
        unsafe { exchange(node, HOST_MEMORY, &mut block) }.map_err(RmError::Os)?;
        check(block.status)
    }

    pub fn free(&self, client: Handle, parent: Handle, object: Handle) -> Result<(), RmError> {
        let mut block = Free { client, parent, object, status: Status::OK };
        // SAFETY: `Free` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::FREE, &mut block) }.map_err(RmError::Os)?;
        check(block.status)
    }

    /// Allows one other client, or all clients, to duplicate an object, or no longer.
    pub fn share(
        &self,
        client: Handle,
        object: Handle,
        with: Option<Handle>,
        allow: bool,
    ) -> Result<(), RmError> {
        let mut block = Share::new_zeroed();
        (block.client, block.object) = (client, object);
        block.rights = Share::DUPLICATE;
        block.kind = if with.is_some() { Share::CLIENT } else { Share::ALL_CLIENTS };
        block.target = with.unwrap_or(0);
        block.action = if allow { Share::ADD } else { Share::REMOVE };
        // SAFETY: `Share` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::SHARE, &mut block) }.map_err(RmError::Os)?;
        check(block.status)
    }

    /// Makes an object of another client (client, object) visible in a client of gpreempt (client,
    /// parent, object).
    pub fn duplicate(
        &self,
        to: (Handle, Handle, Handle),
        from: (Handle, Handle),
    ) -> Result<(), RmError> {
        let mut block = Duplicate::new_zeroed();
        (block.client, block.parent, block.object) = to;
        (block.client_source, block.object_source) = from;
        // SAFETY: `Duplicate` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::DUPLICATE, &mut block) }.map_err(RmError::Os)?;
        check(block.status)
    }

    /// Prepares `node`, a fresh `/dev/nvidiaN`, for `mmap(2)` of the beginning of an object, below
    /// the device or subdevice it belongs to. Only for clients of gpreempt's own: for others the
    /// driver refuses, and complains afterwards.
    pub fn prepare_map(
        &self,
        client: Handle,
        device: Handle,
        memory: Handle,
        length: u64,
        (node, flags): (BorrowedFd<'_>, u32),
    ) -> Result<(), RmError> {
        let mut block = MapMemory::new_zeroed();
        (block.client, block.device, block.memory) = (client, device, memory);
        (block.length, block.flags) = (length, flags);
        block.file = node.as_raw_fd();
        // SAFETY: `MapMemory` is the block of this number; the address in it is the driver's own.
        unsafe { exchange(&self.file, escape::MAP_MEMORY, &mut block) }.map_err(RmError::Os)?;
        check(block.status)
    }

    /// Registers a `/dev/nvidiaN` with this file.
    pub fn register(&self, node: BorrowedFd<'_>) -> Result<(), RmError> {
        let mut block = RegisterFile { control_file: self.file.as_raw_fd() };
        // SAFETY: `RegisterFile` is the block of this number and holds no address.
        unsafe { exchange(node, escape::REGISTER_FILE, &mut block) }.map_err(RmError::Os)
    }

    /// The open file itself: calls of unified memory name it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The devices the driver has.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, RmError> {
        let mut block = DeviceInfos::new_zeroed();
        // SAFETY: `DeviceInfos` is the block of this number; the addresses in it are not followed.
        unsafe { exchange(&self.file, escape::DEVICE_INFO, &mut block) }.map_err(RmError::Os)?;
        Ok(block.into_iter().filter(|device| device.is_valid != 0).collect())
    }

    /// The class and the parent of an object, if there is one of that name.
    ///
    /// # Errors
    /// If the client no longer exists. The driver writes a line into the kernel's log each time it
    /// is asked about such a client, so ask no further.
    pub fn describe(
        &self,
        client: Handle,
        object: Handle,
    ) -> Result<Option<(u32, Handle)>, RmError> {
        let mut class = HandleInfo::class_of(object);
        match self.control(client, client, &mut class) {
            Ok(()) => {}
            Err(
                error @ RmError::Refused(Status::INVALID_OBJECT_HANDLE | Status::INVALID_CLIENT),
            ) => return Err(error),
            Err(_) => return Ok(None),
        }
        let parent = self.handle_info(client, HandleInfo::parent_of(object));
        Ok(u32::try_from(class.result).ok().zip(parent))
    }

    /// The class of an object, if there is one of that name in a client that exists.
    pub fn class_of(&self, client: Handle, object: Handle) -> Option<u32> {
        self.handle_info(client, HandleInfo::class_of(object))
    }

    fn handle_info(&self, client: Handle, mut info: HandleInfo) -> Option<u32> {
        self.control(client, client, &mut info).ok()?;
        u32::try_from(info.result).ok()
    }
}

/// The driver's status as a result.
pub(super) fn check(status: Status) -> Result<(), RmError> {
    if status == Status::OK { Ok(()) } else { Err(RmError::Refused(status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_the_driver_refuse_in_different_ways() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let rm = Rm::new(null.into());
        assert_eq!(rm.has_client(0xc1d0_0000), Err(RmError::Os(Errno::NOTTY)));
        assert_eq!(rm.class_of(1, 2), None);
        assert_eq!(check(Status::OK), Ok(()));
        assert!(matches!(check(Status::INVALID_CLIENT), Err(RmError::Refused(_))));
    }
}
