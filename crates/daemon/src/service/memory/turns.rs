//! Whole turns for evictable processes that never fit into the memory of a device together.
//!
//! [`SwapTurns`] decides for one device; this module reports what is where, and evicts and restores
//! what it names. A job is a claim with the processes of its tree, or an evictable process that no
//! claim covers. Processes that a user evicted take no turns.

use std::collections::BTreeMap;

use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::swap_turns::{JobPlace, SwapTurns, TurnJob};
use gpreempt_core::time::Duration;
use gpreempt_device::process::ProcessKey;

use super::claims::{Claim, Stage, bytes_of};
use super::errors::MemoryError;
use super::eviction::{DeviceMemory, Eviction, Reasons};
use super::{Memory, READING_MAX_NS, memory_in, priority_of};
use crate::service::instant;
use crate::service::processes::process_table::TrackedProcess;
use crate::service::processes::{Context, Processes};
use crate::service::telemetry::gauges::Readings;

/// The turns on one device.
#[derive(Debug)]
pub(crate) struct DeviceTurns {
    length: Duration,
    turns: SwapTurns<ProcessKey>,
}

/// What is on a device for its turns.
#[derive(Debug, Default)]
struct Jobs {
    jobs: Vec<TurnJob<ProcessKey>>,
    members: BTreeMap<ProcessKey, Vec<ProcessKey>>,
    /// What the jobs have on the device.
    resident: u64,
}

const fn takes_turns(priority: Priority) -> bool {
    matches!(priority.class(), Class::Low)
}

impl Memory {
    /// Whether turns are configured, and there is a process that takes them.
    pub(super) fn has_turns(&self, processes: &Processes) -> bool {
        processes.rules.config.scheduler.swap_turn.is_some()
            && processes.table.iter().any(TrackedProcess::is_evictable)
    }

    /// Whether a process for which there is no room may wait for a turn.
    pub(super) fn may_take_turns(&self, claim: &Claim, processes: &Processes) -> bool {
        processes.rules.config.scheduler.swap_turn.is_some()
            && claim.is_evictable
            && takes_turns(claim.priority)
    }

    pub(super) fn next_turn_ns(&self) -> Option<u64> {
        self.turns.values().filter_map(|known| Some(known.turns.next_at()?.as_nanos())).min()
    }

    /// When the turn on a device ends.
    pub(super) fn turn_end_ns(&self, gpu: &str) -> Option<u64> {
        Some(self.turns.get(gpu)?.turns.next_at()?.as_nanos())
    }

    pub(super) fn settle_turns(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let Some(length) = processes.rules.config.scheduler.swap_turn else {
            self.end_turns();
            return;
        };
        self.without_turns
            .retain(|key, until_ns| now_ns < *until_ns && processes.table.get(*key).is_some());
        let gauges = &context.devices.backends.gauges;
        let since = instant(now_ns.saturating_sub(READING_MAX_NS));
        let Some(readings) = gauges.since(since) else { return };
        for (_, device) in context.devices.backends.devices() {
            let gpu = device.uuid;
            let Some(memory) = memory_in(&readings, &gpu) else { continue };
            self.settle_device_turns(
                &gpu,
                (length, now_ns),
                (memory, &readings),
                processes,
                context,
            );
        }
    }

    fn end_turns(&mut self) {
        self.turns.clear();
        for eviction in self.evictions.values_mut() {
            eviction.reasons.turn = false;
        }
        for claim in self.claims.values_mut() {
            if claim.stage == Stage::WaitsForTurn {
                claim.stage = Stage::Making;
            }
        }
    }

    fn settle_device_turns(
        &mut self,
        gpu: &str,
        (length, now_ns): (Duration, u64),
        (memory, readings): (DeviceMemory, &Readings),
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        self.take_over_room(gpu);
        let found = self.jobs_on(gpu, readings, processes, context);
        let is_out = |job: &TurnJob<ProcessKey>| job.place != JobPlace::Resident;
        if found.jobs.len() < 2 && !found.jobs.iter().any(is_out) {
            self.turns.remove(gpu);
            return;
        }
        let others = memory.used.saturating_sub(found.resident);
        let kept = self.kept_from_turns(gpu, processes, readings);
        let room = memory.total.saturating_sub(others).saturating_sub(kept);
        self.refuse_hopeless(gpu, room, context);
        let fresh = DeviceTurns { length, turns: SwapTurns::new(length) };
        let known = self.turns.entry(gpu.to_owned()).or_insert(fresh);
        if known.length != length {
            *known = DeviceTurns { length, turns: SwapTurns::new(length) };
        }
        let plan = known.turns.step(instant(now_ns), room, &found.jobs);
        for job in plan.evict {
            for key in found.members.get(&job).cloned().unwrap_or_default() {
                let reasons = Reasons { turn: true, ..Reasons::default() };
                let bytes = bytes_of(key, readings);
                self.evict_one(key, gpu, bytes, reasons, processes, context);
            }
        }
        for job in plan.restore {
            self.begin_turn(job, found.members.get(&job), now_ns, context);
        }
    }

    /// The turn of a job begins: its claim is granted, or its processes return.
    fn begin_turn(
        &mut self,
        job: ProcessKey,
        members: Option<&Vec<ProcessKey>>,
        now_ns: u64,
        context: &mut Context<'_>,
    ) {
        let waits = |claim: &Claim| claim.key == job && claim.stage == Stage::WaitsForTurn;
        let waiting = self.claims.iter().find(|(_, claim)| waits(claim)).map(|(id, _)| *id);
        if let Some(id) = waiting {
            self.grant(id, now_ns, context);
        }
        for key in members.into_iter().flatten() {
            for eviction in self.evictions.values_mut().filter(|known| known.concerns(*key)) {
                eviction.reasons.turn = false;
            }
        }
    }

