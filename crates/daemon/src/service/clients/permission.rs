//! Permissions of clients: who may do what to whom.
//!
//! [`right`] is the table; [`Caller::check`] is the only place that evaluates it. The table in
//! docs/reference/permissions.md is generated from it, and the tests try every cell.

use std::fmt;

use gpreempt_core::priority::Priority;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::server::Peer;

use super::request_error::RequestError;
use crate::accounts::{Accounts, MayRaise};
use crate::assignment::SettingSource;
use crate::bounds::Bounds;

/// The user that sends a request, and its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    uid: u32,
    is_admin: bool,
    may_raise: bool,
}

/// What a caller is to the process that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    /// Root, or the user that runs the daemon: it could make every change without the daemon.
    Administrator,
    /// The owner of the process, in the group `gpreempt`.
    Member,
    Owner,
    /// Any other user, in the group `gpreempt` or not.
    Other,
}

/// What a request does to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    /// `Set`, `Register` and `SetQueue`.
    Change(SchedAttrChange),
    Suspend,
    Resume,
    Evict,
    Restore,
    MakeRoom,
    Detach,
    /// The hint page of the process that opened the session.
    Hint,
    /// The policy applies to the processes of all users.
    Policy,
}

/// When an operation is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Always,
    Never,
    /// Up to 7, or the default priority if that is higher, and within [`Bounds`].
    LowClassWithinBounds,
    WithinBounds,
    /// Unless an administrator suspended it.
    UnlessSuspended,
    /// Unless an administrator evicted it.
    UnlessEvicted,
    /// Unless a rule, `default_priority` or an administrator has it scheduled or suspended.
    UnlessDecided,
}

/// The table.
const fn right(actor: Actor, operation: Operation) -> Right {
    use Actor::{Administrator, Member, Other, Owner};
    match (operation, actor) {
        (_, Administrator) | (Operation::Read, _) => Right::Always,
        (Operation::Policy, _) | (_, Other) => Right::Never,
        (Operation::Change(_), Member) => Right::WithinBounds,
        (Operation::Change(_), Owner) => Right::LowClassWithinBounds,
        (
            Operation::Suspend | Operation::Evict | Operation::MakeRoom | Operation::Hint,
            Member | Owner,
        ) => Right::Always,
        (Operation::Resume, Member | Owner) => Right::UnlessSuspended,
        (Operation::Restore, Member | Owner) => Right::UnlessEvicted,
        (Operation::Detach, Member | Owner) => Right::UnlessDecided,
    }
}

/// The process that a request names, as far as permissions depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) key: ProcessKey,
    pub(crate) uid: u32,
    pub(crate) bounds: Bounds,
    /// The highest priority that its owner may give it where nothing binds.
    pub(crate) open: Priority,
    /// What has it scheduled, apart from its owner and its environment.
    pub(crate) scheduled_by: Option<SettingSource>,
    /// The administrator that suspended it or one of its queues.
    pub(crate) suspended_by: Option<u32>,
    /// The administrator that evicted it.
    pub(crate) evicted_by: Option<u32>,
}

impl Target {
    /// A process of that user of which nothing was decided.
    pub(crate) fn undecided(key: ProcessKey, uid: u32, open: Priority) -> Self {
        let bounds = Bounds::default();
        let (scheduled_by, suspended_by, evicted_by) = (None, None, None);
        Self { key, uid, bounds, open, scheduled_by, suspended_by, evicted_by }
    }
}

impl Caller {
    pub(crate) fn new(peer: Peer, own_uid: u32, accounts: &Accounts) -> Self {
        let is_admin = peer.uid == 0 || peer.uid == own_uid;
        // The group of the socket's peer and /etc/group. The other groups of the process would be
        // read from /proc by a pid that may have been reused.
        let may_raise = accounts.may_raise(Some(peer.uid), &[peer.gid]) != MayRaise::No;
        Self::of(peer.uid, is_admin, may_raise)
    }

    pub(crate) const fn of(uid: u32, is_admin: bool, may_raise: bool) -> Self {
        Self { uid, is_admin, may_raise }
    }

