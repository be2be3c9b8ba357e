//! A queue as the device sees it.

use std::collections::VecDeque;

use gpreempt_core::busy_periods::BusyPeriods;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use super::execution::Execution;
use crate::ring::Ring;
use crate::ring::{PACKET_BYTES, Packet};
use crate::track::Activity;

/// Whether a queue's waves may be on compute units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    Out,
    /// Being saved to memory.
    Saving,
    /// Being restored.
    Restoring,
    In,
}

/// One ring and what the device has fetched from it.
#[derive(Debug)]
pub(crate) struct HardwareQueue {
    pub(crate) device: usize,
    pub(crate) task: usize,
    /// For the checkers; the hardware does not use it.
    pub(crate) priority: Priority,
    pub(crate) ring: Ring,
    /// Whether a fetch is scheduled.
    pub(crate) fetching: bool,
    /// Fetched launches that have not begun.
    pub(crate) fetched: VecDeque<Packet>,
    pub(crate) execution: Option<Execution>,
    pub(crate) residency: Residency,
    /// Distinguishes events of the current residency from older ones.
    pub(crate) epoch: u64,
    /// Units from which waves are being saved, and waves on each.
    pub(crate) leaving: (Vec<u32>, u32),
    /// A resume waits for its restore.
    pub(crate) resuming: bool,
    /// Preempted by a control call.
    pub(crate) stopped: bool,
    /// Fetching is stopped; fetched launches finish.
    pub(crate) parked: bool,
    /// The same, because its process is locked or on its way out.
    pub(crate) locked: bool,
    /// The write index at which it was known to be done when it was last preempted.
    pub(crate) known_done: Option<u64>,
    pub(crate) slice: Duration,
    /// A hold keeps the group resident without work.
    pub(crate) held: bool,
    pub(crate) mapped_at: Option<Instant>,
    /// Every launch the client made, by number; none where the ring is in memory of a client.
    pub(crate) launches: Vec<LaunchRecord>,
    /// Launches that are complete: all below this number, where nothing is executed twice.
    pub(crate) completed: u64,
    /// How often running waves were preempted.
    pub(crate) preemptions: u32,
    /// What it does now, since the last change of it.
    pub(crate) activity: Activity,
    /// How long its work was off the device.
    pub(crate) periods: BusyPeriods,
    /// Whether the scheduler wants to know that.
    pub(crate) is_measured: bool,
    /// The first launch that the reset design submits again.
    pub(crate) kernel_offset: u64,
    /// Launches not in the ring: it was full, or the reset design has preempted the queue.
    pub(crate) backlog: VecDeque<Packet>,
}

#[derive(Clone, Debug)]
pub(crate) struct LaunchRecord {
    pub(crate) packet: Packet,
    /// How often its execution began: once, except after a reset.
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
            parked: false,
            locked: false,
            known_done: None,
            slice: Duration::ZERO,
            held: false,
            mapped_at: None,
            launches: Vec::new(),
            completed: 0,
            preemptions: 0,
            activity: Activity::Idle,
            periods: BusyPeriods::default(),
            is_measured: false,
            kernel_offset: 0,
            backlog: VecDeque::new(),
        }
    }

    /// Decodes a fetched packet, unless it cannot be one of this queue's.
    pub(crate) fn admit(
        &self,
        bytes: &[u8; PACKET_BYTES],
        programs: usize,
        waves_max: u32,
    ) -> Result<Packet, &'static str> {
        let Some(packet) = Packet::decode(bytes) else {
            return Err("the ring holds something that is no packet");
        };
        if self.ring.is_mapped() {
            return admit_foreign(packet, self.ring.view(None).get - 1, programs, waves_max);
        }
        let known = usize::try_from(packet.number).ok().and_then(|at| self.launches.get(at));
        match known {
            Some(known) if known.packet == packet => Ok(packet),
            Some(_) | None => Err("the ring holds what its client never wrote"),
        }
    }

    /// The record of a launch; none where launches are not recorded.
    pub(crate) fn launch_mut(&mut self, number: u64) -> Option<&mut LaunchRecord> {
        let at = usize::try_from(number).ok()?;
        self.launches.get_mut(at)
    }

    /// Whether there are launches that are not complete.
    pub(crate) fn has_work(&self) -> bool {
        self.execution.is_some() || !self.fetched.is_empty() || self.ring.pending() > 0
    }

    /// Whether there are launches that it may run.
    pub(crate) fn can_run(&self) -> bool {
        self.has_work() && (!self.is_closed_to_fetches() || self.in_flight() > 0)
    }

    /// Whether the device does not fetch from its ring.
    pub(crate) fn is_closed_to_fetches(&self) -> bool {
        self.parked || self.locked
    }

    /// What a reading of the ring shows where it cannot show running work: whether a preempt
    /// interrupted a launch, until the client submits again.
    pub(crate) fn known_running(&self) -> Option<bool> {
        let still = self.known_done == Some(self.ring.view(None).put);
        if self.stopped { Some(self.has_work()) } else { still.then_some(false) }
    }

    pub(crate) fn resident_waves(&self) -> u64 {
        self.execution.as_ref().map_or(0, Execution::resident_waves)
    }

    pub(crate) fn saved_waves(&self) -> u64 {
        self.execution.as_ref().map_or(0, Execution::saved_waves)
    }

    /// Fetched packets that are not complete.
    pub(crate) fn in_flight(&self) -> u64 {
        self.fetched.len() as u64 + u64::from(self.execution.is_some())
    }
}

/// Checks a launch of an external client: its index in the ring is its number, and it must fit the
/// device.
fn admit_foreign(
    packet: Packet,
    number: u64,
    programs: usize,
    waves_max: u32,
) -> Result<Packet, &'static str> {
    if packet.kernel as usize >= programs {
        return Err("a packet names a kernel that is not loaded");
    }
    if packet.waves == 0 || packet.waves > waves_max {
        return Err("a packet has work-groups that fit on no compute unit");
    }
    if packet.groups == 0 || packet.groups > GROUPS_MAX {
        return Err("a packet has no work-groups, or too many");
    }
    Ok(Packet { number, ..packet })
}

/// The most work-groups of an external launch.
const GROUPS_MAX: u32 = 1 << 16;
