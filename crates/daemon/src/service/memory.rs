//! The memory of GPUs: which processes are evicted to the host, for whom, and until when.
//!
//! [`Memory`] carries out what users asked for ([`requests`]), makes room for processes that claim
//! memory ([`claims`]) and gives processes that never fit together whole turns ([`turns`]). It
//! moves no memory itself: a [`Mover`] does, in threads. Before memory moves, the process leaves
//! the scheduler and its controllers; when it is back, it gets its settings and suspensions again.

pub(crate) mod claims;
pub(crate) mod errors;
pub(crate) mod eviction;
pub(crate) mod mover;
pub(crate) mod requests;
pub(crate) mod restart;
pub(crate) mod statistics;
pub(crate) mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpreempt_core::priority::Priority;
use gpreempt_device::eviction::{
    EvictJob, EvictTarget, EvictorReport, LeftEviction, NotRestored, Step,
};
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::statistics::memory;

use super::clients::pending_answers::RequestRef;
use super::instant;
use super::processes::{Context, Named, Processes};
use claims::{Claim, Stage, has_rule_claims};
use errors::MemoryError;
use eviction::{DeviceMemory, Eviction, Phase, Reasons, restorable};
use mover::{Mover, MoverReport};
use statistics::Rates;
use turns::DeviceTurns;

/// Evictions of one user that are not over, unless the user is root or runs the daemon.
pub(crate) const EVICTIONS_MAX: usize = 64;
/// Claims of one user, unless the user is root or runs the daemon.
pub(crate) const CLAIMS_MAX: usize = 32;
/// How long the driver waits for the kernels of a process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time until controllers have released a process.
const RELEASE_MAX_NS: u64 = 10_000_000_000;
/// The time between two tries to restore memory for which there was no room.
const ROOM_RETRY_NS: u64 = 1_000_000_000;
/// The same after any other failure.
const FAILURE_RETRY_NS: u64 = 5_000_000_000;
/// How often the loop looks while something is to be decided.
pub(crate) const LOOK_NS: u64 = 20_000_000;
/// A reading that old still says whether there may be room to restore.
const READING_MAX_NS: u64 = 2_000_000_000;

/// What a client that waited receives.
pub(crate) type LateAnswer = (RequestRef, Result<(), MemoryError>);

#[derive(Debug)]
pub(crate) struct Memory {
    mover: Box<dyn Mover>,
    evictions: BTreeMap<u64, Eviction>,
    claims: BTreeMap<u64, Claim>,
    turns: BTreeMap<String, DeviceTurns>,
    /// Processes that could not be evicted for a turn, and until when none is.
    without_turns: BTreeMap<ProcessKey, u64>,
    rates: Rates,
    /// What dead owners left and was moving when this service looked.
    left: Vec<LeftEviction>,
    /// Processes whose memory a keeper restores.
    kept: Vec<ProcessKey>,
    left_retry_ns: u64,
    /// When the job looked last.
    looked_ns: u64,
    last_id: u64,
    answers: Vec<LateAnswer>,
    /// Processes whose rule or environment claimed memory for them already.
    claimed: BTreeSet<ProcessKey>,
    /// When ends of claims were looked for last.
    swept_ns: u64,
}

