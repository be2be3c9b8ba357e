//! What can go wrong between the emulator and its users.

use std::io;
use std::path::PathBuf;

use crate::decode_error::DecodeError;
use crate::emulator::Refusal;

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
pub enum EmuError {
    /// Nobody answers at the socket.
    #[error("no emulated GPU at {path}: {error}; start one with `gpreempt-emu --socket {path}`")]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The emulator said no.
    #[error("the emulated GPU refused: {0}")]
    Refused(Refusal),
    /// The emulator is gone, and with it everything that was on its devices.
    #[error("the emulated GPU is gone")]
    Gone,
    /// A queue was taken away because of what its client wrote into its ring.
    #[error("the emulated GPU gave up a queue: a packet or an index in its ring was wrong")]
    Faulted,
    /// The ring is full: wait for the device to fetch something.
    #[error("the ring is full")]
    Full,
    /// No answer in time.
    #[error("the emulated GPU did not answer in time")]
    TimedOut,
    /// The emulator sent something else than it should.
    #[error("the emulated GPU speaks differently: {0}")]
    Wire(#[from] DecodeError),
    /// The emulator's answer was not to the question.
    #[error("the emulated GPU answered something else than was asked")]
    Confused,
    /// The system said no.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for EmuError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}
