//! Claims: processes that need GPU memory, for which others are evicted.
//!
//! A claim is planned with a fresh reading of the device ([`gpreempt_core::room`]), made by
//! evictions, and checked with another reading before it is granted: what was freed is reserved for
//! no process. It ends with its process, or when no process of its tree used a GPU for
//! [`UNUSED_MAX_NS`]. Then the evicted processes return.

use std::collections::BTreeMap;

use gpreempt_core::priority::Priority;
use gpreempt_core::room::{Evictable, RoomClaim, RoomPlan, plan_room};
use gpreempt_device::eviction::EvictTarget;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::statistics::memory;

use super::errors::MemoryError;
use super::eviction::{DeviceMemory, Eviction, Phase, Reasons};
use super::{CLAIMS_MAX, Memory, memory_in, priority_of};
use crate::service::clients::pending_answers::RequestRef;
use crate::service::instant;
use crate::service::processes::process_table::{ProcessTable, TrackedProcess};
use crate::service::processes::{Context, Named, Processes};
use crate::service::telemetry::gauges::Readings;

/// After this time without a process that uses a GPU a claim ends: memory must not stay empty for a
/// process that does not use it.
const UNUSED_MAX_NS: u64 = 600_000_000_000;
/// How long a process takes no turns that could not be evicted for one.
const TURN_RETRY_NS: u64 = 60_000_000_000;
/// How often ends of claims are looked for.
const SWEEP_NS: u64 = 250_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Room is being made.
    Making,
    /// There is no room now, but the process takes turns with others.
    WaitsForTurn,
    Granted,
}

#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) key: ProcessKey,
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) priority: Priority,
    pub(crate) is_evictable: bool,
    pub(crate) bytes: u64,
    pub(crate) gpu: String,
    /// The client that waits for the room. Rules and environments claim without one.
    pub(crate) asked: Option<RequestRef>,
    pub(crate) since_ns: u64,
    pub(crate) stage: Stage,
    /// Only readings from then on count. None: those from the next look on.
    pub(crate) fresh_ns: Option<u64>,
    /// Why processes could not be evicted for it.
    pub(crate) excluded: BTreeMap<ProcessKey, String>,
    /// When a process of its tree last used a GPU.
    pub(crate) used_ns: u64,
}

impl Claim {
    pub(crate) fn is_granted(&self) -> bool {
        self.stage == Stage::Granted
    }

    /// Whether a process is the claimant or a descendant of it.
    pub(crate) fn covers(&self, process: &TrackedProcess) -> bool {
        process.key == self.key || process.lineage.contains(&self.key)
    }

    /// What its processes have on the device already.
    pub(crate) fn allocated(&self, table: &ProcessTable, readings: &Readings) -> u64 {
        let own = table.iter().filter(|process| self.covers(process));
        own.map(|process| bytes_of(process.key, readings)).sum()
    }

    /// What its processes may still allocate. One that is evicted comes back when there is room.
    pub(crate) fn outstanding(&self, table: &ProcessTable, readings: &Readings) -> u64 {
        let is_away = table.iter().any(|process| process.is_away && self.covers(process));
        let left = self.bytes.saturating_sub(self.allocated(table, readings));
        if is_away { 0 } else { left }
    }

    /// Claims of a higher priority come first, then earlier ones.
    pub(crate) fn rank(&self, id: u64) -> (std::cmp::Reverse<Priority>, u64) {
        (std::cmp::Reverse(self.priority), id)
    }
}

/// Whether a rule or an environment says how much memory a process needs.
pub(super) fn has_rule_claims(processes: &Processes) -> bool {
    processes.table.iter().any(|process| process.assignment.memory.is_some())
}

/// What a process has on devices.
pub(crate) fn bytes_of(key: ProcessKey, readings: &Readings) -> u64 {
    let used = readings.processes.get(&key.pid).and_then(|used| used.memory_kib);
    used.unwrap_or(0).saturating_mul(1_024)
}

impl Memory {
    /// Adds a claim, in place of an earlier one of the process.
    pub(crate) fn claim(&mut self, claim: Claim, is_trusted: bool) -> Result<(), MemoryError> {
        let own = self.claims.values().filter(|known| known.uid == claim.uid);
        if own.count() >= CLAIMS_MAX && !is_trusted {
            return Err(MemoryError::TooManyClaims(claim.uid));
        }
        self.end_claim(claim.key);
        let id = self.next_id();
        self.claims.insert(id, claim);
        Ok(())
    }

