//! Whether a KFD has calls of our own: a patched one, which moves queues of several processes at
//! once.
//!
//! Version numbers do not tell, because they are counted by others. But a KFD answers a number that
//! it does not know in one way only.
#![expect(unsafe_code, reason = "an ioctl reads and writes memory as its number says")]

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::ioctl::exchange;

/// More than any block of these calls has; KFD takes what it needs, and zeros mean nobody.
type Block = [u64; 8];

/// The first of them. The second is the next number.
const PREEMPT: Opcode = opcode::read_write::<Block>(b'K', 0x40);

/// Asks for nothing, of nobody, and looks at how that is refused.
pub(super) fn are_in(kfd: impl AsFd) -> bool {
    let mut nobody: Block = [0; 8];
    // SAFETY: the kernel reads and writes no more than the size in the number, which is the
    // block's, and there is no address in it.
    let answer = unsafe { exchange(kfd, PREEMPT, &mut nobody) };
    !matches!(answer, Err(Errno::NOTTY | Errno::BADF))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_know_the_number_has_none() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!are_in(&null));
    }
}
