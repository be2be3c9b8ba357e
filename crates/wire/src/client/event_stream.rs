//! The events of a session that follows them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Client, ClientError};
use crate::event::Event;
use crate::reply::Reply;

/// The events of a session. As an iterator it waits for the next one until the daemon ends.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    is_over: bool,
    dropped: u64,
}

impl EventStream {
    pub(super) const fn new(client: Client) -> Self {
        Self { client, is_over: false, dropped: 0 }
    }

    /// The next event, if there is one within that time. After an error there are no more events.
    pub fn next_within(&mut self, wait: Duration) -> Result<Option<Event>, ClientError> {
        // A wait beyond the range of the clock has no end.
        let deadline = Instant::now().checked_add(wait);
        match self.next_before(deadline) {
            Err(ClientError::TimedOut { .. }) => Ok(None),
            other => other,
        }
    }

    /// Whether there are no more events: the trace or the daemon has ended.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// How many events were dropped so far because this reader was too slow.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn next_before(&mut self, deadline: Option<Instant>) -> Result<Option<Event>, ClientError> {
        if self.is_over {
            return Ok(None);
        }
        match self.client.receive(deadline) {
            Ok((Reply::Event(event), _)) => {
                self.dropped = self.dropped.saturating_add(event.dropped);
                Ok(Some(event))
            }
            Ok((Reply::End { dropped }, _)) => {
                self.dropped = self.dropped.saturating_add(dropped);
                self.is_over = true;
                Ok(None)
            }
            Ok((other, _)) => {
                self.is_over = true;
                Err(ClientError::UnexpectedReply { request: "Follow", reply: other.name() })
            }
            Err(error) => {
                self.is_over = !matches!(error, ClientError::TimedOut { .. });
                Err(error)
            }
        }
    }
}

impl Iterator for EventStream {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_before(None).transpose()
    }
}

impl AsFd for EventStream {
    /// Readable when [`EventStream::next_within`] need not wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.socket.as_fd()
    }
}
