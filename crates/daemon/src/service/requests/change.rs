//! Requests that change what a process gets.

use gpreempt_device::nvidia::node::{self, Node};
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::process::Process;
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::traits::TraitsChange;

use super::Asker;
use crate::rule::Wish;
use crate::service::Service;
use crate::service::member::{Member, Order};
use crate::service::permission::Caller;
use crate::service::refused::Refused;
use crate::service::registrations::Registration;
use crate::verdict::open_to_all;

/// The longest suspension: a day. Whoever wants more asks again.
pub(super) const LEASE_MS_MAX: u32 = 86_400_000;

impl Service {
    pub(super) fn register(
        &mut self,
        asker: Asker,
        process: Process,
        change: TraitsChange,
    ) -> Result<(), Refused> {
        let info = self.resolve(asker, process)?;
        let (caller, key) = (asker.caller, info.key);
        check_limits(&change)?;
        if self.roster.get(key).is_some() {
            self.order(caller, key, change)?;
        } else if let Some(priority) = change.priority {
            let open = open_to_all(self.config.scheduler.default_priority);
            caller.check_priority(priority, open)?;
        }
        if !self.registrations.has_room(key, caller.uid(), caller.is_master()) {
            let sentence = "too many processes are registered; wait until some of them end";
            return Err(Refused::new(RefusalCode::Limit, sentence));
        }
        self.write_down(caller, &info, change);
        Ok(())
    }

    /// Remembers what a process and its children are to have.
    fn write_down(&mut self, caller: Caller, info: &ProcessInfo, change: TraitsChange) {
        let order = Order { change, uid: caller.uid() };
        let by_master = caller.is_master();
        if let Some(known) = self.registrations.get_mut(info.key) {
            known.order = known.order.and(order);
            known.by_master = by_master;
            return;
        }
        let (pidfd, watch) = self.watch(info.key);
        let registration = Registration { order, by_master, uid: info.uid, pidfd, watch };
        self.registrations.insert(info.key, registration);
    }

    pub(super) fn set(
        &mut self,
        asker: Asker,
        process: Process,
        change: TraitsChange,
    ) -> Result<(), Refused> {
        let info = self.resolve(asker, process)?;
        check_limits(&change)?;
        if self.roster.get(info.key).is_none() && self.is_expected(info.key) {
            self.check_display(info.key)?;
            self.write_down(asker.caller, &info, change);
            return Ok(());
        }
        self.order(asker.caller, info.key, change)
    }

    /// Gives a process that uses a device something else from now on.
    fn order(
        &mut self,
        caller: Caller,
        key: ProcessKey,
        change: TraitsChange,
    ) -> Result<(), Refused> {
        let open = self.controllable(key)?.open_priority(self.config.scheduler.default_priority);
        if let Some(priority) = change.priority {
            caller.check_priority(priority, open)?;
        }
        self.check_display(key)?;
        let order = Order { change, uid: caller.uid() };
        let Some(member) = self.roster.get_mut(key) else { return Ok(()) };
        member.order = Some(member.order.map_or(order, |before| before.and(order)));
        member.is_detached = false;
        member.obstacle = None;
        self.apply(key);
        let Some(member) = self.roster.get(key) else { return Ok(()) };
        let why = member.why();
        self.log.info(format_args!("process {key}: {why}"));
        check_obstacle(member)
    }

    /// A process that may be given something else: it uses a device, and no rule forbids it.
    fn controllable(&self, key: ProcessKey) -> Result<&Member, Refused> {
        let refuse = |sentence: String| Refused::new(RefusalCode::NotControlled, sentence);
        let Some(member) = self.roster.get(key) else {
            return Err(refuse(self.explain_stranger(key)));
        };
        if member.is_ignored() {
            return Err(refuse(format!("process {key} is {}; change the rule", member.why())));
        }
        Ok(member)
    }

