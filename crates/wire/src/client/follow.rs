//! Events, one after the other.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Client, ClientError};
use crate::event::Event;
use crate::reply::Reply;

/// Events from now on. As an iterator it waits for the next one, for as long as the daemon lives.
#[derive(Debug)]
pub struct Follow {
    client: Client,
    is_over: bool,
    dropped: u64,
}

impl Follow {
    pub(super) const fn new(client: Client) -> Self {
        Self { client, is_over: false, dropped: 0 }
    }

    /// The next event, if there is one within that time.
    ///
    /// # Errors
    /// If the daemon ended or makes no sense. There are no more events then.
    pub fn next_within(&mut self, wait: Duration) -> Result<Option<Event>, ClientError> {
        // Further than the clock goes is without end.
        let deadline = Instant::now().checked_add(wait);
        match self.next_before(deadline) {
            Err(ClientError::TimedOut { .. }) => Ok(None),
            other => other,
        }
    }

    /// Whether there are no more events: a trace has its end, and so have daemons.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// How many events were left out so far because this reader was too slow.
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
                Err(ClientError::OffTopic { request: "Follow", reply: other.name() })
            }
            Err(error) => {
                self.is_over = !matches!(error, ClientError::TimedOut { .. });
                Err(error)
            }
        }
    }
}

impl Iterator for Follow {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_before(None).transpose()
    }
}

impl AsFd for Follow {
    /// Readable when [`Follow::next_within`] need not wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.socket.as_fd()
    }
}
