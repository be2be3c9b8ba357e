//! Calls that no kernel has.
#![expect(unsafe_code, reason = "an ioctl with a number of our own making")]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// More than any call of KFD takes.
type Block = [u64; 32];

/// A call with that number and a block of zeros.
struct Unknown {
    opcode: Opcode,
    block: Block,
}

// SAFETY: the pointer is to a block that is as long as the number says, and lives as long as the
// call. It holds zeros, so there is no address in it that could be followed.
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

/// What KFD says to a number, for numbers that it does not know.
pub(crate) fn call(file: impl AsFd, number: u8) -> Result<(), Errno> {
    let unknown = Unknown { opcode: opcode::read_write::<Block>(b'K', number), block: [0; 32] };
    // SAFETY: see `Unknown`; whatever the number means, the block is long enough and empty.
    unsafe { ioctl(file, unknown) }
}