    pub(super) fn suspend(
        &mut self,
        asker: Asker,
        process: Process,
        lease_ms: u32,
        now_ns: u64,
    ) -> Result<(), Refused> {
        let key = self.resolve(asker, process)?.key;
        if lease_ms > LEASE_MS_MAX {
            let sentence = format!("a lease of {lease_ms} ms is too long; a day is the longest");
            return Err(Refused::new(RefusalCode::BadSetting, sentence));
        }
        self.controllable(key)?;
        if drives_display(key.pid) {
            let sentence = format!("process {key} drives a display; the screen would freeze");
            return Err(Refused::new(RefusalCode::NotPermitted, sentence));
        }
        let Some(member) = self.roster.get_mut(key) else { return Ok(()) };
        let lease_ns = u64::from(lease_ms).saturating_mul(1_000_000);
        let until_ns = now_ns.saturating_add(lease_ns);
        let before_ns = member.suspended_until_ns.replace(until_ns);
        member.obstacle = None;
        self.apply(key);
        if let Some(member) = self.roster.get(key) {
            check_obstacle(member)?;
        }
        self.check_limit(key)?;
        let instead = before_ns.map_or(String::new(), |before| {
            format!(" instead of another {} ms", before.saturating_sub(now_ns) / 1_000_000)
        });
        let line = format!("process {key} is suspended for {lease_ms} ms{instead}");
        // Whoever renews a lease in time says nothing new.
        if before_ns.is_some_and(|before| before <= until_ns) {
            self.log.debug(line);
        } else {
            self.log.info(line);
            self.tell_of(key, EventKind::Suspended, lease_ns);
        }
        Ok(())
    }

    /// Refuses to suspend a process that is known to be beyond our reach.
    fn check_limit(&mut self, key: ProcessKey) -> Result<(), Refused> {
        let in_force = self.roster.get(key).and_then(|member| member.in_force);
        let limit = in_force.and_then(|in_force| self.backends.limit_of(in_force.task));
        match limit {
            Some(limit) if limit.is_beyond => {
                self.end_suspension(key);
                Err(Refused::new(RefusalCode::Failed, limit.sentence))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn resume(
        &mut self,
        asker: Asker,
        process: Process,
        now_ns: u64,
    ) -> Result<(), Refused> {
        let key = self.resolve(asker, process)?.key;
        // Each of them, not only the first that there is.
        let ended = [
            self.end_suspension(key),
            self.orders.end_suspensions(|unmet| unmet == key),
            self.end_suspensions_of_queues(key, now_ns),
        ];
        if ended.contains(&true) {
            return Ok(());
        }
        let sentence = format!("process {key} is not suspended");
        Err(Refused::new(RefusalCode::NotControlled, sentence))
    }

    /// Ends every suspension of processes that the caller may touch.
    pub(super) fn resume_all(&mut self, caller: Caller) {
        for key in self.roster.keys() {
            if self.roster.get(key).is_some_and(|member| caller.may_touch(member.about.uid)) {
                self.end_suspension(key);
            }
        }
        self.orders.end_suspensions(|unmet| {
            ProcessInfo::read(unmet.pid).is_ok_and(|info| caller.may_touch(info.uid))
        });
    }

    pub(super) fn detach(&mut self, asker: Asker, process: Process) -> Result<(), Refused> {
        let key = self.resolve(asker, process)?.key;
        self.registrations.remove(key);
        self.orders.forget(key);
        self.controllable(key)?;
        let Some(member) = self.roster.get_mut(key) else { return Ok(()) };
        member.is_detached = true;
        member.order = None;
        member.suspended_until_ns = None;
        self.apply(key);
        self.log.info(format_args!("process {key} was detached"));
        Ok(())
    }
}

/// Whether a change is within the limits that the configuration has as well.
fn check_limits(change: &TraitsChange) -> Result<(), Refused> {
    let bad = |sentence: String| Err(Refused::new(RefusalCode::BadSetting, sentence));
    if change.weight.is_some_and(|weight| weight.get() > Wish::WEIGHT_MAX) {
        return bad(format!("a weight is at most {}", Wish::WEIGHT_MAX));
    }
    if change.deadline_us.is_some_and(|us| us > Wish::DEADLINE_US_MAX) {
        return bad(format!("a deadline is at most {} us, an hour", Wish::DEADLINE_US_MAX));
    }
    Ok(())
}

fn check_obstacle(member: &Member) -> Result<(), Refused> {
    match &member.obstacle {
        None => Ok(()),
        Some(why) => Err(Refused::new(RefusalCode::Failed, why.as_str())),
    }
}

pub(in crate::service) fn drives_display(pid: u32) -> bool {
    node::held_by(pid).is_ok_and(|held| held.iter().any(|held| held.node == Node::Modeset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn limits_are_those_of_the_configuration() {
        let change = |weight, deadline_us| TraitsChange {
            weight: NonZeroU32::new(weight),
            deadline_us: Some(deadline_us),
            ..TraitsChange::default()
        };
        assert!(check_limits(&change(1_000, 3_600_000_000)).is_ok());
        for bad in [change(1_001, 0), change(1, 3_600_000_001)] {
            assert_eq!(check_limits(&bad).unwrap_err().code, RefusalCode::BadSetting);
        }
    }

    #[test]
    fn this_process_drives_no_display() {
        assert!(!drives_display(std::process::id()));
    }
}
