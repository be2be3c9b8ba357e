//! NVIDIA's resource manager: objects in clients, reached through an open `/dev/nvidiactl`.
//!
//! A client belongs to the open file it was made with, and so does the right to use it: whoever
//! holds the file may. Two kinds of failure are kept apart: the kernel's, and the driver's own.
#![expect(unsafe_code, reason = "control blocks are passed by address")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use zerocopy::FromZeros;

use super::abi::alloc::RmAlloc;
use super::abi::class;
use super::abi::control::RmControl;
use super::abi::control::root::HandleInfo;
use super::abi::escape::{
    self, Alloc, Control, DeviceInfo, DeviceInfos, Duplicate, Free, MapMemory, RegisterFile, Share,
};
use super::abi::hold::{ChannelParameters, HOST_MEMORY, HostMemory};
use super::abi::status::Status;
use crate::ioctl::exchange;

/// The name of an object in a client, or of a client.
pub type Handle = u32;

/// Why a call did not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmError {
    /// The kernel did not let it through.
    #[error("the kernel refused the call: {0}")]
    Os(Errno),
    /// The driver did not do it.
    #[error("the driver refused: {0}")]
    Refused(Status),
}

/// An open `/dev/nvidiactl`, ours or borrowed.
#[derive(Debug)]
pub struct Rm {
    file: OwnedFd,
}

/// A handle that no client of any program has: what is made under it is always refused.
const NOWHERE: Handle = 0x5d00_0ffe;
const NOTHING: Handle = 0x5d00_0fff;

impl Rm {
    /// Through that file.
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Calls a control command of an object.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
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
        // is exclusively ours until the call returns and has the size the block says; the driver
        // uses it as `C` describes, which is what implementing `RmControl` vouches for.
        unsafe { exchange(&self.file, escape::CONTROL, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Whether a client of that name can be used through this file. Asks by making an object under
    /// a parent that cannot be: a control call on a client that is not there would leave a line in
    /// the kernel's log each time.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn has_client(&self, client: Handle) -> Result<bool, RmError> {
        let mut block = Alloc::new_zeroed();
        (block.client, block.parent, block.object) = (client, NOWHERE, NOTHING);
        block.class = class::SUBDEVICE;
        // SAFETY: `Alloc` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::ALLOC, &mut block) }.map_err(RmError::Os)?;
        Ok(block.status == Status::OBJECT_NOT_FOUND)
    }

    /// Makes a client of our own: it lives as long as this file.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn new_client(&self) -> Result<Handle, RmError> {
        let mut block = Alloc::new_zeroed();
        block.class = class::CLIENT;
        // SAFETY: `Alloc` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::ALLOC, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)?;
        Ok(block.object)
    }

