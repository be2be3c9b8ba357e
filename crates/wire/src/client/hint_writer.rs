//! The process's side of a hint page.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::Socket;
use crate::hint_page::Mapping;
use crate::message::Message;
use crate::request::Request;

/// Writes hints: a few instructions each, and one packet when the daemon sleeps.
///
/// Several threads may call all methods at once; a slot belongs to one thread at a time. A hint
/// never fails: it is advice, and without a daemon it has no effect.
#[derive(Debug)]
pub struct HintWriter {
    mapping: Mapping,
    socket: Socket,
    wake: Vec<u8>,
}

impl HintWriter {
    pub(super) fn new(mapping: Mapping, socket: Socket) -> Self {
        // Encoded once, so that a hint allocates nothing.
        let wake = Message { request: 0, body: Request::Wake }.encode();
        Self { mapping, socket, wake }
    }

    /// A slot for this thread. None if 63 threads have one.
    pub fn claim(&self) -> Option<usize> {
        self.mapping.page().claim()
    }

    /// Returns a slot; its requests have ended.
    pub fn release(&self, slot: usize) {
        let _ = self.wake_if(self.mapping.page().release(slot));
    }

    /// A request is coming, with a deadline in so many microseconds, or 0 for none. Requests of a
    /// slot add up, each with its own end. False if the daemon is found to have ended, which is
    /// noticed only when it has to be woken.
    pub fn begin(&self, slot: usize, deadline_us: u64) -> bool {
        self.wake_if(self.mapping.page().begin(slot, deadline_us))
    }

    /// The request is done. False if the daemon is found to have ended.
    pub fn end(&self, slot: usize) -> bool {
        self.wake_if(self.mapping.page().end(slot))
    }

    /// Whether the daemon has not closed the session. If it has, connect again when time permits.
    pub fn is_connected(&self) -> bool {
        self.socket.is_connected()
    }

    fn wake_if(&self, is_asleep: bool) -> bool {
        if !is_asleep {
            return true;
        }
        match self.socket.try_send(&self.wake) {
            // No room means that the daemon has packets to read and is about to wake up.
            Ok(()) | Err(Errno::AGAIN) => true,
            Err(_) => false,
        }
    }
}

impl AsFd for HintWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
