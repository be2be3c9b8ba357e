//! Requests that change what a process gets.

use gpreempt_device::nvidia::node::{self, Node};
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;

use super::registrations::Registration;
use super::tracked_process::{Member, Order};
use super::{Context, Processes};
use crate::rule::Wish;
use crate::service::clients::pending_answers::{Asked, OFF_MAX_NS, PendingSuspension};
use crate::service::clients::permission::Caller;
use crate::service::clients::request_error::RequestError;
use crate::service::clients::requests::Asker;
use crate::service::devices::Devices;
use crate::verdict::open_to_all;

/// The longest suspension: a day. A client that wants more asks again.
pub(crate) const LEASE_MS_MAX: u32 = 86_400_000;

impl Processes {
    /// The process that a request names, if it lives and the caller may change it.
    pub(crate) fn resolve(
        &mut self,
        asker: Asker,
        process: Process,
        context: &mut Context<'_>,
    ) -> Result<ProcessInfo, RequestError> {
        let (pid, start_ticks) = if process == Process::SENDER {
            let sender = asker.process.ok_or(RequestError::SenderEnded)?;
            (sender.pid, sender.start_ticks)
        } else {
            (process.pid(), process.start_ticks())
        };
        let info = ProcessInfo::read(pid)?;
        if info.zombie || (start_ticks != 0 && info.key.start_ticks != start_ticks) {
            return Err(RequestError::ReplacedProcess(pid));
        }
        asker.caller.check_touch(pid, info.uid)?;
        self.look_into_now(info.key, context);
        Ok(info)
    }

    pub(crate) fn register(
        &mut self,
        asker: Asker,
        process: Process,
        change: SchedAttrChange,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let info = self.resolve(asker, process, context)?;
        let (caller, key) = (asker.caller, info.key);
        check_limits(&change)?;
        if self.roster.get(key).is_some() {
            self.order(caller, key, change, context)?;
        } else if let Some(priority) = change.priority {
            caller.check_priority(priority, open_to_all(self.rules.default_priority()))?;
        }
        if !self.registrations.has_room(key, caller.uid(), caller.is_master()) {
            return Err(RequestError::TooManyRegistrations);
        }
        self.write_down(caller, &info, change, context);
        Ok(())
    }

    /// Remembers what a process and its children are to have.
    fn write_down(
        &mut self,
        caller: Caller,
        info: &ProcessInfo,
        change: SchedAttrChange,
        context: &Context<'_>,
    ) {
        let order = Order { change, uid: caller.uid() };
        let by_master = caller.is_master();
        if let Some(known) = self.registrations.get_mut(info.key) {
            known.order = known.order.and(order);
            known.by_master = by_master;
            return;
        }
        let (pidfd, watch) = self.watch(info.key, context.poller);
        let registration = Registration { order, by_master, uid: info.uid, pidfd, watch };
        self.registrations.insert(info.key, registration);
    }

    pub(crate) fn set(
        &mut self,
        asker: Asker,
        process: Process,
        change: SchedAttrChange,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let info = self.resolve(asker, process, context)?;
        check_limits(&change)?;
        let is_met = self.roster.get(info.key).is_some();
        if !is_met && self.rules.private.is_some_and(|private| private.expects(info.key)) {
            self.rules.check_display(info.key)?;
            self.write_down(asker.caller, &info, change, context);
            return Ok(());
        }
        self.order(asker.caller, info.key, change, context)
    }

    /// Gives a process that uses a device something else from now on.
    fn order(
        &mut self,
        caller: Caller,
        key: ProcessKey,
        change: SchedAttrChange,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let open =
            self.controllable(key, context.devices)?.open_priority(self.rules.default_priority());
        if let Some(priority) = change.priority {
            caller.check_priority(priority, open)?;
        }
        self.rules.check_display(key)?;
        let order = Order { change, uid: caller.uid() };
        let Some(member) = self.roster.get_mut(key) else { return Ok(()) };
        member.order = Some(member.order.map_or(order, |before| before.and(order)));
        member.is_detached = false;
        member.obstacle = None;
        self.apply(key, context);
        let Some(member) = self.roster.get(key) else { return Ok(()) };
        let why = member.why();
        context.telemetry.log.info(format_args!("process {key}: {why}"));
        check_obstacle(member)
    }

    /// A process that may be given something else: it uses a device, and no rule forbids it.
    fn controllable(&self, key: ProcessKey, devices: &Devices) -> Result<&Member, RequestError> {
        let Some(member) = self.roster.get(key) else {
            let private = self.rules.private;
            return Err(private.map_or(RequestError::NotOnGpu(key), |private| {
                private.explain_stranger(key, &devices.backends.kinds())
            }));
        };
        if member.is_ignored() {
            return Err(RequestError::IgnoredByRule { key, why: member.why() });
        }
        Ok(member)
    }

