//! Requests that change a process: register, set, suspend, resume, detach.
//!
//! Every request passes [`Processes::resolve`], which checks that the process lives and that the
//! caller may change it. A request that needs to know what the process controls, such as its open
//! files, fails with [`RequestError::NotRead`] and is served again when a thread has read that.

use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_device::process::{ProcessInfo, ProcessKey, lineage};
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;

use super::client_settings::{Layers, SchedOverride, Suspension};
use super::inspection::{Question, Unread};
use super::process_table::TrackedProcess;
use super::registrations::{ANCESTORS_MAX, Registration};
use super::{Context, Named, Processes, Rules};
use crate::assignment::{SettingSource, open_to_all};
use crate::bounds::Bounds;
use crate::rule::AttrSettings;
use crate::service::clients::Requester;
use crate::service::clients::pending_answers::{OFF_MAX_NS, PendingSuspension, RequestRef};
use crate::service::clients::permission::{Caller, Operation, Target};
use crate::service::clients::request_error::RequestError;
use crate::service::devices::Devices;

/// A process that claims memory.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    pub(crate) priority: Priority,
    pub(crate) is_evictable: bool,
    pub(crate) gpu: Option<String>,
}

/// The longest lease of a suspension: a day. A client can renew it.
pub(crate) const LEASE_MS_MAX: u32 = 86_400_000;
/// Leases are whole milliseconds: one that is renewed up to the same moment may end this much
/// earlier, with the time that the request takes.
const RENEWAL_SLACK_NS: u64 = 10_000_000;

impl Processes {
    /// The process that a request names, if it lives and the caller may change it.
    pub(crate) fn resolve(
        &self,
        requester: Requester,
        process: Process,
    ) -> Result<ProcessInfo, RequestError> {
        let (pid, start_ticks) = if process == Process::SENDER {
            let sender = requester.process.ok_or(RequestError::SenderEnded)?;
            (sender.pid, sender.start_ticks)
        } else {
            (process.pid(), process.start_ticks())
        };
        let info = ProcessInfo::read(pid)?;
        if info.zombie || (start_ticks != 0 && info.key.start_ticks != start_ticks) {
            return Err(RequestError::ReplacedProcess(pid));
        }
        requester.caller.check_touch(pid, info.uid)?;
        if self.awaits(info.key) {
            return Err(RequestError::NotRead(Unread(Question::Rules(info.key))));
        }
        Ok(info)
    }

    pub(crate) fn register(
        &mut self,
        requester: Requester,
        process: Process,
        change: SchedAttrChange,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let info = self.resolve(requester, process)?;
        let (caller, key) = (requester.caller, info.key);
        check_limits(&change)?;
        if self.table.get(key).is_some() {
            self.override_attr(caller, &info, change, context)?;
        } else {
            caller.check(Operation::Change(change), &self.untracked_target(&info))?;
        }
        if !self.registrations.has_room(key, caller.uid(), caller.is_admin()) {
            return Err(RequestError::TooManyRegistrations);
        }
        self.add_registration(caller, &info, change, context);
        Ok(())
    }

    /// What is known of a process that uses no device. Rules bind it when it does.
    fn untracked_target(&self, info: &ProcessInfo) -> Target {
        let open = open_to_all(self.rules.default_priority());
        let target = Target::undecided(info.key, info.uid, open);
        let (saved, suspensions) = self.saved.layers_of(info.key);
        let lineage: Vec<ProcessKey> = lineage(info.key.pid).take(1 + ANCESTORS_MAX).collect();
        let overrides = saved.or(self.registrations.find(&lineage, info.uid));
        let by_admin = overrides.admin.map(|admin| SettingSource::Administrator(admin.uid));
        Target {
            bounds: overrides.bounds(Bounds::default()),
            scheduled_by: by_admin,
            suspended_by: suspensions.admin.map(|suspension| suspension.uid),
            ..target
        }
    }

    /// What permissions for a process depend on.
    pub(crate) fn target(&self, info: &ProcessInfo, devices: &Devices) -> Target {
        let Some(process) = self.table.get(info.key) else { return self.untracked_target(info) };
        let target = process.target(self.rules.default_priority());
        let of_queues = || devices.suspended_by_admin(&self.table, info.key);
        Target { uid: info.uid, suspended_by: target.suspended_by.or_else(of_queues), ..target }
    }

