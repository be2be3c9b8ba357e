//! ioctls that no kernel has.
#![expect(unsafe_code, reason = "an ioctl with an unknown number")]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Larger than the block of any KFD call.
type Block = [u64; 32];

struct Unknown {
    opcode: Opcode,
    block: Block,
}

// SAFETY: the pointer is to a block of the size in the opcode that lives as long as the call. It
// holds zeros, so it contains no address.
unsafe impl Ioctl for Unknown {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.block).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// KFD's reply to an unknown number.
pub(crate) fn call(file: impl AsFd, number: u8) -> Result<(), Errno> {
    let unknown = Unknown { opcode: opcode::read_write::<Block>(b'K', number), block: [0; 32] };
    // SAFETY: see `Unknown`; whatever the number means, the block is large enough and empty.
    unsafe { ioctl(file, unknown) }
}