    /// Processes that were evicted for a claim that has its room now return in their turns.
    fn take_over_room(&mut self, gpu: &str) {
        let granted: Vec<u64> = self
            .claims
            .iter()
            .filter(|(_, claim)| claim.is_granted() && claim.gpu == gpu)
            .map(|(id, _)| *id)
            .collect();
        for eviction in self.evictions.values_mut() {
            if eviction.is_out() && eviction.gpu == gpu && takes_turns(eviction.priority) {
                for id in &granted {
                    eviction.reasons.turn |= eviction.reasons.room.remove(id);
                }
            }
        }
    }

    /// The jobs on a device.
    fn jobs_on(
        &self,
        gpu: &str,
        readings: &Readings,
        processes: &Processes,
        context: &Context<'_>,
    ) -> Jobs {
        let mut found = Jobs::default();
        let mut covered: Vec<ProcessKey> = Vec::new();
        for claim in self.claims.values().filter(|claim| claim.gpu == gpu) {
            let own = processes.table.iter().filter(|process| claim.covers(process));
            let own: Vec<ProcessKey> = own.map(|process| process.key).collect();
            covered.extend(&own);
            if self.may_take_turns(claim, processes) && claim.stage != Stage::Making {
                self.add_job(&mut found, (claim.key, claim.priority), own, Some(claim), readings);
            }
        }
        for process in processes.table.iter() {
            let here = match self.of(process.key) {
                Some((_, eviction)) => eviction.gpu == gpu,
                None => processes.only_gpu(process, context.devices).as_deref() == Some(gpu),
            };
            let priority = priority_of(process).filter(|priority| takes_turns(*priority));
            let Some(priority) = priority.filter(|_| here && process.is_evictable()) else {
                continue;
            };
            if !covered.contains(&process.key) {
                self.add_job(
                    &mut found,
                    (process.key, priority),
                    vec![process.key],
                    None,
                    readings,
                );
            }
        }
        found
    }

    fn add_job(
        &self,
        found: &mut Jobs,
        (id, priority): (ProcessKey, Priority),
        members: Vec<ProcessKey>,
        claim: Option<&Claim>,
        readings: &Readings,
    ) {
        let evictions: Vec<&Eviction> =
            members.iter().filter_map(|key| self.of(*key)).map(|(_, known)| known).collect();
        // One that cannot be evicted stays where it is.
        if members.iter().any(|key| self.without_turns.contains_key(key)) {
            return;
        }
        // What a user evicted is out of the game, and its memory is not in use.
        if evictions.iter().any(|known| !known.reasons.asked.is_empty()) {
            return;
        }
        let measured: u64 = members.iter().map(|key| bytes_of(*key, readings)).sum();
        let out: u64 = evictions.iter().map(|known| known.bytes).sum();
        let waits = claim.is_some_and(|claim| claim.stage == Stage::WaitsForTurn);
        let is_out = |known: &Eviction| known.is_out();
        let place = if waits || (!evictions.is_empty() && evictions.iter().all(|one| is_out(one))) {
            // One that may return already is on its way.
            let returns = evictions.iter().any(|known| known.reasons.is_empty());
            if returns && !waits { JobPlace::Moving } else { JobPlace::Evicted }
        } else if evictions.is_empty() {
            JobPlace::Resident
        } else {
            JobPlace::Moving
        };
        let claimed = claim.map_or(0, |claim| claim.bytes);
        let bytes = claimed.max(measured).max(out);
        if bytes == 0 {
            return;
        }
        found.resident = found.resident.saturating_add(measured);
        let swap_ns = self.rates.time_out_ns(bytes).saturating_add(self.rates.time_back_ns(bytes));
        let swap = Duration::from_nanos(swap_ns);
        found.jobs.push(TurnJob { id, priority, bytes, swap, place });
        found.members.insert(id, members);
    }

    /// What claims that take no turns still need.
    fn kept_from_turns(&self, gpu: &str, processes: &Processes, readings: &Readings) -> u64 {
        let takes_none = |claim: &&Claim| {
            claim.gpu == gpu
                && (claim.stage == Stage::Making || !self.may_take_turns(claim, processes))
        };
        let claims = self.claims.values().filter(takes_none);
        let left = claims.map(|claim| claim.outstanding(&processes.table, readings));
        left.fold(0, u64::saturating_add)
    }

    /// A claim that is larger than the room for all turns together would wait for ever.
    fn refuse_hopeless(&mut self, gpu: &str, room: u64, context: &mut Context<'_>) {
        let is_hopeless = |claim: &Claim| {
            claim.gpu == gpu && claim.stage == Stage::WaitsForTurn && claim.bytes > room
        };
        let hopeless = self.claims.iter().filter(|(_, claim)| is_hopeless(claim));
        for (id, claim) in hopeless.map(|(id, claim)| (*id, claim.clone())).collect::<Vec<_>>() {
            let error = MemoryError::NoRoom {
                gpu: claim.gpu,
                missing: claim.bytes.saturating_sub(room),
                bytes: claim.bytes,
                free: 0,
                evictable: room,
                priority: claim.priority,
                except: String::new(),
            };
            self.refuse_claim(id, error, context);
        }
    }
}
