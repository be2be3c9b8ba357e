//! Requests of clients: evict, restore, make room. They are answered when memory has moved.

use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_device::eviction::{EvictDevice, EvictTarget};
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::process::Process;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::{EvictScope, Request};

use super::claims::{Claim, Stage, bytes_of};
use super::errors::MemoryError;
use super::eviction::{Eviction, PENDING_NS, Phase, Reasons};
use super::{EVICTIONS_MAX, Memory, priority_of};
use crate::service::clients::Requester;
use crate::service::clients::pending_answers::RequestRef;
use crate::service::clients::permission::{Caller, Operation, Target};
use crate::service::clients::request_error::RequestError;
use crate::service::devices::Devices;
use crate::service::processes::changes::LEASE_MS_MAX;
use crate::service::processes::client_settings::{Layers, Suspension};
use crate::service::processes::process_table::TrackedProcess;
use crate::service::processes::{Context, Named, Processes};
use crate::service::{Service, instant};

/// Clients that may wait for one eviction.
const WAITERS_MAX: usize = 16;

/// What an eviction was asked for with.
struct Asked {
    caller: Caller,
    by: RequestRef,
    lease_ms: u32,
    now_ns: u64,
}

impl Processes {
    /// The device of a process that uses no other one, as far as is known.
    pub(crate) fn only_gpu(&self, process: &TrackedProcess, devices: &Devices) -> Option<String> {
        let task = process.applied.map(|applied| applied.task);
        let of_queues = task.map(|task| devices.devices_of(task)).unwrap_or_default();
        let of_queues = of_queues.into_iter().filter_map(|device| devices.backends.uuid(device));
        let mut all: Vec<String> = process.gpus.iter().cloned().chain(of_queues).collect();
        all.sort_unstable();
        all.dedup();
        let [only] = <[String; 1]>::try_from(all).ok()?;
        Some(only)
    }

    /// Through which driver the memory of a process moves.
    pub(crate) fn evict_device(
        &self,
        key: ProcessKey,
        context: &Context<'_>,
    ) -> Option<EvictDevice> {
        let process = self.table.get(key)?;
        let mut controllers = process.controllers.iter();
        let device = context.devices.backends.evict_device(*controllers.next()?)?;
        controllers.next().is_none().then_some(device)
    }

    /// The processes that an eviction is about, all of which the caller may evict.
    fn evicted_by(
        &self,
        (key, scope): (ProcessKey, EvictScope),
        caller: Caller,
        context: &Context<'_>,
    ) -> Result<Vec<ProcessKey>, RequestError> {
        let members: Vec<ProcessKey> = match scope {
            EvictScope::Process => vec![self.controllable(key, context)?.key],
            EvictScope::Tree => {
                let is_in = |process: &&TrackedProcess| process.lineage.contains(&key);
                self.table.iter().filter(is_in).map(|process| process.key).collect()
            }
        };
        if members.is_empty() {
            return Err(MemoryError::EmptyTree(key).into());
        }
        for key in &members {
            let process = self.controllable(*key, context)?;
            caller.check(Operation::Evict, &process.target(self.rules.default_priority()))?;
        }
        if let Some(display) = context.facts.find_display(members.iter().copied())? {
            return Err(RequestError::DrivesDisplay(display));
        }
        Ok(members)
    }

    /// The device of all processes, and what they have there.
    fn targets(
        &self,
        root: ProcessKey,
        members: &[ProcessKey],
        now_ns: u64,
        context: &Context<'_>,
    ) -> Result<(String, Vec<(EvictTarget, u64)>), MemoryError> {
        let readings = context.devices.backends.gauges.latest(instant(now_ns));
        let (mut gpus, mut targets) = (Vec::new(), Vec::new());
        for key in members {
            let Some(process) = self.table.get(*key) else { continue };
            let count = process.gpus.len();
            let gpu = self.only_gpu(process, context.devices);
            gpus.push(gpu.ok_or(match count {
                0 | 1 => MemoryError::NoGpu(*key),
                _ => MemoryError::SeveralGpus { key: *key, count },
            })?);
            let has_controller = !process.controllers.is_empty();
            let device = self.evict_device(*key, context).ok_or(match has_controller {
                true => MemoryError::Amd(*key),
                false => MemoryError::NoGpu(*key),
            })?;
            targets.push((EvictTarget { key: *key, device }, bytes_of(*key, &readings)));
        }
        gpus.sort_unstable();
        gpus.dedup();
        match <[String; 1]>::try_from(gpus) {
            Ok([gpu]) => Ok((gpu, targets)),
            Err(gpus) => Err(MemoryError::SeveralGpus { key: root, count: gpus.len() }),
        }
    }
}