    /// What a claim to memory depends on. What the rules give a process that uses no device is
    /// read first.
    pub(crate) fn claimant(
        &self,
        info: &ProcessInfo,
        context: &Context<'_>,
    ) -> Result<Claimant, RequestError> {
        let of = |process: &TrackedProcess, gpu: Option<String>| {
            let priority = process.wanted_attr().map_or(Priority::DEFAULT, |attr| attr.priority);
            Claimant { priority, is_evictable: process.is_evictable(), gpu }
        };
        if let Some(process) = self.table.get(info.key) {
            self.controllable(info.key, context)?;
            return Ok(of(process, self.only_gpu(process, context.devices)));
        }
        let read = context.facts.claimant(info.key)?;
        let assigned = (read.labels.clone(), read.assignment.clone());
        let mut process = TrackedProcess::new(info.key, assigned, 0, (None, 0));
        let (saved, _) = self.saved.layers_of(info.key);
        process.overrides = saved.or(self.registrations.find(&read.lineage, info.uid));
        if process.is_ignored() {
            return Err(RequestError::IgnoredByRule { key: info.key, why: process.why() });
        }
        Ok(of(&process, read.gpus.first().cloned()))
    }

    fn add_registration(
        &mut self,
        caller: Caller,
        info: &ProcessInfo,
        change: SchedAttrChange,
        context: &Context<'_>,
    ) {
        let (mut saved, _) = self.saved.layers_of(info.key);
        saved.add(caller, change);
        self.saved.replace_overrides(info.key, saved);
        if let Some(known) = self.registrations.get_mut(info.key) {
            known.overrides.add(caller, change);
            return;
        }
        let overrides = SchedOverride { change, uid: caller.uid() };
        let overrides = Layers::of(overrides, caller.is_admin());
        let (pidfd, watch) = self.watch(info.key, context.poller);
        let registration = Registration { overrides, uid: info.uid, pidfd, watch };
        self.registrations.insert(info.key, registration);
    }

    pub(crate) fn set(
        &mut self,
        requester: Requester,
        process: Process,
        change: SchedAttrChange,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let info = self.resolve(requester, process)?;
        check_limits(&change)?;
        let is_tracked = self.table.get(info.key).is_some();
        if !is_tracked
            && self.rules.private.is_some()
            && context.facts.of(info.key)?.on_nvidia.is_ok()
        {
            self.rules.check_display(info.key, context.facts)?;
            Rules::check_mps(info.key, &change, context.facts)?;
            self.add_registration(requester.caller, &info, change, context);
            return Ok(());
        }
        self.override_attr(requester.caller, &info, change, context)
    }

    /// Changes the attributes of a process that uses a device.
    fn override_attr(
        &mut self,
        caller: Caller,
        info: &ProcessInfo,
        change: SchedAttrChange,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let key = info.key;
        self.controllable(key, context)?;
        caller.check(Operation::Change(change), &self.target(info, context.devices))?;
        self.rules.check_display(key, context.facts)?;
        Rules::check_mps(key, &change, context.facts)?;
        let Some(process) = self.table.get_mut(key) else { return Ok(()) };
        process.overrides.add(caller, change);
        process.is_detached = false;
        process.obstacle = None;
        self.apply(key, context);
        let Some(process) = self.table.get(key) else { return Ok(()) };
        let why = process.why();
        context.telemetry.log.info(format_args!("{}: {why}", Named(key)));
        check_obstacle(process)
    }

    /// A process that uses a device and that no rule excludes.
    pub(crate) fn controllable(
        &self,
        key: ProcessKey,
        context: &Context<'_>,
    ) -> Result<&TrackedProcess, RequestError> {
        let Some(process) = self.table.get(key) else {
            let Some(private) = self.rules.private else {
                return Err(RequestError::NotOnGpu(key));
            };
            let (facts, kinds) = (context.facts.of(key)?, context.devices.backends.kinds());
            return Err(private.explain_untracked(key, &facts.on_nvidia, &kinds));
        };
        if process.is_ignored() {
            return Err(RequestError::IgnoredByRule { key, why: process.why() });
        }
        Ok(process)
    }

