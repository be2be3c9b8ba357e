//! The world as the scheduler's loop sees it.

use crate::command::Command;
use crate::event::Event;
use crate::id::QueueId;
use crate::ring::RingView;

/// Something that has devices: hardware, an emulated GPU, a simulation.
///
/// Nothing here blocks. Real control calls take up to 20 ms, so `submit` hands the command to a
/// worker and its completion comes back through `poll_event`, exactly once for every preempt and
/// resume, even if the queue is gone by then. A backend that answers with [`Fault::Gone`] also
/// reports that the queue vanished, once, as soon as it knows.
///
/// [`Fault::Gone`]: crate::event::Fault::Gone
pub trait Backend {
    /// Begins to carry out a command.
    fn submit(&mut self, command: Command);

    /// Reads a ring, which changes nothing. None if it could not be read this time: an unread
    /// ring is not an empty one.
    fn observe(&mut self, queue: QueueId) -> Option<RingView>;

    /// The next thing that happened, oldest first.
    fn poll_event(&mut self) -> Option<Event>;
}
