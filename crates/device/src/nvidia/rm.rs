//! NVIDIA's resource manager: objects in clients, reached through an open `/dev/nvidiactl`.
//!
//! A client belongs to the open file it was made with, and so does the right to use it: whoever
//! holds the file may. Two kinds of failure are kept apart: the kernel's, and the driver's own.
#![expect(unsafe_code, reason = "control blocks are passed by address")]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::FromZeros;

use super::abi::class;
use super::abi::control::RmControl;
use super::abi::control::root::HandleInfo;
use super::abi::escape::{self, Alloc, Control};
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