impl Memory {
    /// Evicts processes for a user. The client is answered when the memory is out; false if it is.
    fn evict(
        &mut self,
        (root, members): (ProcessKey, Vec<ProcessKey>),
        asked: &Asked,
        processes: &Processes,
        context: &Context<'_>,
    ) -> Result<bool, MemoryError> {
        let lease_ns = u64::from(asked.lease_ms).saturating_mul(1_000_000);
        let lease_ns = Some(lease_ns).filter(|lease| *lease > 0);
        let until_ns = if lease_ns.is_some() { PENDING_NS } else { u64::MAX };
        let suspension = Suspension { until_ns, uid: asked.caller.uid() };
        let by_admin = asked.caller.is_admin();
        let known = members.iter().find_map(|key| self.of(*key)).map(|(id, _)| id);
        if let Some(id) = known {
            return self.join(id, (root, &members), (suspension, lease_ns), asked);
        }
        let is_own = |known: &&Eviction| {
            let [admin, owner] = [known.reasons.asked.admin, known.reasons.asked.owner];
            [admin, owner].into_iter().flatten().any(|asked_by| asked_by.uid == suspension.uid)
        };
        let own = self.evictions.values().filter(is_own).count();
        if own >= EVICTIONS_MAX && !context.reads.is_trusted(suspension.uid) {
            return Err(MemoryError::TooManyEvictions(suspension.uid));
        }
        let (gpu, targets) = processes.targets(root, &members, asked.now_ns, context)?;
        let priorities = members.iter().filter_map(|key| priority_of(processes.table.get(*key)?));
        let priority = priorities.max().unwrap_or(Priority::DEFAULT);
        let bytes = targets.iter().map(|(_, bytes)| *bytes).sum();
        let asked_for = Layers::of(suspension, by_admin);
        let eviction = Eviction {
            root,
            members,
            gpu,
            priority,
            bytes,
            phase: Phase::Checking,
            reasons: Reasons { asked: asked_for, ..Reasons::default() },
            lease_ns,
            asked_out: vec![asked.by],
            asked_back: Vec::new(),
        };
        self.begin(eviction, targets);
        Ok(true)
    }

    /// Adds what a user asks for to an eviction that is in force for another reason.
    fn join(
        &mut self,
        id: u64,
        (root, members): (ProcessKey, &[ProcessKey]),
        (suspension, lease_ns): (Suspension, Option<u64>),
        asked: &Asked,
    ) -> Result<bool, MemoryError> {
        let Some(known) = self.evictions.get(&id) else { return Ok(false) };
        let key = members.iter().copied().find(|key| known.concerns(*key)).unwrap_or(root);
        let mut layers = known.reasons.asked;
        // A user who asks again for some time renews the lease.
        let before = *layers.layer(asked.caller.is_admin());
        let is_renewal = known.is_out()
            && lease_ns.is_some()
            && before.is_some_and(|own| own.uid == suspension.uid && own.until_ns < PENDING_NS);
        if (before.is_some() && !is_renewal) || known.members != members {
            return Err(MemoryError::Already { key, why: self.why(known) });
        }
        if matches!(known.phase, Phase::MovingBack { .. }) || known.asked_out.len() >= WAITERS_MAX {
            return Err(MemoryError::Moving(key));
        }
        *layers.layer(asked.caller.is_admin()) = Some(suspension);
        let is_out = known.is_out();
        let Some(known) = self.evictions.get_mut(&id) else { return Ok(false) };
        known.reasons.asked = layers;
        known.lease_ns = lease_ns;
        if is_out {
            known.begin_lease(asked.now_ns);
        } else {
            known.asked_out.push(asked.by);
        }
        Ok(!is_out)
    }

    /// The administrator that evicted a process.
    pub(crate) fn evicted_by(&self, key: ProcessKey) -> Option<u32> {
        self.of(key)?.1.reasons.asked.admin.map(|asked| asked.uid)
    }

    /// Ends what a user asked for. The client is answered when the memory is back.
    fn restore(
        &mut self,
        key: ProcessKey,
        by_admin: bool,
        asked: RequestRef,
    ) -> Result<(), MemoryError> {
        let Some((id, known)) = self.of(key) else { return Err(MemoryError::NotEvicted(key)) };
        let others = Reasons { asked: Layers::default(), ..known.reasons.clone() };
        if !others.is_empty() {
            let held = Eviction { reasons: others, ..known.clone() };
            return Err(MemoryError::HeldOut { key, why: self.why(&held) });
        }
        if known.asked_back.len() >= WAITERS_MAX {
            return Err(MemoryError::Moving(key));
        }
        if let Some(known) = self.evictions.get_mut(&id) {
            known.reasons.asked.end(by_admin);
            known.asked_back.push(asked);
        }
        Ok(())
    }

    /// Ends what users asked for, as far as the caller may.
    pub(crate) fn end_asked(&mut self, caller: Caller, processes: &Processes) {
        for eviction in self.evictions.values_mut() {
            let may_touch = |key: &ProcessKey| {
                let process = processes.table.get(*key);
                process.is_none_or(|process| caller.may_touch(process.labels.uid))
            };
            if eviction.members.iter().all(may_touch) {
                eviction.reasons.asked.end(caller.is_admin());
            }
        }
    }