    /// Suspends a process. Returns `None` if it is off its devices already; otherwise the client is
    /// answered later ([`crate::service::clients::pending_answers`]).
    pub(crate) fn suspend(
        &mut self,
        (requester, asked): (Requester, RequestRef),
        process: Process,
        (lease_ms, now_ns): (u32, u64),
        context: &mut Context<'_>,
    ) -> Result<Option<PendingSuspension>, RequestError> {
        let caller = requester.caller;
        let info = self.resolve(requester, process)?;
        caller.check(Operation::Suspend, &self.target(&info, context.devices))?;
        let key = info.key;
        if lease_ms > LEASE_MS_MAX {
            return Err(RequestError::LeaseTooLong(lease_ms));
        }
        self.controllable(key, context)?;
        if context.facts.of(key)?.drives_display {
            return Err(RequestError::DrivesDisplay(key));
        }
        let admitted = self.schedule_all_queues(key, caller, context)?;
        let is_off = admitted.is_empty() && self.is_off_its_devices(key, context.devices);
        if !is_off {
            context.recovery.check_journal(|| Named(key).to_string())?;
        }
        let Some(process) = self.table.get_mut(key) else { return Ok(None) };
        let lease_ns = u64::from(lease_ms).saturating_mul(1_000_000);
        // The lease begins when the process is off, so it cannot end before that is known.
        let pending_ns = if is_off { 0 } else { OFF_MAX_NS };
        let until_ns = now_ns.saturating_add(pending_ns).saturating_add(lease_ns);
        let by_admin = caller.is_admin();
        let suspension = Suspension { until_ns, uid: caller.uid() };
        let before = process.suspensions.layer(by_admin).replace(suspension);
        let before_ns = before.map(|before| before.until_ns);
        process.obstacle = None;
        self.apply(key, context);
        if let Some(process) = self.table.get(key) {
            check_obstacle(process)?;
        }
        self.check_limit(key, by_admin, context)?;
        let is_renewal =
            before_ns.is_some_and(|before| before <= until_ns.saturating_add(RENEWAL_SLACK_NS));
        let shortened = before_ns.filter(|_| !is_renewal).map_or(String::new(), |before| {
            let left_ms = before.saturating_sub(now_ns) / 1_000_000;
            format!("; its earlier suspension had {left_ms} ms left")
        });
        let line = format!("{} is suspended for {lease_ms} ms{shortened}", Named(key));
        let since = std::time::Instant::now();
        let known = self.queues_of(key, context.devices);
        let queues = known.iter().map(|view| view.queue).chain(admitted).collect();
        let pending = PendingSuspension {
            asked,
            key,
            since,
            line,
            until_ns,
            lease_ns,
            by_admin,
            before,
            queues,
        };
        // The renewal of a lease is not reported.
        match (is_off, is_renewal) {
            (true, true) => context.telemetry.log.debug(&pending.line),
            (true, false) => self.announce_suspension(&pending, context.telemetry),
            (false, _) => return Ok(Some(pending)),
        }
        Ok(None)
    }

    /// Has all queues of a process scheduled, so that a suspension concerns all of them. Returns
    /// those that were not.
    fn schedule_all_queues(
        &self,
        key: ProcessKey,
        caller: Caller,
        context: &mut Context<'_>,
    ) -> Result<Vec<QueueId>, RequestError> {
        let quota = &mut context.devices.backends.quota;
        let task = self.table.get(key).and_then(|process| Some(process.applied?.task));
        let left = task.and_then(|task| Some((task, quota.left_by_task().remove(&task)?)));
        match left {
            None => Ok(Vec::new()),
            Some((task, _)) if caller.is_admin() => {
                context.devices.is_changed = true;
                Ok(quota.exempt(task))
            }
            Some((_, count)) => Err(RequestError::QueuesLeftAlone { key, count, max: quota.max() }),
        }
    }

