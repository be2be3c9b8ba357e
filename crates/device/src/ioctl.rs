//! The ioctls of all drivers: the only place that passes memory to one.
#![expect(unsafe_code, reason = "an ioctl reads and writes memory as its number says")]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use zerocopy::{FromBytes, IntoBytes};

/// An ioctl whose argument is the address of a block that the driver reads and writes.
struct Exchange<'a, T: ?Sized> {
    opcode: Opcode,
    block: &'a mut T,
}

// SAFETY: the pointer is to a live, exclusively borrowed block, and `exchange`'s caller vouches
// that the driver touches no more than that block (and what the block itself points to).
unsafe impl<T: ?Sized> Ioctl for Exchange<'_, T> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.block).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Passes a block to a driver, which reads and writes it. Whether the driver did what it was asked
/// is in the block.
///
/// # Safety
/// `T` is the block the driver reads and writes for `opcode`, and every address in it is that of
/// memory which the driver may read and write as far as the block says.
pub(crate) unsafe fn exchange<T: FromBytes + IntoBytes>(
    fd: impl AsFd,
    opcode: Opcode,
    block: &mut T,
) -> Result<(), Errno> {
    // SAFETY: passed on to the caller, word for word.
    unsafe { ioctl(fd, Exchange { opcode, block }) }
}

/// The same for a block whose length is known only at run time.
///
/// # Safety
/// `block` is as long as `opcode` says, and its addresses are as above.
pub(crate) unsafe fn exchange_bytes(
    fd: impl AsFd,
    opcode: Opcode,
    block: &mut [u8],
) -> Result<(), Errno> {
    // SAFETY: passed on to the caller, word for word.
    unsafe { ioctl(fd, Exchange { opcode, block }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::ioctl::opcode;

    #[test]
    fn a_file_without_ioctls_refuses_them() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let mut block = [0u64; 4];
        // SAFETY: /dev/null has no ioctls and touches nothing.
        let result =
            unsafe { exchange(&null, opcode::read_write::<[u64; 4]>(b'F', 0x2a), &mut block) };
        assert_eq!(result, Err(Errno::NOTTY));
        assert_eq!(block, [0; 4]);
    }
}