    /// A detached process returns, whatever it was evicted for.
    pub(crate) fn end_all_for(&mut self, key: ProcessKey) {
        for eviction in self.evictions.values_mut().filter(|known| known.concerns(key)) {
            eviction.reasons = Reasons::default();
        }
    }
}

impl Service {
    /// Serves requests that concern memory. Returns whether the client is answered later.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller answers the other requests")]
    pub(crate) fn answer_about_memory(
        &mut self,
        by: (Requester, RequestRef),
        body: &Request,
        now_ns: u64,
    ) -> Result<bool, RequestError> {
        match *body {
            Request::Evict { process, lease_ms, scope } => {
                self.evict(by, process, (lease_ms, scope), now_ns)
            }
            Request::Restore { process } => self.restore(by, process).map(|()| true),
            Request::MakeRoom { process, bytes, device } => {
                self.make_room(by, process, (bytes, device), now_ns)
            }
            Request::Detach { process } => {
                let (memory, processes, mut context) = self.memory_and_context();
                let evicted_by = |key| memory.evicted_by(key);
                let key = processes.detach(by.0, process, evicted_by, &mut context)?;
                memory.end_all_for(key);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Evicts a process or a tree. Returns whether the client is answered later.
    fn evict(
        &mut self,
        (requester, by): (Requester, RequestRef),
        process: Process,
        (lease_ms, scope): (u32, EvictScope),
        now_ns: u64,
    ) -> Result<bool, RequestError> {
        if lease_ms > LEASE_MS_MAX {
            return Err(RequestError::LeaseTooLong(lease_ms));
        }
        let caller = requester.caller;
        let (memory, processes, context) = self.memory_and_context();
        let info = processes.resolve(requester, process)?;
        let members = processes.evicted_by((info.key, scope), caller, &context)?;
        context.recovery.check_journal(|| Named(info.key).to_string())?;
        let asked = Asked { caller, by, lease_ms, now_ns };
        Ok(memory.evict((info.key, members), &asked, processes, &context)?)
    }

    fn restore(
        &mut self,
        (requester, by): (Requester, RequestRef),
        process: Process,
    ) -> Result<(), RequestError> {
        let (memory, processes, context) = self.memory_and_context();
        let info = processes.resolve(requester, process)?;
        let target = processes.target(&info, context.devices);
        let target = Target { evicted_by: memory.evicted_by(info.key), ..target };
        requester.caller.check(Operation::Restore, &target)?;
        Ok(memory.restore(info.key, requester.caller.is_admin(), by)?)
    }

    /// Claims memory for a process. Returns whether the client is answered later.
    fn make_room(
        &mut self,
        (requester, by): (Requester, RequestRef),
        process: Process,
        (bytes, device): (u64, Option<u32>),
        now_ns: u64,
    ) -> Result<bool, RequestError> {
        let (memory, processes, context) = self.memory_and_context();
        let info = processes.resolve(requester, process)?;
        let target = processes.target(&info, context.devices);
        requester.caller.check(Operation::MakeRoom, &target)?;
        if bytes == 0 {
            memory.end_claim(info.key);
            return Ok(false);
        }
        let backends = &context.devices.backends;
        let named = match device {
            Some(number) => {
                let uuid = backends.uuid(DeviceId(number));
                Some(uuid.ok_or(MemoryError::NoSuchDevice(number))?)
            }
            None => None,
        };
        let claimant = processes.claimant(&info, &context)?;
        let first = || backends.devices().into_iter().next().map(|(_, device)| device.uuid);
        let gpu = named.or(claimant.gpu).or_else(first).ok_or(MemoryError::NoDevice)?;
        let claim = Claim {
            key: info.key,
            name: info.name,
            uid: info.uid,
            priority: claimant.priority,
            is_evictable: claimant.is_evictable,
            bytes,
            gpu,
            asked: Some(by),
            since_ns: now_ns,
            stage: Stage::Making,
            fresh_ns: None,
            excluded: Default::default(),
            used_ns: now_ns,
        };
        memory.claim(claim, context.reads.is_trusted(info.uid))?;
        Ok(true)
    }

    /// Lets memory move, and answers clients that waited for it.
    pub(crate) fn settle_memory(&mut self, now_ns: u64) {
        let sessions = &self.clients.sessions;
        self.memory.end_abandoned(|session| sessions.uid_of(session).is_some());
        let (memory, processes, mut context) = self.memory_and_context();
        for (asked, result) in memory.settle(now_ns, processes, &mut context) {
            let reply = match result {
                Ok(()) => Reply::Ok,
                Err(error) => Reply::Refused(RequestError::from(error).to_wire()),
            };
            self.reply(asked, reply);
        }
    }
}
