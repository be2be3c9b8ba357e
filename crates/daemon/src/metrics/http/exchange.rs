//! One connection: a request comes in, an answer goes out.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use gpreempt_core::time::Instant;

use super::EXCHANGE_TIME_MAX;
use super::answer::Status;
use super::request::Request;

/// How much is read in one go, so that nobody keeps the loop from the others.
const READ_BYTES: usize = 16 * 1024;
/// How much is read and thrown away after the answer.
const LEFTOVER_BYTES_MAX: usize = 64 * 1024;

/// A connection to somebody who asks.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    began: Instant,
    stage: Stage,
    /// Counts us with the listener, if we came from one.
    _place: Option<Arc<()>>,
}

#[derive(Debug)]
enum Stage {
    /// The request comes in.
    Request(Request),
    /// The answer goes out; so much of it has.
    Answer { bytes: Vec<u8>, sent: usize },
    /// The other side has its answer and should close. Closing first, with something unread,
    /// could make its kernel throw the answer away.
    Leftover { bytes: usize },
    /// All is said.
    Over,
}

impl Exchange {
    /// With whoever is at the other end of `stream`, which must not block.
    pub fn new(stream: TcpStream, now: Instant) -> Self {
        Self { stream, began: now, stage: Stage::Request(Request::default()), _place: None }
    }

    /// The same, counted.
    pub(super) fn with_place(self, place: Arc<()>) -> Self {
        Self { _place: Some(place), ..self }
    }

    /// Something can be read. When that completes a request for metrics, `text` says them.
    pub fn readable(&mut self, text: impl FnOnce() -> String) {
        // Whoever says "that was all" after its request still wants the answer.
        if self.wants_write() {
            return;
        }
        let mut buffer = [0; READ_BYTES];
        let bytes = match self.stream.read(&mut buffer) {
            Ok(0) => return self.stage = Stage::Over,
            // PANIC: what was read is at the beginning of the buffer.
            Ok(count) => &buffer[..count],
            Err(error) => return self.end_unless_later(&error),
        };
        match &mut self.stage {
            Stage::Request(request) => {
                let answer = match request.handle_bytes(bytes) {
                    None => return,
                    Some(Status::Metrics) => Status::metrics(&text()),
                    Some(refused) => refused.refusal(),
                };
                self.stage = Stage::Answer { bytes: answer, sent: 0 };
                // There is nearly always room, which saves a turn of the loop.
                self.writable();
            }
            Stage::Leftover { bytes: so_far } => {
                *so_far += bytes.len();
                if *so_far > LEFTOVER_BYTES_MAX {
                    self.stage = Stage::Over;
                }
            }
            Stage::Answer { .. } | Stage::Over => {}
        }
    }

    /// Something can be written.
    pub fn writable(&mut self) {
        let Stage::Answer { bytes, sent } = &mut self.stage else { return };
        // PANIC: no more was sent than there is.
        match self.stream.write(&bytes[*sent..]) {
            Ok(count) => *sent += count,
            Err(error) => return self.end_unless_later(&error),
        }
        if *sent == bytes.len() {
            self.stage = match self.stream.shutdown(Shutdown::Write) {
                Ok(()) => Stage::Leftover { bytes: 0 },
                Err(_) => Stage::Over,
            };
        }
    }

    /// Whether to wait until something can be written, rather than read.
    pub const fn wants_write(&self) -> bool {
        matches!(self.stage, Stage::Answer { .. })
    }

    /// Whether it can be dropped: all is said, the other side is gone, or it took too long.
    pub fn is_over(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Over) || now.since(self.began) >= EXCHANGE_TIME_MAX
    }

    /// When it will have taken too long.
    pub fn deadline(&self) -> Instant {
        self.began + EXCHANGE_TIME_MAX
    }

    fn end_unless_later(&mut self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
            self.stage = Stage::Over;
        }
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
