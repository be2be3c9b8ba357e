//! A queue as the device sees it.

use std::collections::VecDeque;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use super::execution::Execution;
use crate::packet::{PACKET_BYTES, Packet};
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
    /// Nothing more is fetched from its ring; what was fetched ends.
    pub(crate) parked: bool,
    /// The write index at which it was found to be done when it was last stopped.
    pub(crate) known_done: Option<u64>,
    /// The group's time slice.
    pub(crate) slice: Duration,
    /// A hold keeps the group resident without work.
    pub(crate) held: bool,
    /// When it was given a hardware slot.
    pub(crate) mapped_at: Option<Instant>,
    /// Every launch the client made, by number; none where the ring is in memory of a client.
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
            parked: false,
            known_done: None,
            slice: Duration::ZERO,
            held: false,
            mapped_at: None,
            launches: Vec::new(),
            completed: 0,
            kernel_offset: 0,
            backlog: VecDeque::new(),
        }
    }

    /// Takes what was fetched for a launch, unless it cannot be one of this queue's.
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

    /// What is known of a launch: nothing, where launches are not written down.
    pub(crate) fn launch_mut(&mut self, number: u64) -> Option<&mut LaunchRecord> {
        let at = usize::try_from(number).ok()?;
        self.launches.get_mut(at)
    }

    /// Whether anything was submitted and is not complete, as the device can know.
    pub(crate) fn has_work(&self) -> bool {
        self.execution.is_some() || !self.fetched.is_empty() || self.ring.pending() > 0
    }

    /// Whether there is anything that it could run.
    pub(crate) fn can_run(&self) -> bool {
        self.has_work() && (!self.parked || self.in_flight() > 0)
    }

    /// What a reading of the ring tells where it cannot tell running work from finished work:
    /// whether a stop interrupted something is known, until the client submits again.
    pub(crate) fn known_running(&self) -> Option<bool> {
        let still = self.known_done == Some(self.ring.view(None).put);
        if self.stopped { Some(self.has_work()) } else { still.then_some(false) }
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

/// A launch as a stranger wrote it: its place in the ring is its number, and it must fit the
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

/// Most work-groups of a launch that a stranger wrote.
const GROUPS_MAX: u32 = 1 << 16;