    /// Makes an object in a client of our own.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn alloc<A: RmAlloc>(
        &self,
        client: Handle,
        parent: Handle,
        object: Handle,
        parameters: &mut A,
    ) -> Result<(), RmError> {
        let mut block = Alloc::new_zeroed();
        (block.client, block.parent, block.object) = (client, parent, object);
        block.class = A::CLASS;
        block.parameters = std::ptr::from_mut(parameters).addr() as u64;
        // SAFETY: `Alloc` is the block of this number; its address is that of `parameters`, which
        // is exclusively ours until the call returns; the driver uses it as `A` describes, which
        // is what implementing `RmAlloc` vouches for.
        unsafe { exchange(&self.file, escape::ALLOC, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Makes an object that needs no block: whatever the class asks for has a default.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn alloc_plain(
        &self,
        client: Handle,
        parent: Handle,
        object: Handle,
        class: u32,
    ) -> Result<(), RmError> {
        let mut block = Alloc::new_zeroed();
        (block.client, block.parent, block.object) = (client, parent, object);
        block.class = class;
        // SAFETY: `Alloc` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::ALLOC, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Makes a channel of that generation's class in a group.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn alloc_channel(
        &self,
        client: Handle,
        group: Handle,
        object: Handle,
        generation: class::Generation,
        parameters: &mut ChannelParameters,
    ) -> Result<(), RmError> {
        let mut block = Alloc::new_zeroed();
        (block.client, block.parent, block.object) = (client, group, object);
        block.class = generation.channel();
        block.parameters = std::ptr::from_mut(parameters).addr() as u64;
        // SAFETY: `Alloc` is the block of this number; its address is that of `parameters`, which
        // is exclusively ours until the call returns; every class of channels takes this block,
        // which has the size of the driver's own in the branch where this is called.
        unsafe { exchange(&self.file, escape::ALLOC, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Makes pages of ours known to a device of a client. `node` is the device's, registered with
    /// this file. The device may write them until the object is freed, so whoever calls this keeps
    /// them for that long, in nobody's Rust value.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn alloc_host_memory(
        &self,
        node: BorrowedFd<'_>,
        mut block: HostMemory,
    ) -> Result<(), RmError> {
        // SAFETY: `HostMemory` is the block of this number. The driver takes the pages at its
        // address for the device; they are shared memory that nothing but volatile loads and
        // stores ever touches.
        unsafe { exchange(node, HOST_MEMORY, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Gives an object back.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn free(&self, client: Handle, parent: Handle, object: Handle) -> Result<(), RmError> {
        let mut block = Free { client, parent, object, status: Status::OK };
        // SAFETY: `Free` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::FREE, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Allows one other client, or everybody, to duplicate an object, or no longer.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
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
        block.kind = if with.is_some() { Share::CLIENT } else { Share::EVERYBODY };
        block.target = with.unwrap_or(0);
        block.action = if allow { Share::ADD } else { Share::REMOVE };
        // SAFETY: `Share` is the block of this number and holds no address.
        unsafe { exchange(&self.file, escape::SHARE, &mut block) }.map_err(RmError::Os)?;
        refused(block.status)
    }

    /// Makes an object of another client visible in one of ours: `to` and `from` are a client and
    /// an object in it, the first with its parent between them.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
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
        refused(block.status)
    }

    /// Prepares `node`, a fresh `/dev/nvidiaN`, for `mmap(2)` of the beginning of an object, below
    /// the device or subdevice it belongs to. Only for clients of our own: for others the driver
    /// refuses, and complains afterwards.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
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
        refused(block.status)
    }

    /// Ties a `/dev/nvidiaN` to this file.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn register(&self, node: BorrowedFd<'_>) -> Result<(), RmError> {
        let mut block = RegisterFile { control_file: self.file.as_raw_fd() };
        // SAFETY: `RegisterFile` is the block of this number and holds no address.
        unsafe { exchange(node, escape::REGISTER_FILE, &mut block) }.map_err(RmError::Os)
    }

    /// The open file itself: unified memory wants to know whose client it is told of.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The devices the driver has.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, RmError> {
        let mut block = DeviceInfos::new_zeroed();
        // SAFETY: `DeviceInfos` is the block of this number; the addresses in it are not followed.
        unsafe { exchange(&self.file, escape::DEVICE_INFO, &mut block) }.map_err(RmError::Os)?;
        Ok(block.into_iter().filter(|device| device.is_valid != 0).collect())
    }

    /// The class and the parent of an object, if there is one of that name.
    ///
    /// # Errors
    /// If there is no such client any more. The driver writes a line into the kernel's log each
    /// time it is asked about one that is gone, so ask no further.
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
        let parent = self.parent_of(client, object);
        Ok(u32::try_from(class.result).ok().zip(parent))
    }

    /// The class of an object, if there is one of that name in a client that is there.
    pub fn class_of(&self, client: Handle, object: Handle) -> Option<u32> {
        self.handle_info(client, HandleInfo::class_of(object))
    }

    /// The parent of an object.
    pub fn parent_of(&self, client: Handle, object: Handle) -> Option<Handle> {
        self.handle_info(client, HandleInfo::parent_of(object))
    }

    fn handle_info(&self, client: Handle, mut info: HandleInfo) -> Option<u32> {
        self.control(client, client, &mut info).ok()?;
        u32::try_from(info.result).ok()
    }
}

fn refused(status: Status) -> Result<(), RmError> {
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
        assert_eq!(refused(Status::OK), Ok(()));
        assert!(matches!(refused(Status::INVALID_CLIENT), Err(RmError::Refused(_))));
    }
}
