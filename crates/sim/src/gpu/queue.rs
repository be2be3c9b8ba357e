//! A queue as the device sees it.

use std::collections::VecDeque;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use super::execution::Execution;
use crate::packet::Packet;
use crate::ring::Ring;

/// Whether a queue's waves may be on compute units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// No.
    Out,
    /// On their way from the units to memory.
    Saving,
    /// On their way back.
    Restoring,
    /// Yes.
    In,
}

/// One ring and what the device has fetched from it.
#[derive(Debug)]
pub(crate) struct HardwareQueue {
    pub(crate) device: usize,
    pub(crate) task: usize,
    /// As the scheduler was told; the hardware does not look at it.
    pub(crate) priority: Priority,
    pub(crate) ring: Ring,
    /// Whether a look into the ring is on the agenda already.
    pub(crate) fetching: bool,
    /// Fetched and not begun, oldest first.
    pub(crate) fetched: VecDeque<Packet>,
    pub(crate) execution: Option<Execution>,
    pub(crate) residency: Residency,
    /// Tells appointments of the current residency from older ones.
    pub(crate) epoch: u64,
    /// Units its waves are just leaving, and waves on each.
    pub(crate) leaving: (Vec<u32>, u32),
    /// Somebody waits for its restore.
    pub(crate) resuming: bool,
    /// Stopped from outside.
    pub(crate) stopped: bool,
    /// The group's time slice.
    pub(crate) slice: Duration,
    /// A hold keeps the group resident without work.
    pub(crate) held: bool,
    /// When it was given a hardware slot.
    pub(crate) mapped_at: Option<Instant>,
    /// Every launch the client made, by number.
    pub(crate) launches: Vec<LaunchRecord>,
    /// Launches that are complete: all below this number, where nothing is executed twice.
    pub(crate) completed: u64,
    /// Where the papers' design would begin again after a reset.
    pub(crate) kernel_offset: u64,
    /// Launches not in the ring yet: it was full, or the papers' design is between two resets.
    pub(crate) backlog: VecDeque<Packet>,
}

/// What became of a launch.
#[derive(Clone, Debug)]
pub(crate) struct LaunchRecord {
    pub(crate) packet: Packet,
    /// How often its execution was begun: once, except after a reset.
    pub(crate) begun: u32,
    pub(crate) completed: u32,
}

impl HardwareQueue {
    pub(crate) fn new(device: usize, task: usize, priority: Priority, ring: Ring) -> Self {
        Self {
            device,
            task,
            priority,
            ring,
            fetching: false,
            fetched: VecDeque::new(),
            execution: None,
            residency: Residency::Out,
            epoch: 0,
            leaving: (Vec::new(), 0),
            resuming: false,
            stopped: false,
            slice: Duration::ZERO,
            held: false,
            mapped_at: None,
            launches: Vec::new(),
            completed: 0,
            kernel_offset: 0,
            backlog: VecDeque::new(),
        }
    }

    /// Whether anything was submitted and is not complete, as the device can know.
    pub(crate) fn has_work(&self) -> bool {
        self.execution.is_some() || !self.fetched.is_empty() || self.ring.pending() > 0
    }

    /// Waves on compute units.
    pub(crate) fn resident_waves(&self) -> u64 {
        self.execution.as_ref().map_or(0, Execution::resident_waves)
    }

    /// Waves in the save area.
    pub(crate) fn saved_waves(&self) -> u64 {
        self.execution.as_ref().map_or(0, Execution::saved_waves)
    }

    /// Fetched packets that are not complete.
    pub(crate) fn in_flight(&self) -> u64 {
        self.fetched.len() as u64 + u64::from(self.execution.is_some())
    }
}
