//! A call as bytes, and its answer.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Identifies a call until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The process that opened KFD and that the thread belongs to.
    pub pid: u32,
    pub thread: u32,
    /// Whether it has `CAP_CHECKPOINT_RESTORE`.
    pub may_checkpoint: bool,
    /// Whether it has `CAP_SYS_ADMIN`.
    pub is_admin: bool,
}

/// A call. Any bytes are accepted, and may be answered with an error.
#[derive(Debug)]
pub struct IoctlRequest {
    pub opcode: u32,
    /// Addresses and descriptors in it are meaningless here.
    pub block: Vec<u8>,
    /// The array whose address the block contains.
    pub array: Option<Vec<u8>>,
    /// The descriptor that the block contains.
    pub file: Option<OwnedFd>,
    /// The process through whose descriptor the call is made, if it is not the caller.
    pub through: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub result: Result<(), Errno>,
    pub block: Vec<u8>,
    pub array: Option<Vec<u8>>,
}

impl IoctlRequest {
    /// The ioctl number, without the size of the block.
    pub(super) fn number(&self) -> u32 {
        self.opcode & 0xff
    }

    /// Whether the block has the size that the opcode contains.
    pub(super) fn is_whole(&self) -> bool {
        usize::try_from(self.opcode >> 16 & 0x3fff) == Ok(self.block.len())
    }

    /// The block, with zeros for missing fields, as the kernel reads it.
    pub(super) fn block<B: FromBytes + FromZeros + IntoBytes>(&self) -> B {
        let mut block = B::new_zeroed();
        let (to, from) = (block.as_mut_bytes(), &self.block);
        let length = to.len().min(from.len());
        to[..length].copy_from_slice(&from[..length]);
        block
    }

    /// Writes the block back, as much as the caller has room for.
    pub(super) fn set_block<B: IntoBytes + Immutable>(&mut self, block: &B) {
        let from = block.as_bytes();
        let length = from.len().min(self.block.len());
        self.block[..length].copy_from_slice(&from[..length]);
    }

    /// The first bytes of the array. `EFAULT` if it is shorter.
    pub(super) fn array(&mut self, bytes: usize) -> Result<&mut [u8], Errno> {
        let array = self.array.as_mut().ok_or(Errno::FAULT)?;
        array.get_mut(..bytes).ok_or(Errno::FAULT)
    }

    /// Queue ids from the array.
    pub(super) fn names(&mut self, count: u32) -> Result<Vec<u32>, Errno> {
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(4));
        let array = self.array(bytes.ok_or(Errno::INVAL)?)?;
        let words = array.chunks_exact(4).filter_map(|word| word.first_chunk());
        Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
    }

    pub(super) fn set_names(&mut self, names: &[u32]) {
        let Some(array) = &mut self.array else { return };
        for (word, name) in array.chunks_exact_mut(4).zip(names) {
            word.copy_from_slice(&name.to_le_bytes());
        }
    }

    pub(super) fn answer(self) -> Answer {
        Answer { result: Ok(()), block: self.block, array: self.array }
    }
}