    /// Ends the claim of a process. What was evicted for it returns.
    pub(crate) fn end_claim(&mut self, key: ProcessKey) -> bool {
        let ids = self.claims.iter().filter(|(_, claim)| claim.key == key).map(|(id, _)| *id);
        let ids: Vec<u64> = ids.collect();
        ids.iter().for_each(|id| self.drop_claim(*id, Err(MemoryError::ClaimEnded(key))));
        !ids.is_empty()
    }

    /// Ends the claims whose clients have gone before there was room.
    pub(crate) fn end_abandoned(&mut self, lives: impl Fn(u64) -> bool) {
        let is_abandoned = |claim: &Claim| {
            !claim.is_granted() && claim.asked.is_some_and(|asked| !lives(asked.session))
        };
        let ids = self.claims.iter().filter(|(_, claim)| is_abandoned(claim));
        for id in ids.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_claim(id, Ok(()));
        }
    }

    fn drop_claim(&mut self, id: u64, answer: Result<(), MemoryError>) {
        let Some(claim) = self.claims.remove(&id) else { return };
        for eviction in self.evictions.values_mut() {
            eviction.reasons.room.remove(&id);
        }
        if let Some(asked) = claim.asked.filter(|_| !claim.is_granted()) {
            self.answers.push((asked, answer));
        }
    }

    /// Memory has moved: claims wait for readings after that.
    pub(super) fn restart_claim_readings(&mut self) {
        for claim in self.claims.values_mut().filter(|claim| !claim.is_granted()) {
            claim.fresh_ns = None;
        }
    }

    /// A process could not be evicted: the claims that it was to be evicted for are planned
    /// without it.
    pub(super) fn note_refusal(
        &mut self,
        eviction: &Eviction,
        sentence: &str,
        now_ns: u64,
        context: &mut Context<'_>,
    ) {
        if eviction.reasons.turn {
            let root = eviction.root;
            context.telemetry.problem(&format!("{} takes no turns: {sentence}", Named(root)));
            self.without_turns.insert(root, now_ns.saturating_add(TURN_RETRY_NS));
        }
        for claim in &eviction.reasons.room {
            if let Some(claim) = self.claims.get_mut(claim) {
                claim.excluded.insert(eviction.root, sentence.to_owned());
                claim.fresh_ns = None;
            }
        }
    }

    /// What a restored process has to leave free: the part of claims of its priority or a higher
    /// one that their processes have not allocated yet.
    pub(super) fn kept_from(
        &self,
        eviction: &Eviction,
        processes: &Processes,
        context: &Context<'_>,
        now_ns: u64,
    ) -> u64 {
        let readings = context.devices.backends.gauges.latest(instant(now_ns));
        let counts = |claim: &&Claim| {
            claim.gpu == eviction.gpu
                && claim.priority >= eviction.priority
                && claim.stage != Stage::WaitsForTurn
                && !eviction.members.iter().any(|key| {
                    processes.table.get(*key).is_some_and(|process| claim.covers(process))
                })
        };
        let claims = self.claims.values().filter(counts);
        let left = |claim: &Claim| claim.outstanding(&processes.table, &readings);
        claims.map(left).fold(0, u64::saturating_add)
    }

    pub(super) fn settle_claims(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_NS {
            self.swept_ns = now_ns;
            self.sweep_claims(now_ns, processes, context);
        }
        let open = self.claims.iter().filter(|(_, claim)| claim.stage == Stage::Making);
        let mut open: Vec<(_, u64)> = open.map(|(id, claim)| (claim.rank(*id), *id)).collect();
        open.sort_unstable();
        for (_, id) in open {
            self.settle_claim(id, now_ns, processes, context);
        }
    }

    fn sweep_claims(&mut self, now_ns: u64, processes: &Processes, context: &mut Context<'_>) {
        let mut over = Vec::new();
        for (id, claim) in &mut self.claims {
            if processes.table.iter().any(|process| claim.covers(process)) {
                claim.used_ns = now_ns;
            }
            let is_unused = now_ns.saturating_sub(claim.used_ns) >= UNUSED_MAX_NS;
            if claim.key.check().is_err() || is_unused {
                over.push((*id, is_unused));
            }
        }
        for (id, is_unused) in over {
            let Some(claim) = self.claims.get(&id) else { continue };
            let (name, pid) = (claim.name.clone(), claim.key.pid);
            let why = if is_unused { "it used no GPU for 10 minutes" } else { "it has ended" };
            let text = format!("the claim of {name} ({pid}) to GPU memory ends: {why}");
            context.telemetry.log.info(text);
            let ended = MemoryError::Ended(claim.key);
            self.drop_claim(id, Err(ended));
        }
    }

    /// Adds the claims of processes whose rule or environment says how much they need.
    pub(super) fn claim_by_rules(
        &mut self,
        now_ns: u64,
        processes: &Processes,
        context: &mut Context<'_>,
    ) {
        self.claimed.retain(|key| processes.table.get(*key).is_some());
        for process in processes.table.iter().filter(|process| process.assignment.memory.is_some())
        {
            if !self.claimed.contains(&process.key)
                && let Some(claim) = self.claim_of_rule(process, now_ns, processes, context)
            {
                self.claimed.insert(process.key);
                let is_covered = self.claims.values().any(|known| known.covers(process));
                let is_trusted = context.reads.is_trusted(claim.uid);
                if !is_covered && let Err(error) = self.claim(claim, is_trusted) {
                    context.telemetry.log.warn(format_args!("{}: {error}", Named(process.key)));
                }
            }
        }
    }

    fn claim_of_rule(
        &self,
        process: &TrackedProcess,
        now_ns: u64,
        processes: &Processes,
        context: &Context<'_>,
    ) -> Option<Claim> {
        Some(Claim {
            key: process.key,
            name: process.labels.name.clone(),
            uid: process.labels.uid,
            priority: priority_of(process)?,
            is_evictable: process.is_evictable(),
            bytes: process.assignment.memory.as_ref()?.value,
            gpu: processes.only_gpu(process, context.devices)?,
            asked: None,
            since_ns: now_ns,
            stage: Stage::Making,
            fresh_ns: None,
            excluded: BTreeMap::new(),
            used_ns: now_ns,
        })
    }

    fn settle_claim(
        &mut self,
        id: u64,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let Some(claim) = self.claims.get_mut(&id) else { return };
        // What is on its way out, for whatever reason, is free soon.
        let here = || self.evictions.values().filter(|known| known.gpu == claim.gpu);
        if here().any(Eviction::is_leaving) {
            return;
        }
        let is_returning = here().any(|known| !known.is_out());
        let fresh_ns = *claim.fresh_ns.get_or_insert(now_ns);
        let gauges = &context.devices.backends.gauges;
        let Some(readings) = gauges.since(instant(fresh_ns)) else { return };
        let claim = claim.clone();
        let Some(device) = memory_in(&readings, &claim.gpu) else {
            self.refuse_claim(id, MemoryError::UnknownMemory(claim.gpu), context);
            return;
        };
        if claim.bytes > device.total {
            let (bytes, total, gpu) = (claim.bytes, device.total, claim.gpu);
            self.refuse_claim(id, MemoryError::TooLarge { bytes, total, gpu }, context);
            return;
        }
        let free = self.free_for(id, &claim, device, &processes.table, &readings);
        let allocated = claim.allocated(&processes.table, &readings);
        let needed = claim.bytes.saturating_sub(allocated);
        let candidates = self.candidates(&claim, processes, &readings, context);
        let wanted = RoomClaim { priority: claim.priority, bytes: needed };
        match plan_room(wanted, free, &candidates) {
            RoomPlan::Evict(keys) if keys.is_empty() => self.grant(id, now_ns, context),
            RoomPlan::Evict(keys) => {
                for key in keys {
                    let reasons = Reasons { room: [id].into(), ..Reasons::default() };
                    let bytes = bytes_of(key, &readings);
                    self.evict_one(key, &claim.gpu, bytes, reasons, processes, context);
                }
            }
            // What returns now may be evicted when it is back.
            RoomPlan::Short { .. } if is_returning => {}
            RoomPlan::Short { .. } if self.may_take_turns(&claim, processes) => {
                for eviction in self.evictions.values_mut() {
                    eviction.reasons.room.remove(&id);
                }
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.stage = Stage::WaitsForTurn;
                }
            }
            RoomPlan::Short { missing } => {
                let lower = candidates.iter().filter(|one| one.priority < claim.priority);
                let evictable = lower.map(|one| one.bytes).sum();
                let except: Vec<String> =
                    claim.excluded.values().map(|why| format!("; {why}")).collect();
                let Claim { gpu, priority, .. } = claim;
                let except = except.concat();
                let bytes = needed;
                let error =
                    MemoryError::NoRoom { gpu, missing, bytes, free, evictable, priority, except };
                self.refuse_claim(id, error, context);
            }
        }
    }

    /// What a device has free for a claim: less what claims before it still need, and what moves
    /// back at the moment.
    fn free_for(
        &self,
        id: u64,
        claim: &Claim,
        device: DeviceMemory,
        table: &ProcessTable,
        readings: &Readings,
    ) -> u64 {
        let is_before = |(other, known): &(&u64, &Claim)| {
            known.gpu == claim.gpu
                && known.stage != Stage::WaitsForTurn
                && known.rank(**other) < claim.rank(id)
                && **other != id
        };
        let before = self.claims.iter().filter(is_before);
        let kept = before.map(|(_, known)| known.outstanding(table, readings));
        let kept = kept.fold(self.moving_back(&claim.gpu), u64::saturating_add);
        device.free().saturating_sub(kept)
    }

    /// The processes that may be evicted for a claim, whatever their priority.
    fn candidates(
        &self,
        claim: &Claim,
        processes: &Processes,
        readings: &Readings,
        context: &Context<'_>,
    ) -> Vec<Evictable<ProcessKey>> {
        let candidate = |process: &TrackedProcess| {
            let is_on_it = processes.only_gpu(process, context.devices) == Some(claim.gpu.clone());
            let may_be = is_on_it
                && process.is_evictable()
                && !process.is_away
                && !claim.covers(process)
                && !claim.excluded.contains_key(&process.key)
                && self.of(process.key).is_none()
                && processes.evict_device(process.key, context).is_some();
            let priority = priority_of(process).filter(|_| may_be)?;
            let bytes = bytes_of(process.key, readings);
            Some(Evictable { id: process.key, priority, bytes })
        };
        processes.table.iter().filter_map(candidate).collect()
    }

    /// Begins to evict one process.
    pub(super) fn evict_one(
        &mut self,
        key: ProcessKey,
        gpu: &str,
        bytes: u64,
        reasons: Reasons,
        processes: &Processes,
        context: &Context<'_>,
    ) {
        let Some(priority) = processes.table.get(key).and_then(priority_of) else { return };
        let Some(device) = processes.evict_device(key, context) else { return };
        let eviction = Eviction {
            root: key,
            members: vec![key],
            gpu: gpu.to_owned(),
            priority,
            bytes,
            phase: Phase::Checking,
            reasons,
            lease_ns: None,
            asked_out: Vec::new(),
            asked_back: Vec::new(),
        };
        self.begin(eviction, vec![(EvictTarget { key, device }, bytes)]);
    }

    pub(super) fn grant(&mut self, id: u64, now_ns: u64, context: &mut Context<'_>) {
        let Some(claim) = self.claims.get_mut(&id) else { return };
        claim.stage = Stage::Granted;
        let took_ns = now_ns.saturating_sub(claim.since_ns);
        let (asked, key, name) = (claim.asked, claim.key, claim.name.clone());
        let size = memory(claim.bytes / 1_024);
        context.telemetry.memory_event(key, &name, EventKind::Room, took_ns);
        context.telemetry.log.info(format_args!(
            "{name} ({}) has room for {size} on GPU {}, after {} ms",
            key.pid,
            claim.gpu,
            took_ns / 1_000_000
        ));
        self.answers.extend(asked.map(|asked| (asked, Ok(()))));
    }

    pub(super) fn refuse_claim(&mut self, id: u64, error: MemoryError, context: &mut Context<'_>) {
        if let Some(claim) = self.claims.get(&id) {
            let key = claim.key;
            context.telemetry.log.warn(format_args!("{}: {error}", Named(key)));
        }
        self.drop_claim(id, Err(error));
    }
}
