//! A call to an emulated KFD as a message, and its answer.
//!
//! ```text
//! question   magic, opcode, thread, through, flags, block bytes, array bytes, 0   u32 each
//!            the block, the array                 files: for the answer, and one the block names
//! answer     magic, error, block bytes, array bytes                               u32 each
//!            the block, the array
//! ```
//!
//! `thread` is who calls, `through` the process whose file it is asked through (0: the caller's
//! own); flags: 1 there is an array, 2 there is a second file. Each question brings the socket that
//! its answer goes to, so threads wait for their own answers, and calls that block are answered
//! later.

use rustix::io::Errno;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u32 = u32::from_le_bytes(*b"GPKF");
const HAS_ARRAY: u32 = 1;
const HAS_FILE: u32 = 2;

/// The longest block: what an ioctl's number can say.
pub const BLOCK_BYTES_MAX: usize = 0x3fff;
/// The longest array: more than any list of queues needs.
pub const ARRAY_BYTES_MAX: usize = 96 * 1024;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 64 + BLOCK_BYTES_MAX + ARRAY_BYTES_MAX;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct QuestionHeader {
    magic: U32,
    opcode: U32,
    thread: U32,
    through: U32,
    flags: U32,
    block_bytes: U32,
    array_bytes: U32,
    zero: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyHeader {
    magic: U32,
    error: U32,
    block_bytes: U32,
    array_bytes: U32,
}

/// A call without its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The ioctl's number.
    pub opcode: u32,
    /// Who calls.
    pub thread: u32,
    /// The process whose file it is asked through.
    pub through: Option<u32>,
    /// Whether a file comes with it.
    pub has_file: bool,
    /// The block.
    pub block: Vec<u8>,
    /// The array.
    pub array: Option<Vec<u8>>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it went.
    pub result: Result<(), Errno>,
    /// The block.
    pub block: Vec<u8>,
    /// The array, empty if there is none.
    pub array: Vec<u8>,
}

impl Question {
    /// As bytes.
    ///
    /// # Errors
    /// `E2BIG` if the block or the array is too long.
    pub fn encode(&self) -> Result<Vec<u8>, Errno> {
        let array = self.array.as_deref().unwrap_or_default();
        let has_array = if self.array.is_some() { HAS_ARRAY } else { 0 };
        let header = QuestionHeader {
            magic: MAGIC.into(),
            opcode: self.opcode.into(),
            thread: self.thread.into(),
            through: self.through.unwrap_or(0).into(),
            flags: (has_array | if self.has_file { HAS_FILE } else { 0 }).into(),
            block_bytes: length(&self.block, BLOCK_BYTES_MAX)?,
            array_bytes: length(array, ARRAY_BYTES_MAX)?,
            zero: 0.into(),
        };
        Ok([header.as_bytes(), &self.block, array].concat())
    }

    /// From bytes. None if they are no question.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = QuestionHeader::ref_from_prefix(bytes).ok()?;
        let flags = header.flags.get();
        if header.magic.get() != MAGIC || flags > (HAS_ARRAY | HAS_FILE) {
            return None;
        }
        let (block, array) = split(rest, header.block_bytes, header.array_bytes)?;
        let has_array = flags & HAS_ARRAY != 0;
        if !has_array && !array.is_empty() {
            return None;
        }
        Some(Self {
            opcode: header.opcode.get(),
            thread: header.thread.get(),
            through: Some(header.through.get()).filter(|pid| *pid != 0),
            has_file: flags & HAS_FILE != 0,
            block: block.to_vec(),
            array: has_array.then(|| array.to_vec()),
        })
    }
}

impl Reply {
    /// As bytes.
    ///
    /// # Errors
    /// `E2BIG` if the block or the array is too long.
    pub fn encode(&self) -> Result<Vec<u8>, Errno> {
        let error = self.result.map_or_else(Errno::raw_os_error, |()| 0);
        let header = ReplyHeader {
            magic: MAGIC.into(),
            error: u32::try_from(error).unwrap_or(0).into(),
            block_bytes: length(&self.block, BLOCK_BYTES_MAX)?,
            array_bytes: length(&self.array, ARRAY_BYTES_MAX)?,
        };
        Ok([header.as_bytes(), &self.block, &self.array].concat())
    }

    /// From bytes. None if they are no answer.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = ReplyHeader::ref_from_prefix(bytes).ok()?;
        if header.magic.get() != MAGIC {
            return None;
        }
        let (block, array) = split(rest, header.block_bytes, header.array_bytes)?;
        let result = match header.error.get() {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(i32::try_from(error).ok()?)),
        };
        Some(Self { result, block: block.to_vec(), array: array.to_vec() })
    }
}

fn length(bytes: &[u8], max: usize) -> Result<U32, Errno> {
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= max);
    length.map(U32::from).ok_or(Errno::TOOBIG)
}

/// Two pieces that are the whole.
fn split(bytes: &[u8], first: U32, second: U32) -> Option<(&[u8], &[u8])> {
    let first = usize::try_from(first.get()).ok().filter(|first| *first <= BLOCK_BYTES_MAX)?;
    let (block, array) = bytes.split_at_checked(first)?;
    (usize::try_from(second.get()) == Ok(array.len())).then_some((block, array))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_as_they_went(
            opcode: u32,
            thread: u32,
            through in prop::option::of(1_u32..),
            has_file: bool,
            block in prop::collection::vec(any::<u8>(), 0..100),
            array in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
            error in 0_i32..133,
        ) {
            let question = Question { opcode, thread, through, has_file, block, array };
            let bytes = question.encode().unwrap();
            prop_assert_eq!(Question::decode(&bytes), Some(question.clone()));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Question::decode(&bytes[..cut]), None);
            }
            let result = if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) };
            let reply = Reply { result, block: question.block, array: Vec::new() };
            let bytes = reply.encode().unwrap();
            prop_assert_eq!(Reply::decode(&bytes), Some(reply));
        }

        #[test]
        fn any_bytes_are_a_question_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Question::decode(&bytes);
            let _ = Reply::decode(&bytes);
            let mut framed = MAGIC.to_le_bytes().to_vec();
            framed.extend(bytes);
            let _ = Question::decode(&framed);
            let _ = Reply::decode(&framed);
        }
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let block = vec![0; BLOCK_BYTES_MAX + 1];
        let reply = Reply { result: Ok(()), block, array: Vec::new() };
        assert_eq!(reply.encode(), Err(Errno::TOOBIG));
    }
}
