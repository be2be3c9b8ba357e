//! Evictions across the end of a service: what an earlier one left, and what this one leaves.

use std::time::{Duration, Instant};

use gpreempt_core::priority::Priority;
use gpreempt_device::eviction::adoption::AdoptError;
use gpreempt_device::eviction::{LeftEviction, left_evictions};
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;

use super::eviction::{Eviction, Phase, Reasons};
use super::mover::Mover;
use super::{Memory, priority_of, take_back};
use crate::service::Service;
use crate::service::processes::inspection_queue::InspectReason;
use crate::service::processes::process_table::ProcessTable;
use crate::service::processes::{Context, Named, Processes};

/// How long a service that ends waits until memory is back. `TimeoutStopSec` of the systemd unit is
/// longer.
const STOP_MAX: Duration = Duration::from_secs(10);
/// The time between two tries to take over what moves.
const LEFT_RETRY_NS: u64 = 1_000_000_000;
const STOP_STEP: Duration = Duration::from_millis(20);

impl Memory {
    /// Finds what dead owners left in the journal. Its processes are not scheduled until their
    /// memory is back. Only for the start of a service.
    pub(crate) fn find_left(
        &mut self,
        journal: &Journal,
        table: &mut ProcessTable,
    ) -> Result<(), std::io::Error> {
        self.left = left_evictions(journal)?;
        let targets = self.left.iter().flat_map(LeftEviction::processes);
        targets.for_each(|target| table.set_away(target.key, true));
        Ok(())
    }

    /// Takes over what dead owners left, unless it moves at the moment. It returns as soon as there
    /// is room: why it was evicted is not known any more.
    pub(super) fn adopt_left(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        if now_ns < self.left_retry_ns {
            return;
        }
        self.left_retry_ns = now_ns.saturating_add(LEFT_RETRY_NS);
        let is_kept = |key: &ProcessKey| context.recovery.is_taken(*key);
        let (kept, back) = std::mem::take(&mut self.kept).into_iter().partition(is_kept);
        self.kept = kept;
        let back: Vec<ProcessKey> = back;
        take_back(&back, processes, context);
        for left in std::mem::take(&mut self.left) {
            let members: Vec<ProcessKey> =
                left.processes().iter().map(|target| target.key).collect();
            let Some(root) = members.first().copied() else { continue };
            let id = self.next_id();
            match self.mover.adopt(id, &left) {
                Ok(()) => {
                    let eviction = adopted(root, members, &left, processes, context, now_ns);
                    self.evictions.insert(id, eviction);
                    context.telemetry.log.info(format_args!(
                        "{} was evicted by an earlier gpreemptd and returns when there is room",
                        Named(root)
                    ));
                }
                Err(AdoptError::Moving) => self.left.push(left),
                Err(AdoptError::Gone) => take_back(&members, processes, context),
                Err(error @ (AdoptError::Lock(_) | AdoptError::Record(_))) => {
                    context.telemetry.problem(&format!(
                        "{}, evicted by an earlier gpreemptd, is restored by its keeper: {error}",
                        Named(root)
                    ));
                    self.kept.extend(members);
                }
            }
        }
    }

    /// Whether memory that an earlier owner evicted is not back yet.
    pub(super) fn has_left(&self) -> bool {
        !self.left.is_empty() || !self.kept.is_empty()
    }

    /// Replaces the mover after the keeper has taken over the journal and what is evicted.
    pub(crate) fn begin_anew(&mut self, mover: Box<dyn Mover>) {
        for eviction in std::mem::take(&mut self.evictions).into_values() {
            self.kept.extend(&eviction.members);
            let why = "gpreemptd was stalled".to_owned();
            let error = super::MemoryError::Failed { key: eviction.root, why };
            self.refuse(&eviction, &error);
            self.answer_all(&eviction.asked_back, Err(&error));
        }
        self.mover = mover;
        self.turns.clear();
    }

    fn is_settled(&self) -> bool {
        self.evictions.is_empty()
    }

    /// From now on everything returns, and nothing else is evicted.
    fn end_all(&mut self) {
        self.claims.clear();
        self.left.clear();
        self.turns.clear();
        for eviction in self.evictions.values_mut() {
            eviction.reasons = Reasons::default();
        }
    }
}

fn adopted(
    root: ProcessKey,
    members: Vec<ProcessKey>,
    left: &LeftEviction,
    processes: &mut Processes,
    context: &mut Context<'_>,
    now_ns: u64,
) -> Eviction {
    for target in left.processes() {
        processes.table.set_away(target.key, true);
        processes.apply(target.key, context);
        // It may not show any more that it uses a device.
        if let Some(controller) = context.devices.backends.controller_of(&target.device) {
            processes.inspections.add(target.key, InspectReason::Appeared(controller));
        }
    }
    let priorities = members.iter().filter_map(|key| priority_of(processes.table.get(*key)?));
    Eviction {
        root,
        priority: priorities.max().unwrap_or(Priority::DEFAULT),
        members,
        gpu: left.gpu().unwrap_or_default(),
        bytes: left.bytes(),
        phase: Phase::Out { retry_ns: now_ns, waits: None },
        reasons: Reasons::default(),
        lease_ns: None,
        asked_out: Vec::new(),
        asked_back: Vec::new(),
    }
}

impl Service {
    /// Restores what is evicted before the service ends, as far as there is room and time. The
    /// keeper restores the rest.
    pub(crate) fn restore_before_end(&mut self) {
        self.memory.end_all();
        let until = Instant::now() + STOP_MAX;
        while !self.memory.is_settled() && Instant::now() < until {
            self.recovery.heartbeat();
            self.devices.waker.clear();
            self.settle_memory(monotonic_ns());
            std::thread::sleep(STOP_STEP);
        }
        for eviction in self.memory.evictions.values() {
            self.telemetry.log.warn(format_args!(
                "{} is still evicted; the keeper restores it when there is room",
                Named(eviction.root)
            ));
        }
    }
}