impl Memory {
    pub(crate) fn new(mover: Box<dyn Mover>) -> Self {
        Self {
            mover,
            evictions: BTreeMap::new(),
            claims: BTreeMap::new(),
            turns: BTreeMap::new(),
            without_turns: BTreeMap::new(),
            rates: Rates::default(),
            left: Vec::new(),
            kept: Vec::new(),
            left_retry_ns: 0,
            looked_ns: 0,
            last_id: 0,
            answers: Vec::new(),
            claimed: BTreeSet::new(),
            swept_ns: 0,
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// When this job has to look again.
    pub(crate) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let is_busy = self.evictions.values().any(|eviction| !eviction.is_out())
            || self.claims.values().any(|claim| claim.stage == Stage::Making);
        if is_busy {
            return Some(now_ns.saturating_add(LOOK_NS));
        }
        let left = self.has_left().then_some(self.left_retry_ns);
        let waits = self.evictions.values().any(Eviction::may_return);
        let waits = waits.then(|| now_ns.saturating_add(ROOM_RETRY_NS / 4));
        let leases = self.evictions.values().filter_map(|known| known.reasons.asked.next_ns());
        let next = leases.chain(waits).chain(left).chain(self.next_turn_ns()).min();
        next.map(|at_ns| at_ns.max(self.looked_ns.saturating_add(LOOK_NS)))
    }

    /// The eviction of a process or tree.
    pub(crate) fn of(&self, key: ProcessKey) -> Option<(u64, &Eviction)> {
        let found = self.evictions.iter().find(|(_, known)| known.concerns(key));
        found.map(|(id, eviction)| (*id, eviction))
    }

    /// One look at everything. Returns what clients that waited receive.
    pub(crate) fn settle(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) -> Vec<LateAnswer> {
        let mut is_due = now_ns.saturating_sub(self.looked_ns) >= LOOK_NS;
        while let Some(report) = self.mover.poll() {
            self.take_report(report, now_ns, processes, context);
            is_due = true;
        }
        if !is_due
            || self.evictions.is_empty()
                && self.claims.is_empty()
                && !self.has_left()
                && !self.has_turns(processes)
                && !has_rule_claims(processes)
        {
            return std::mem::take(&mut self.answers);
        }
        self.looked_ns = now_ns;
        self.forget_ended(processes);
        self.continue_releases(now_ns, processes, context);
        self.end_leases(now_ns, context);
        self.claim_by_rules(now_ns, processes, context);
        self.settle_claims(now_ns, processes, context);
        self.release_checked(now_ns, processes, context);
        self.settle_turns(now_ns, processes, context);
        self.restore_what_fits(now_ns, processes, context);
        self.adopt_left(now_ns, processes, context);
        std::mem::take(&mut self.answers)
    }

    /// Begins an eviction. Nothing is touched before it was checked.
    fn begin(&mut self, eviction: Eviction, targets: Vec<(EvictTarget, u64)>) -> u64 {
        let id = self.next_id();
        self.evictions.insert(id, eviction);
        self.mover.check(id, targets);
        id
    }

    fn take_report(
        &mut self,
        report: MoverReport,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        match report {
            MoverReport::Checked { id, result } => {
                self.take_check(id, result, now_ns, processes, context);
            }
            MoverReport::Moved(EvictorReport::Step { id, step }) => {
                if let Some(eviction) = self.evictions.get(&id) {
                    let word = format!("{step:?}").to_lowercase();
                    let root = eviction.root;
                    context.telemetry.log.debug(format_args!("{}: {word}", Named(root)));
                }
                if step == Step::Evicted {
                    self.restart_claim_readings();
                }
            }
            MoverReport::Moved(EvictorReport::Evicted { id, bytes, took }) => {
                self.take_evicted(id, (bytes, took), now_ns, processes, context);
            }
            MoverReport::Moved(EvictorReport::EvictFailed { id, sentence, is_undone }) => {
                self.take_failure(id, sentence, is_undone, now_ns, processes, context);
            }
            MoverReport::Moved(EvictorReport::Restored { id, took }) => {
                self.take_restored(id, took, processes, context);
            }
            MoverReport::Moved(EvictorReport::RestoreFailed { id, why }) => {
                self.take_not_restored(id, &why, now_ns, context);
            }
            MoverReport::Moved(EvictorReport::Gone { id }) => self.forget(id, processes, context),
        }
    }

    fn take_check(
        &mut self,
        id: u64,
        result: Result<(), String>,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let Some(eviction) = self.evictions.get_mut(&id) else { return };
        if let Err(sentence) = result {
            let Some(eviction) = self.evictions.remove(&id) else { return };
            self.note_refusal(&eviction, &sentence, now_ns, context);
            self.refuse(&eviction, &MemoryError::Refused(sentence));
            return;
        }
        eviction.phase = Phase::Ready;
        self.release_checked(now_ns, processes, context);
    }

    /// Has processes leave the scheduler that can be evicted. If several are evicted for one claim,
    /// none leaves before all were checked.
    fn release_checked(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let is_ready = |known: &Eviction| known.phase == Phase::Ready;
        let ready = self.evictions.iter().filter(|(_, known)| is_ready(known));
        for id in ready.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(eviction) = self.evictions.get(&id) else { continue };
            let is_unchecked = |other: &Eviction| {
                other.phase == Phase::Checking
                    && !other.reasons.room.is_disjoint(&eviction.reasons.room)
            };
            if self.evictions.values().any(is_unchecked) {
                continue;
            }
            // What it was wanted for may be over already.
            if eviction.reasons.is_empty() {
                let Some(eviction) = self.evictions.remove(&id) else { continue };
                self.answer_all(&eviction.asked_back, Ok(()));
                let why = "it is not wanted any more".to_owned();
                self.refuse(&eviction, &MemoryError::Failed { key: eviction.root, why });
                continue;
            }
            let (members, bytes) = (eviction.members.clone(), eviction.bytes);
            if let Some(eviction) = self.evictions.get_mut(&id) {
                eviction.phase = Phase::Releasing { since_ns: now_ns };
            }
            let took_ns = self.rates.time_out_ns(bytes);
            for key in members {
                processes.table.set_away(key, true);
                processes.apply(key, context);
                processes.tell_of(key, EventKind::Evicting, took_ns, context.telemetry);
            }
        }
    }

