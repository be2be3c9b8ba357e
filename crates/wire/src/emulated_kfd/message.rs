//! A call to an emulated KFD as a message, and its answer.
//!
//! Each question brings the socket that its answer goes to, as a file; so threads wait for their
//! own answers, and the emulator can answer calls that block later. A second file comes along if
//! the block names one.

use rustix::io::Errno;

use crate::codec::{Field, Reader};
use crate::decode_error::DecodeError;
use crate::header::{HEADER_BYTES, Protocol};

/// The protocol.
pub const PROTOCOL: Protocol = Protocol {
    magic: u32::from_le_bytes(*b"GPKF"),
    version: 2,
    packet_bytes_max: MESSAGE_BYTES_MAX,
};

/// The longest block: what an ioctl's number can say.
pub const BLOCK_BYTES_MAX: usize = 0x3fff;
/// The longest array beside the longest block: more than any list of queues needs.
pub const ARRAY_BYTES_MAX: usize = 96 * 1024;
/// The longest message: the header, the fields of a fixed length, the block and the array.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 64 + BLOCK_BYTES_MAX + ARRAY_BYTES_MAX;

messages! {
    /// What a process asks.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Question of PROTOCOL, from 0 {
        /// An ioctl.
        1 = Call {
            /// Its number.
            opcode: u32,
            /// The thread that calls.
            thread: u32,
            /// The process whose file it is asked through; none for the caller's own.
            through: Option<u32>,
            /// Whether a second file comes with it.
            has_file: bool; 3 zeros,
            /// The block.
            block: Vec<u8>,
            /// The array.
            array: Option<Vec<u8>>,
        },
    }
}

messages! {
    /// What the emulator answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Answer of PROTOCOL, from 0 {
        /// The call is over.
        101 = Returned {
            /// How it went.
            result: Result<(), Errno>,
            /// The block.
            block: Vec<u8>,
            /// The array, empty if there is none.
            array: Vec<u8>,
        },
    }
}

/// The greatest error number of the kernel.
const ERRNO_MAX: u32 = 4095;

/// 0 for success, or the number of the error.
impl Field for Result<(), Errno> {
    const BYTES: usize = u32::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        let error = self.map_or_else(Errno::raw_os_error, |()| 0);
        error.unsigned_abs().put(body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bad = DecodeError::field(name, "0 or an error number of at most 4095");
        match u32::take(name, reader)? {
            0 => Ok(Ok(())),
            error @ 1..=ERRNO_MAX => {
                let error = i32::try_from(error).map_err(|_| bad)?;
                Ok(Err(Errno::from_raw_os_error(error)))
            }
            _ => Err(bad),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Header;
    use crate::message::Body;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_as_they_went(
            opcode: u32,
            thread: u32,
            through in prop::option::of(1..u32::MAX),
            has_file: bool,
            block in prop::collection::vec(any::<u8>(), 0..100),
            array in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
            error in 0_i32..133,
        ) {
            let answered = block.clone();
            let question = Question::Call { opcode, thread, through, has_file, block, array };
            let bytes = question.encode(0);
            prop_assert_eq!(Question::decode(&bytes), Ok((0, question)));
            for cut in 0..bytes.len() {
                prop_assert!(Question::decode(&bytes[..cut]).is_err());
            }
            let result = if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) };
            let answer = Answer::Returned { result, block: answered, array: Vec::new() };
            let bytes = answer.encode(0);
            prop_assert_eq!(Answer::decode(&bytes), Ok((0, answer)));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in prop_oneof![Just(1), Just(101)],
        ) {
            // The header is rarely right by chance, so also with one that is; and with lengths that
            // fit, so that the fields are looked at as well.
            let framed = |body: &[u8]| Header { kind, request: 0 }.join(&PROTOCOL, body).unwrap();
            let mut short = bytes.clone();
            for length in short.chunks_exact_mut(4) {
                length[1..].fill(0);
            }
            for bytes in [bytes.clone(), framed(&bytes), framed(&short)] {
                if let Ok((number, question)) = Question::decode(&bytes) {
                    prop_assert_eq!(question.encode(number), bytes.clone());
                }
                if let Ok((number, answer)) = Answer::decode(&bytes) {
                    prop_assert_eq!(answer.encode(number), bytes);
                }
            }
        }
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let block = vec![0; MESSAGE_BYTES_MAX];
        let answer = Answer::Returned { result: Ok(()), block, array: Vec::new() };
        assert!(answer.try_encode(0).is_err());
        let (block, array) = (vec![0; BLOCK_BYTES_MAX], vec![0; ARRAY_BYTES_MAX]);
        let answer = Answer::Returned { result: Ok(()), block, array };
        assert!(answer.try_encode(0).is_ok());
    }
}
