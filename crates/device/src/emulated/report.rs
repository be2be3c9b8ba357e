//! What the backend's threads tell it.

use gpreempt_core::event::Event;
use gpreempt_wire::emulator::ring_page::QueuePage;
use gpreempt_wire::emulator::{DeviceInfo, QueueInfo};

use crate::process::ProcessKey;

/// From a thread of the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// Something the scheduler has to know.
    Event(Event),
    /// Something that did not work, in a sentence.
    Problem(String),
    /// There is an emulator, and these are its devices. What else it has comes after this.
    Found { instance: u64, devices: Vec<DeviceInfo> },
    /// There is an emulator, and why nothing can be done with it.
    Unusable(String),
    /// The emulator is gone, and why.
    Lost(String),
    /// A process has connected to the emulator, which calls it by that number.
    Connected { client: u64, process: ProcessKey },
    /// It has disconnected.
    Disconnected { client: u64 },
    /// A process has a queue, with this page.
    Opened { info: QueueInfo, process: ProcessKey, page: Box<QueuePage> },
    /// A device fetches from a ring no more, or again.
    Parked {
        /// Which queue, by its number.
        queue: u64,
        /// Whether it fetches no more.
        is_parked: bool,
    },
    /// A queue is gone, perhaps because of what was in its ring.
    Closed { queue: u64, is_faulted: bool },
    /// A worker has done everything it was given before the emulator was lost.
    Settled,
    /// A process that is held has ended.
    Ended(ProcessKey),
}