    /// Moves the memory of processes that their controllers have released.
    fn continue_releases(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let undo_log = context.recovery.undo_log();
        let mut late = Vec::new();
        for (id, eviction) in &mut self.evictions {
            let Phase::Releasing { since_ns } = eviction.phase else { continue };
            if eviction.members.iter().all(|key| undo_log.is_unchanged(*key)) {
                let targets = eviction.members.iter().filter_map(|key| {
                    Some(EvictTarget { key: *key, device: processes.evict_device(*key, context)? })
                });
                let targets = targets.collect();
                eviction.phase = Phase::MovingOut { since_ns: now_ns };
                self.mover.evict(EvictJob {
                    id: *id,
                    processes: targets,
                    lock_timeout: LOCK_TIMEOUT,
                });
            } else if now_ns.saturating_sub(since_ns) >= RELEASE_MAX_NS {
                late.push(*id);
            }
        }
        for id in late {
            let why = "its GPU settings could not be restored in time".to_owned();
            self.take_failure(id, why, true, now_ns, processes, context);
        }
    }

    fn take_evicted(
        &mut self,
        id: u64,
        (bytes, took): (u64, Duration),
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let Some(eviction) = self.evictions.get_mut(&id) else { return };
        eviction.bytes = eviction.bytes.max(bytes);
        eviction.phase = Phase::Out { retry_ns: now_ns, waits: None };
        eviction.begin_lease(now_ns);
        let eviction = eviction.clone();
        self.rates.note_out(eviction.bytes, took);
        let took_ns = nanos(took);
        let why = self.why(&eviction);
        for key in &eviction.members {
            if let Some(process) = processes.table.get_mut(*key) {
                process.evictions += 1;
            }
            processes.tell_of(*key, EventKind::Evicted, took_ns, context.telemetry);
        }
        context.telemetry.log.info(format_args!(
            "{} is evicted {why}: {} moved to the host in {:.1} s",
            Named(eviction.root),
            memory(eviction.bytes / 1_024),
            took.as_secs_f64()
        ));
        if let Some(known) = self.evictions.get_mut(&id) {
            known.asked_out.clear();
        }
        self.answer_all(&eviction.asked_out, Ok(()));
        self.restart_claim_readings();
    }

    /// An eviction did not succeed.
    fn take_failure(
        &mut self,
        id: u64,
        sentence: String,
        is_undone: bool,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let Some(mut eviction) = self.evictions.remove(&id) else { return };
        self.note_refusal(&eviction, &sentence, now_ns, context);
        let error = MemoryError::Failed { key: eviction.root, why: sentence };
        context.telemetry.log.warn(&error);
        self.refuse(&eviction, &error);
        if is_undone {
            self.answer_all(&eviction.asked_back, Ok(()));
            take_back(&eviction.members, processes, context);
        } else {
            eviction.asked_out.clear();
            eviction.reasons = Reasons::default();
            let retry_ns = now_ns.saturating_add(FAILURE_RETRY_NS);
            eviction.phase = Phase::Out { retry_ns, waits: Some(error.to_string()) };
            self.evictions.insert(id, eviction);
        }
    }