    /// Suspends a process. None if it is off its devices already; otherwise the client is answered
    /// when it is ([`crate::service::clients::pending_answers`]).
    pub(crate) fn suspend(
        &mut self,
        asker: Asker,
        asked: Asked,
        process: Process,
        (lease_ms, now_ns): (u32, u64),
        context: &mut Context<'_>,
    ) -> Result<Option<PendingSuspension>, RequestError> {
        let key = self.resolve(asker, process, context)?.key;
        if lease_ms > LEASE_MS_MAX {
            return Err(RequestError::LeaseTooLong(lease_ms));
        }
        self.controllable(key, context.devices)?;
        if drives_display(key.pid) {
            return Err(RequestError::DrivesDisplay(key));
        }
        let is_off = self.is_off_its_devices(key, context.devices);
        if !is_off {
            context.guard.check_journal(|| format!("process {key}"))?;
        }
        let Some(member) = self.roster.get_mut(key) else { return Ok(None) };
        let lease_ns = u64::from(lease_ms).saturating_mul(1_000_000);
        // The lease begins when the process is off, so it cannot end before that is known.
        let pending_ns = if is_off { 0 } else { OFF_MAX_NS };
        let until_ns = now_ns.saturating_add(pending_ns).saturating_add(lease_ns);
        let before_ns = member.suspended_until_ns.replace(until_ns);
        member.obstacle = None;
        self.apply(key, context);
        if let Some(member) = self.roster.get(key) {
            check_obstacle(member)?;
        }
        self.check_limit(key, context)?;
        let instead = before_ns.map_or(String::new(), |before| {
            format!(" instead of another {} ms", before.saturating_sub(now_ns) / 1_000_000)
        });
        let line = format!("process {key} is suspended for {lease_ms} ms{instead}");
        let since = std::time::Instant::now();
        let pending = PendingSuspension { asked, key, since, line, until_ns, lease_ns };
        // A client that renews its lease in time says nothing new.
        let is_renewal = before_ns.is_some_and(|before| before <= until_ns);
        match (is_off, is_renewal) {
            (true, true) => context.telemetry.log.debug(&pending.line),
            (true, false) => self.announce_suspension(&pending, context.telemetry),
            (false, _) => return Ok(Some(pending)),
        }
        Ok(None)
    }

    /// Refuses to suspend a process that the controllers are known not to reach.
    fn check_limit(
        &mut self,
        key: ProcessKey,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let in_force = self.roster.get(key).and_then(|member| member.in_force);
        let limit = in_force.and_then(|in_force| context.devices.backends.limit_of(in_force.task));
        match limit {
            Some(limit) if limit.is_beyond => {
                self.end_suspension(key, context);
                Err(RequestError::BeyondControl(limit.sentence))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends every suspension of a process, those of its queues included. The caller settles those.
    /// False if there was none.
    pub(crate) fn resume(&mut self, key: ProcessKey, context: &mut Context<'_>) -> bool {
        // Each of them, not only the first that there is.
        let ended = [
            self.end_suspension(key, context),
            self.orders.end_suspensions(|unmet| unmet == key),
            context.devices.end_suspensions_of(&self.roster, key),
        ];
        ended.contains(&true)
    }

    /// Ends every suspension of processes, and of their queues, that the caller may change. The
    /// caller of this settles those of queues.
    pub(crate) fn resume_all(&mut self, caller: Caller, context: &mut Context<'_>) {
        for key in self.roster.keys() {
            if self.roster.get(key).is_some_and(|member| caller.may_touch(member.about.uid)) {
                self.end_suspension(key, context);
            }
        }
        self.orders.end_suspensions(|unmet| {
            ProcessInfo::read(unmet.pid).is_ok_and(|info| caller.may_touch(info.uid))
        });
        context.devices.end_suspensions_for(&self.roster, caller);
    }

    pub(crate) fn detach(
        &mut self,
        asker: Asker,
        process: Process,
        context: &mut Context<'_>,
    ) -> Result<(), RequestError> {
        let key = self.resolve(asker, process, context)?.key;
        self.registrations.remove(key);
        self.orders.forget(key);
        self.controllable(key, context.devices)?;
        let Some(member) = self.roster.get_mut(key) else { return Ok(()) };
        member.is_detached = true;
        member.order = None;
        member.suspended_until_ns = None;
        self.apply(key, context);
        context.telemetry.log.info(format_args!("process {key} was detached"));
        Ok(())
    }
}

/// Whether a change is within the limits that the configuration has as well.
fn check_limits(change: &SchedAttrChange) -> Result<(), RequestError> {
    if change.weight.is_some_and(|weight| weight.get() > Wish::WEIGHT_MAX) {
        return Err(RequestError::WeightTooHigh);
    }
    if change.deadline_us.is_some_and(|us| us > Wish::DEADLINE_US_MAX) {
        return Err(RequestError::DeadlineTooLong);
    }
    Ok(())
}

fn check_obstacle(member: &Member) -> Result<(), RequestError> {
    match &member.obstacle {
        None => Ok(()),
        Some(why) => Err(RequestError::NotAdopted(why.clone())),
    }
}

pub(crate) fn drives_display(pid: u32) -> bool {
    node::held_by(pid).is_ok_and(|held| held.iter().any(|held| held.node == Node::Modeset))
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

    #[test]
    fn this_process_drives_no_display() {
        assert!(!drives_display(std::process::id()));
    }
}
