//! What the backend's threads tell it.

use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;

use super::doubt::Counts;
use super::worker::HoldPlace;
use crate::act::ActError;
use crate::nvidia::hold::watcher::Notice;
use crate::nvidia::hold::{HoldChannel, HoldSite};
use crate::nvidia::own::OwnError;
use crate::nvidia::ring::{RingError, Rings};
use crate::nvidia::survey::GpuProcess;

/// A channel of ours in a context, with what the watcher needs to use it.
#[derive(Debug)]
pub(super) struct NewHold {
    pub(super) site: HoldSite,
    pub(super) channel: HoldChannel,
    pub(super) rings: Rings,
}

/// Why a context cannot be held.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    /// The device gives the backend no client of its own.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// Its rings cannot be read.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Our channel could not be added.
    #[error(transparent)]
    Act(#[from] ActError),
    /// Another worker put the process back as it was at the same time.
    #[error("the process was released meanwhile")]
    Released,
}

/// From a thread of the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// Something the scheduler has to know.
    Event(Event),
    /// Something that did not work, in a sentence.
    Problem(String),
    /// A queue was stopped, and these were the device's counts before and after.
    Stopped(QueueId, Option<(Counts, Counts)>),
    /// A queue was looked at again, and these are the device's counts.
    Checked(QueueId, Option<Counts>),
    /// A queue can be held from now on, or why not.
    Hold(HoldPlace, Result<Box<NewHold>, HoldError>),
    /// The watcher saw something of a queue.
    Noticed(QueueId, Notice),
    /// The rings of a queue can be read from now on.
    Rings(QueueId, Box<Rings>),
    /// A process that is watched has something else on its GPUs than before.
    Changed(Box<GpuProcess>),
    /// A process began to use a GPU.
    Appeared(Box<GpuProcess>),
}