    pub(crate) const fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) const fn is_admin(&self) -> bool {
        self.is_admin
    }

    const fn actor(&self, owner: u32) -> Actor {
        match (self.is_admin, self.uid == owner, self.may_raise) {
            (true, ..) => Actor::Administrator,
            (false, true, true) => Actor::Member,
            (false, true, false) => Actor::Owner,
            (false, false, _) => Actor::Other,
        }
    }

    /// Whether it may change processes of that user, within what was decided about them.
    pub(crate) fn may_touch(&self, uid: u32) -> bool {
        self.actor(uid) != Actor::Other
    }

    pub(crate) fn may_read(&self, uid: u32) -> bool {
        right(self.actor(uid), Operation::Read) == Right::Always
    }

    pub(crate) fn check_touch(&self, pid: u32, uid: u32) -> Result<(), RequestError> {
        if self.may_touch(uid) { Ok(()) } else { Err(RequestError::ForeignProcess { pid, uid }) }
    }

    pub(crate) fn check_policy(&self) -> Result<(), RequestError> {
        let right = right(self.actor(u32::MAX), Operation::Policy);
        if right == Right::Always { Ok(()) } else { Err(RequestError::PolicyNotPermitted) }
    }

    /// Checks an operation on a process.
    pub(crate) fn check(&self, operation: Operation, target: &Target) -> Result<(), RequestError> {
        let Target { key, uid, .. } = *target;
        let right = right(self.actor(uid), operation);
        if right == Right::Never {
            return Err(RequestError::ForeignProcess { pid: key.pid, uid });
        }
        if let Operation::Change(change) = operation
            && matches!(right, Right::WithinBounds | Right::LowClassWithinBounds)
        {
            let exceeded = |exceeded| RequestError::AboveDecision { key, exceeded };
            target.bounds.check(&change).map_err(exceeded)?;
            let open = if right == Right::WithinBounds { Priority::MAX } else { target.open };
            let bound = target.bounds.priority.as_ref().map_or(open, |bound| bound.value);
            if let Some(wanted) = change.priority.filter(|wanted| *wanted > bound) {
                return Err(RequestError::PriorityNotPermitted { wanted, open });
            }
        }
        let suspended_by = target.suspended_by.map(SettingSource::Administrator);
        if let Some(by) = suspended_by
            && matches!(right, Right::UnlessSuspended | Right::UnlessDecided)
        {
            return Err(RequestError::SuspendedByAdministrator { key, by });
        }
        let evicted_by = target.evicted_by.map(SettingSource::Administrator);
        if let Some(by) = evicted_by
            && matches!(right, Right::UnlessEvicted | Right::UnlessDecided)
        {
            return Err(RequestError::EvictedByAdministrator { key, by });
        }
        if let Some(by) = &target.scheduled_by
            && right == Right::UnlessDecided
        {
            return Err(RequestError::ScheduledByAdministrator { key, by: by.clone() });
        }
        Ok(())
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "yes",
            Self::Never => "no",
            Self::LowClassWithinBounds => {
                "up to the decision; without one, priorities up to 7 and any weight, deadline and \
                 latency budget"
            }
            Self::WithinBounds => "up to the decision; without one, anything",
            Self::UnlessSuspended => "unless an administrator suspended it",
            Self::UnlessEvicted => "unless an administrator evicted it",
            Self::UnlessDecided => {
                "unless a rule, `default_priority` or an administrator scheduled, suspended or \
                 evicted it"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::num::NonZeroU32;

    use super::*;
    use gpreempt_core::latency_budget::LatencyBudget;
    use gpreempt_wire::reply::RefusalCode;

    const PASSWD: &[u8] = b"root:x:0:0::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
    const GROUP: &[u8] = b"gpreempt:x:990:bob\n";
    const KEY: ProcessKey = ProcessKey { pid: u32::MAX, start_ticks: 1 };
    const OWNER: u32 = 1000;

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller::new(Peer { pid: 1, uid, gid }, 777, &Accounts::parse(PASSWD, GROUP))
    }

    fn level(level: u8) -> Priority {
        Priority::new(level).unwrap()
    }

    fn priority(level: u8) -> SchedAttrChange {
        SchedAttrChange { priority: Priority::new(level), ..SchedAttrChange::default() }
    }

    #[test]
    fn a_caller_is_an_administrator_a_member_the_owner_or_another_user() {
        for (uid, gid, owner, expected) in [
            (0, 0, 1000, Actor::Administrator),
            (777, 777, 1000, Actor::Administrator),
            (1001, 1001, 1001, Actor::Member),
            (1000, 990, 1000, Actor::Member),
            (1000, 1000, 1000, Actor::Owner),
            (1000, 1000, 1001, Actor::Other),
            (1001, 1001, 1000, Actor::Other),
            (1000, 1000, 0, Actor::Other),
            (1000, 1000, u32::MAX, Actor::Other),
        ] {
            assert_eq!(caller(uid, gid).actor(owner), expected, "{uid} {gid} {owner}");
        }
    }

    /// Every actor, with the columns of the table.
    const ACTORS: [(Actor, Caller, &str); 4] = [
        (Actor::Administrator, Caller::of(0, true, true), "administrator"),
        (Actor::Member, Caller::of(OWNER, false, true), "owner in the group `gpreempt`"),
        (Actor::Owner, Caller::of(OWNER, false, false), "owner"),
        (Actor::Other, Caller::of(OWNER + 1, false, true), "other user"),
    ];

    /// Everything that can have been decided about a process: a bound by a rule or by root or
    /// none, a rule or root or nothing that has it scheduled, suspended by root or not.
    fn targets() -> Vec<Target> {
        let mut targets = Vec::new();
        for bound in [None, Some(0), Some(1), Some(7), Some(12)] {
            for scheduled_by in [None, Some(SettingSource::Default)] {
                for suspended_by in [None, Some(0)] {
                    let mut target = Target::undecided(KEY, OWNER, level(7));
                    if let Some(bound) = bound {
                        target.bounds = Bounds::default().or_by(0, &priority(bound));
                    }
                    let scheduled_by = scheduled_by.clone();
                    targets.push(Target { scheduled_by, suspended_by, ..target });
                }
            }
        }
        targets
    }

    #[test]
    fn every_cell_permits_what_it_says() {
        let mut tried = 0;
        for (actor, caller, _) in ACTORS {
            let is_admin = actor == Actor::Administrator;
            let is_own = matches!(actor, Actor::Member | Actor::Owner);
            for target in targets() {
                let may = |operation| {
                    let checked = caller.check(operation, &target);
                    if let Err(refusal) = &checked {
                        assert_eq!(refusal.code(), RefusalCode::NotPermitted, "{refusal}");
                    }
                    checked.is_ok()
                };
                let is_suspended = target.suspended_by.is_some();
                let is_decided = is_suspended || target.scheduled_by.is_some();
                let case = format!("{actor:?} {target:?}");
                assert!(may(Operation::Read), "{case}");
                for operation in [Operation::Suspend, Operation::Hint] {
                    assert_eq!(may(operation), is_admin || is_own, "{operation:?} {case}");
                }
                let expected = is_admin || is_own && !is_suspended;
                assert_eq!(may(Operation::Resume), expected, "{case}");
                let expected = is_admin || is_own && !is_decided;
                assert_eq!(may(Operation::Detach), expected, "{case}");
                for wanted in 0..Priority::LEVELS {
                    let bound = target.bounds.priority.as_ref().map(|bound| bound.value.level());
                    let expected = match (actor, bound) {
                        (Actor::Administrator, _) => true,
                        (Actor::Other, _) => false,
                        (Actor::Member | Actor::Owner, Some(bound)) => wanted <= bound,
                        (Actor::Member, None) => true,
                        (Actor::Owner, None) => wanted <= 7,
                    };
                    let change = priority(wanted);
                    assert_eq!(may(Operation::Change(change)), expected, "{wanted} {case}");
                    tried += 1;
                }
            }
            assert_eq!(caller.check_policy().is_ok(), is_admin, "{actor:?}");
        }
        assert_eq!(tried, 4 * 20 * 16);
    }

    #[test]
    fn weight_deadline_and_latency_budget_are_bound_as_the_priority_is() {
        let decided = SchedAttrChange {
            weight: NonZeroU32::new(5),
            deadline_us: Some(500),
            latency_budget: LatencyBudget::from_percent(20),
            ..SchedAttrChange::default()
        };
        let mut target = Target::undecided(KEY, OWNER, level(7));
        for is_bound in [false, true] {
            if is_bound {
                target.bounds = Bounds::default().or_by(0, &decided);
            }
            for (actor, caller, _) in ACTORS {
                for (weight, deadline_us, percent, is_above) in [
                    (5, 500, 20, false),
                    (4, 0, 21, false),
                    (6, 500, 20, true),
                    (5, 499, 20, true),
                    (5, 500, 19, true),
                ] {
                    let change = SchedAttrChange {
                        weight: NonZeroU32::new(weight),
                        deadline_us: Some(deadline_us),
                        latency_budget: LatencyBudget::from_percent(percent),
                        ..SchedAttrChange::default()
                    };
                    let expected = match actor {
                        Actor::Administrator => true,
                        Actor::Member | Actor::Owner => !(is_bound && is_above),
                        Actor::Other => false,
                    };
                    let checked = caller.check(Operation::Change(change), &target);
                    assert_eq!(checked.is_ok(), expected, "{actor:?} {change:?}");
                }
            }
        }
    }

    #[test]
    fn a_refusal_names_what_was_decided_and_by_whom() {
        let caller = Caller::of(OWNER, false, true);
        let mut target = Target::undecided(KEY, OWNER, level(7));
        target.bounds = Bounds::default().or_by(0, &priority(1));
        let refusal =
            |operation, target: &Target| caller.check(operation, target).unwrap_err().to_string();
        assert_eq!(
            refusal(Operation::Change(priority(7)), &target),
            "priority 1 of process 4294967295 was set by root; only an administrator can raise it"
        );
        let budget = |percent| SchedAttrChange {
            latency_budget: LatencyBudget::from_percent(percent),
            ..SchedAttrChange::default()
        };
        target.bounds = Bounds::default().or_by(0, &budget(20));
        assert_eq!(
            refusal(Operation::Change(budget(0)), &target),
            "latency budget 20 % of process 4294967295 was set by root; only an administrator can \
             lower it"
        );
        target.suspended_by = Some(0);
        assert_eq!(
            refusal(Operation::Resume, &target),
            "process 4294967295 was suspended by root; only an administrator can resume it"
        );
        let scheduled_by = Some(SettingSource::Default);
        let target = Target { scheduled_by, ..Target::undecided(KEY, OWNER, level(7)) };
        assert_eq!(
            refusal(Operation::Detach, &target),
            "process 4294967295 is scheduled by default_priority; only an administrator can \
             detach it"
        );
        let other = Caller::of(5, false, true).check(Operation::Suspend, &target).unwrap_err();
        assert_eq!(
            other.to_string(),
            "process 4294967295 belongs to uid 1000; be root to change it"
        );
    }

    /// The rows of the table.
    const OPERATIONS: [(&str, Operation); 10] = [
        ("list processes and queues, read statistics, events and the policy", Operation::Read),
        (
            "priority, weight, deadline, latency budget, evictable: `Set`, `Register`, `SetQueue`",
            Operation::Change(SchedAttrChange {
                priority: None,
                weight: None,
                deadline_us: None,
                latency_budget: None,
                evictable: None,
            }),
        ),
        ("suspend: `Suspend`, `SuspendQueues`", Operation::Suspend),
        ("resume: `Resume`, `ResumeAll`", Operation::Resume),
        ("evict: `Evict`", Operation::Evict),
        ("restore: `Restore`, `ResumeAll`", Operation::Restore),
        ("claim GPU memory: `MakeRoom`", Operation::MakeRoom),
        ("detach: `Detach`", Operation::Detach),
        ("hints: `OpenPage`, `Wake`, only from the process itself", Operation::Hint),
        ("policy: `PolicySet`", Operation::Policy),
    ];

    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let mut table = String::from("| request |");
        for (_, _, column) in ACTORS {
            let _ = write!(table, " {column} |");
        }
        table.push_str("\n|---|---|---|---|---|\n");
        for (row, operation) in OPERATIONS {
            let _ = write!(table, "| {row} |");
            for (actor, ..) in ACTORS {
                let _ = write!(table, " {} |", right(actor, operation));
            }
            table.push('\n');
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/permissions.md");
        let page = std::fs::read_to_string(path).unwrap();
        let written: String = page
            .lines()
            .skip_while(|line| !line.starts_with("| request |"))
            .take_while(|line| line.starts_with('|'))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(written, table, "copy the table into docs/reference/permissions.md");
    }
}