    fn take_restored(
        &mut self,
        id: u64,
        took: Duration,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let Some(eviction) = self.evictions.remove(&id) else { return };
        self.rates.note_back(eviction.bytes, took);
        context.telemetry.log.info(format_args!(
            "{} is restored: {} moved to the GPU in {:.1} s",
            Named(eviction.root),
            memory(eviction.bytes / 1_024),
            took.as_secs_f64()
        ));
        take_back(&eviction.members, processes, context);
        for key in &eviction.members {
            processes.tell_of(*key, EventKind::Restored, nanos(took), context.telemetry);
        }
        self.answer_all(&eviction.asked_back, Ok(()));
        if !eviction.reasons.is_empty() {
            // Evicted anew, since it was asked for while the memory moved back.
            self.evict_again(eviction, processes, context);
        }
    }

    fn evict_again(&mut self, eviction: Eviction, processes: &Processes, context: &Context<'_>) {
        let share = eviction.bytes / u64::try_from(eviction.members.len().max(1)).unwrap_or(1);
        let target = |key: &ProcessKey| {
            let device = processes.evict_device(*key, context)?;
            Some((EvictTarget { key: *key, device }, share))
        };
        let targets = eviction.members.iter().filter_map(target).collect();
        self.begin(
            Eviction { phase: Phase::Checking, asked_back: Vec::new(), ..eviction },
            targets,
        );
    }

    fn take_not_restored(
        &mut self,
        id: u64,
        why: &NotRestored,
        now_ns: u64,
        context: &mut Context<'_>,
    ) {
        let Some(eviction) = self.evictions.get_mut(&id) else { return };
        let (waits, retry_ns) = match why {
            NotRestored::NoRoom { needed, free } => {
                (waits_for_room(*needed, *free, &eviction.gpu), ROOM_RETRY_NS)
            }
            NotRestored::Other(sentence) => {
                let root = eviction.root;
                context.telemetry.problem(&format!(
                    "{} cannot be restored: {sentence}; trying again",
                    Named(root)
                ));
                (sentence.clone(), FAILURE_RETRY_NS)
            }
        };
        let retry_ns = now_ns.saturating_add(retry_ns);
        eviction.phase = Phase::Out { retry_ns, waits: Some(waits) };
    }

    /// Restores evictions without a reason, the highest priority first, as far as there is room.
    fn restore_what_fits(
        &mut self,
        now_ns: u64,
        processes: &mut Processes,
        context: &mut Context<'_>,
    ) {
        let returns = |(id, known): (&u64, &Eviction)| known.may_return().then_some(*id);
        let waiting: Vec<u64> = self.evictions.iter().filter_map(returns).collect();
        if waiting.is_empty() {
            return;
        }
        let (now, short) = {
            let waiting: Vec<(u64, &Eviction)> =
                waiting.iter().filter_map(|id| Some((*id, self.evictions.get(id)?))).collect();
            restorable(&waiting, now_ns, |eviction| {
                let device = device_memory(&eviction.gpu, now_ns, context)?;
                let kept = self.kept_from(eviction, processes, context, now_ns);
                let moving = self.moving_back(&eviction.gpu);
                Some(device.free().saturating_sub(kept).saturating_sub(moving))
            })
        };
        for (id, free) in short {
            let Some(eviction) = self.evictions.get_mut(&id) else { continue };
            let text = waits_for_room(eviction.bytes, free, &eviction.gpu);
            if let Phase::Out { waits, .. } = &mut eviction.phase
                && waits.as_ref() != Some(&text)
            {
                if waits.is_none() {
                    let root = eviction.root;
                    context.telemetry.log.info(format_args!("{} waits: {text}", Named(root)));
                }
                *waits = Some(text);
            }
        }
        for id in now {
            let Some(eviction) = self.evictions.get_mut(&id) else { continue };
            eviction.phase = Phase::MovingBack { since_ns: now_ns };
            let took_ns = self.rates.time_back_ns(eviction.bytes);
            for key in &eviction.members {
                processes.tell_of(*key, EventKind::Restoring, took_ns, context.telemetry);
            }
            self.mover.restore(id);
        }
    }

    /// Bytes that move back to a device now: a reading may not contain them yet.
    fn moving_back(&self, gpu: &str) -> u64 {
        let moves =
            |known: &&Eviction| known.gpu == gpu && matches!(known.phase, Phase::MovingBack { .. });
        self.evictions.values().filter(moves).map(|known| known.bytes).sum()
    }

