//! A call as bytes: what was asked, and what is answered.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The name of a call that is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The process that opened KFD, and belongs to the thread.
    pub pid: u32,
    /// The thread.
    pub thread: u32,
    /// Whether it has the capability to pause processes.
    pub may_checkpoint: bool,
    /// Whether it has the capability for everything else.
    pub is_admin: bool,
}

/// What was asked. Any bytes are a question, perhaps one without an answer.
#[derive(Debug)]
pub struct Asked {
    /// The ioctl's number, whole.
    pub opcode: u32,
    /// Its block. Addresses and numbers of files in it mean nothing here.
    pub block: Vec<u8>,
    /// The array the block points to, if it points to one.
    pub array: Option<Vec<u8>>,
    /// The file the block names, if it names one.
    pub file: Option<OwnedFd>,
    /// The process whose file it is asked through, if that is not the caller's.
    pub through: Option<u32>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub result: Result<(), Errno>,
    /// The block as it is now.
    pub block: Vec<u8>,
    /// The array as it is now.
    pub array: Option<Vec<u8>>,
}

impl Asked {
    /// Which ioctl it is, whatever its caller thinks of the block's size.
    pub(super) fn number(&self) -> u32 {
        self.opcode & 0xff
    }

    /// Whether the block is as long as its number says.
    pub(super) fn is_whole(&self) -> bool {
        usize::try_from(self.opcode >> 16 & 0x3fff) == Ok(self.block.len())
    }

    /// The block, with zeros for what is missing: as the kernel does for older programs.
    pub(super) fn block<B: FromBytes + FromZeros + IntoBytes>(&self) -> B {
        let mut block = B::new_zeroed();
        let (to, from) = (block.as_mut_bytes(), &self.block);
        let length = to.len().min(from.len());
        to[..length].copy_from_slice(&from[..length]);
        block
    }

    /// Writes the block back, as much of it as the caller has room for.
    pub(super) fn set_block<B: IntoBytes + Immutable>(&mut self, block: &B) {
        let from = block.as_bytes();
        let length = from.len().min(self.block.len());
        self.block[..length].copy_from_slice(&from[..length]);
    }

    /// The array, if it is there and has that many bytes.
    pub(super) fn array(&mut self, bytes: usize) -> Result<&mut [u8], Errno> {
        let array = self.array.as_mut().ok_or(Errno::FAULT)?;
        array.get_mut(..bytes).ok_or(Errno::FAULT)
    }

    /// An array of that many names.
    pub(super) fn names(&mut self, count: u32) -> Result<Vec<u32>, Errno> {
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(4));
        let array = self.array(bytes.ok_or(Errno::INVAL)?)?;
        let words = array.chunks_exact(4).filter_map(|word| word.first_chunk());
        Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Writes an array of names back.
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