    /// Refuses to suspend a process that the controllers cannot stop.
    fn check_limit(
        &mut self,
        key: ProcessKey,
        by_admin: bool,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let applied = self.table.get(key).and_then(|process| process.applied);
        let limit = applied.and_then(|applied| context.devices.backends.limit_of(applied.task));
        match limit {
            Some(limit) if limit.is_uncontrollable => {
                self.end_suspension(key, by_admin, context);
                Err(RequestError::BeyondControl(limit.sentence))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends all suspensions of a process and of its queues; the caller settles those of queues.
    /// Returns the process, and whether there was a suspension.
    pub(crate) fn resume(
        &mut self,
        requester: Requester,
        process: Process,
        context: &mut Context<'_>,
    ) -> Result<(ProcessKey, bool), RequestError> {
        let info = self.resolve(requester, process)?;
        let (key, by_admin) = (info.key, requester.caller.is_admin());
        requester.caller.check(Operation::Resume, &self.target(&info, context.devices))?;
        // An array, so that each of them is called.
        let ended = [
            self.end_suspension(key, by_admin, context),
            self.saved.end_suspensions(by_admin, |untracked| untracked == key),
            context.devices.end_suspensions_of(&self.table, key, by_admin),
        ];
        Ok((key, ended.contains(&true)))
    }

    /// Ends all suspensions that the caller may end; the caller settles those of queues.
    pub(crate) fn resume_all(&mut self, caller: Caller, context: &mut Context<'_>) {
        let by_admin = caller.is_admin();
        for key in self.table.keys() {
            if self.table.get(key).is_some_and(|process| caller.may_touch(process.labels.uid)) {
                self.end_suspension(key, by_admin, context);
            }
        }
        self.saved.end_suspensions(by_admin, |untracked| {
            ProcessInfo::read(untracked.pid).is_ok_and(|info| caller.may_touch(info.uid))
        });
        context.devices.end_suspensions_for(&self.table, caller);
    }

    pub(crate) fn detach(
        &mut self,
        requester: Requester,
        process: Process,
        evicted_by: impl FnOnce(ProcessKey) -> Option<u32>,
        context: &mut Context<'_>,
    ) -> Result<ProcessKey, RequestError> {
        let info = self.resolve(requester, process)?;
        let key = info.key;
        let target = self.target(&info, context.devices);
        let target = Target { evicted_by: evicted_by(key), ..target };
        requester.caller.check(Operation::Detach, &target)?;
        if self.table.get(key).is_some_and(TrackedProcess::is_normal) {
            return Err(RequestError::DetachNormal(key));
        }
        self.registrations.remove(key);
        self.saved.forget(key);
        self.controllable(key, context)?;
        let Some(process) = self.table.get_mut(key) else { return Ok(key) };
        process.is_detached = true;
        process.overrides = Layers::default();
        process.suspensions = Layers::default();
        self.apply(key, context);
        context.telemetry.log.info(format_args!("{} was detached", Named(key)));
        Ok(key)
    }
}

/// Checks the limits that the configuration file has as well.
fn check_limits(change: &SchedAttrChange) -> Result<(), RequestError> {
    if change.weight.is_some_and(|weight| weight.get() > AttrSettings::WEIGHT_MAX) {
        return Err(RequestError::WeightTooHigh);
    }
    if change.deadline_us.is_some_and(|us| us > AttrSettings::DEADLINE_US_MAX) {
        return Err(RequestError::DeadlineTooLong);
    }
    Ok(())
}

fn check_obstacle(process: &TrackedProcess) -> Result<(), RequestError> {
    process.obstacle.as_ref().map_or(Ok(()), |why| Err(RequestError::NotAdopted(why.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::reply::RefusalCode;
    use std::num::NonZeroU32;

    #[test]
    fn limits_are_those_of_the_configuration() {
        let change = |weight, deadline_us| SchedAttrChange {
            weight: NonZeroU32::new(weight),
            deadline_us: Some(deadline_us),
            ..SchedAttrChange::default()
        };
        assert!(check_limits(&change(1_000, 3_600_000_000)).is_ok());
        for bad in [change(1_001, 0), change(1, 3_600_000_001)] {
            assert_eq!(check_limits(&bad).unwrap_err().code(), RefusalCode::BadSetting);
        }
    }
}