    fn end_leases(&mut self, now_ns: u64, context: &mut Context<'_>) {
        for eviction in self.evictions.values_mut() {
            if eviction.reasons.end_leases(now_ns) {
                let root = eviction.root;
                context.telemetry.log.info(format_args!("{}: its lease has ended", Named(root)));
            }
        }
    }

    /// Forgets members that have ended, and evictions without one of which nothing moves.
    fn forget_ended(&mut self, processes: &Processes) {
        let mut over = Vec::new();
        for (id, eviction) in &mut self.evictions {
            if eviction.is_planned() || matches!(eviction.phase, Phase::Releasing { .. }) {
                eviction.members.retain(|key| processes.table.get(*key).is_some());
                if eviction.members.is_empty() {
                    over.push(*id);
                }
            }
        }
        for id in over {
            if let Some(eviction) = self.evictions.remove(&id) {
                self.refuse(&eviction, &MemoryError::Ended(eviction.root));
            }
        }
    }

    /// All processes of an eviction have ended.
    fn forget(&mut self, id: u64, processes: &mut Processes, context: &mut Context<'_>) {
        let Some(eviction) = self.evictions.remove(&id) else { return };
        self.refuse(&eviction, &MemoryError::Ended(eviction.root));
        self.answer_all(&eviction.asked_back, Err(&MemoryError::Ended(eviction.root)));
        take_back(&eviction.members, processes, context);
    }

    fn refuse(&mut self, eviction: &Eviction, error: &MemoryError) {
        self.answer_all(&eviction.asked_out, Err(error));
    }

    fn answer_all(&mut self, asked: &[RequestRef], result: Result<(), &MemoryError>) {
        let answers = asked.iter().map(|asked| (*asked, result.map_err(Clone::clone)));
        self.answers.extend(answers);
    }

    /// Why an eviction is in force, to follow "evicted".
    fn why(&self, eviction: &Eviction) -> String {
        let reasons = &eviction.reasons;
        if let Some(asked) = reasons.asked.admin.or(reasons.asked.owner) {
            return match asked.uid {
                0 => "by root".to_owned(),
                uid => format!("by uid {uid}"),
            };
        }
        let claim = reasons.room.iter().find_map(|id| self.claims.get(id));
        match claim {
            Some(claim) => format!("to make room for {} ({})", claim.name, claim.key.pid),
            None if reasons.turn => "while others have their turn".to_owned(),
            None => "until there is room".to_owned(),
        }
    }
}

/// Has processes scheduled again whose memory is back.
fn take_back(members: &[ProcessKey], processes: &mut Processes, context: &mut Context<'_>) {
    for key in members {
        processes.table.set_away(*key, false);
        // What was in its way may have been the record of its eviction.
        if let Some(process) = processes.table.get_mut(*key) {
            process.obstacle = None;
        }
        processes.apply(*key, context);
    }
}

fn waits_for_room(needed: u64, free: u64, gpu: &str) -> String {
    let [needed, free] = [needed, free].map(|bytes| memory(bytes / 1_024));
    format!("{needed} are needed and {free} are free on GPU {gpu}")
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The memory of a device, as it was read not long ago. None if it is not known.
fn device_memory(gpu: &str, now_ns: u64, context: &Context<'_>) -> Option<DeviceMemory> {
    let gauges = &context.devices.backends.gauges;
    let since = instant(now_ns.saturating_sub(READING_MAX_NS));
    gauges.since(since).and_then(|readings| memory_in(&readings, gpu))
}

fn memory_in(readings: &super::telemetry::gauges::Readings, gpu: &str) -> Option<DeviceMemory> {
    let facts = &readings.devices.get(gpu)?.facts;
    let (total, used) = (facts.memory_total_kib?, facts.memory_used_kib?);
    Some(DeviceMemory { total: total.saturating_mul(1_024), used: used.saturating_mul(1_024) })
}

/// The priority of a process, evicted or not. None for one that is not scheduled.
fn priority_of(process: &super::processes::process_table::TrackedProcess) -> Option<Priority> {
    process.wanted_attr().map(|attr| attr.priority)
}
