//! What clients asked for a process: administrators and its owner in separate layers.
//!
//! The owner's layer never overwrites the administrators' layer, so no request, lease, restart or
//! new GPU context of the owner ends what an administrator decided.

use gpreempt_core::event::SchedAttr;
use gpreempt_wire::process::SchedAttrChange;
use serde::{Deserialize, Serialize};

use crate::bounds::{Bounds, deadline_of};
use crate::service::clients::permission::Caller;

/// Attributes that a user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchedOverride {
    pub(crate) change: SchedAttrChange,
    /// The user that asked.
    pub(crate) uid: u32,
}

/// A suspension that a user asked for, also as it is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suspension {
    /// End of the lease, on the monotonic clock.
    pub(crate) until_ns: u64,
    /// The user that asked.
    pub(crate) uid: u32,
}

/// One value of the administrators and one of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layers<T> {
    pub(crate) admin: Option<T>,
    pub(crate) owner: Option<T>,
}

impl<T> Default for Layers<T> {
    fn default() -> Self {
        Self { admin: None, owner: None }
    }
}

impl<T: Copy> Layers<T> {
    /// A value in the layer of its author.
    pub(crate) const fn of(value: T, by_admin: bool) -> Self {
        if by_admin {
            Self { admin: Some(value), owner: None }
        } else {
            Self { admin: None, owner: Some(value) }
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.admin.is_none() && self.owner.is_none()
    }

    /// These values, and those of `other` where a layer is empty.
    pub(crate) fn or(self, other: Self) -> Self {
        Self { admin: self.admin.or(other.admin), owner: self.owner.or(other.owner) }
    }

    pub(crate) const fn layer(&mut self, by_admin: bool) -> &mut Option<T> {
        if by_admin { &mut self.admin } else { &mut self.owner }
    }
}

impl SchedOverride {
    /// Both of them; where both set an attribute, the later one counts.
    fn and(self, later: Self) -> Self {
        let change = SchedAttrChange {
            priority: later.change.priority.or(self.change.priority),
            weight: later.change.weight.or(self.change.weight),
            deadline_us: later.change.deadline_us.or(self.change.deadline_us),
            latency_budget: later.change.latency_budget.or(self.change.latency_budget),
            evictable: later.change.evictable.or(self.change.evictable),
        };
        Self { change, uid: later.uid }
    }

    /// Without the attributes that an administrator sets now. `None` if nothing is left.
    fn without(self, set: &SchedAttrChange) -> Option<Self> {
        let SchedAttrChange { priority, weight, deadline_us, latency_budget, evictable } =
            self.change;
        let change = SchedAttrChange {
            priority: priority.filter(|_| set.priority.is_none()),
            weight: weight.filter(|_| set.weight.is_none()),
            deadline_us: deadline_us.filter(|_| set.deadline_us.is_none()),
            latency_budget: latency_budget.filter(|_| set.latency_budget.is_none()),
            evictable: evictable.filter(|_| set.evictable.is_none()),
        };
        (change != SchedAttrChange::default()).then_some(Self { change, uid: self.uid })
    }

    fn apply(&self, mut attr: SchedAttr) -> SchedAttr {
        attr.priority = self.change.priority.unwrap_or(attr.priority);
        attr.weight = self.change.weight.map_or(attr.weight, |weight| weight.get());
        if let Some(us) = self.change.deadline_us {
            attr.deadline = deadline_of(us);
        }
        attr.latency_budget = self.change.latency_budget.unwrap_or(attr.latency_budget);
        attr
    }
}

impl Layers<SchedOverride> {
    /// Adds a request. An administrator's request replaces what the owner asked for before it.
    pub(crate) fn add(&mut self, caller: Caller, change: SchedAttrChange) {
        if caller.is_admin() {
            self.owner = self.owner.and_then(|owner| owner.without(&change));
        }
        let asked = SchedOverride { change, uid: caller.uid() };
        let layer = self.layer(caller.is_admin());
        *layer = Some(layer.map_or(asked, |before| before.and(asked)));
    }

    /// The bounds of the owner: those of the administrators' requests, then those of the
    /// configuration.
    pub(crate) fn bounds(&self, of_configuration: Bounds) -> Bounds {
        match self.admin {
            Some(admin) => of_configuration.or_by(admin.uid, &admin.change),
            None => of_configuration,
        }
    }

    /// The attributes after these requests, the owner's within the bounds.
    pub(crate) fn apply(&self, given: SchedAttr, bounds: &Bounds) -> SchedAttr {
        let decided = self.admin.map_or(given, |admin| admin.apply(given));
        self.owner.map_or(decided, |owner| bounds.limit(owner.apply(decided)))
    }

    /// Whether the process is evicted when processes with a higher priority need room.
    pub(crate) fn evictable(&self, given: bool, bounds: &Bounds) -> bool {
        let asked = |layer: Option<SchedOverride>| layer.and_then(|asked| asked.change.evictable);
        let is_bound = bounds.evictable.as_ref().is_some_and(|bound| bound.value);
        is_bound || asked(self.owner).or_else(|| asked(self.admin)).unwrap_or(given)
    }

    /// The user whose request decides the priority, if one does.
    pub(crate) fn priority_by(&self) -> Option<u32> {
        let sets = |asked: &SchedOverride| asked.change.priority.is_some();
        let nearest = self.owner.filter(sets).or_else(|| self.admin.filter(sets));
        nearest.or(self.owner).or(self.admin).map(|asked| asked.uid)
    }
}

impl Layers<Suspension> {
    /// When the last lease ends.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.leases().max()
    }

    /// When the next lease ends.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.leases().min()
    }

    fn leases(&self) -> impl Iterator<Item = u64> {
        [self.admin, self.owner].into_iter().flatten().map(|suspension| suspension.until_ns)
    }

    /// Without the leases that have ended.
    pub(crate) fn after(self, now_ns: u64) -> Self {
        let lasts = |suspension: &Suspension| suspension.until_ns > now_ns;
        Self { admin: self.admin.filter(lasts), owner: self.owner.filter(lasts) }
    }

    /// Ends the suspensions that a caller with these rights may end.
    pub(crate) const fn end(&mut self, by_admin: bool) {
        if by_admin {
            self.admin = None;
        }
        self.owner = None;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use gpreempt_core::latency_budget::LatencyBudget;
    use gpreempt_core::priority::Priority;

    use super::*;

    const ROOT: Caller = Caller::of(0, true, true);
    const OWNER: Caller = Caller::of(1000, false, false);

    fn change(priority: Option<u8>, weight: u32) -> SchedAttrChange {
        let priority = priority.and_then(Priority::new);
        let weight = NonZeroU32::new(weight);
        SchedAttrChange { priority, weight, ..SchedAttrChange::default() }
    }

    /// Priority and weight after these requests, for a process without a rule.
    fn after(requests: &[(Caller, SchedAttrChange)]) -> (u8, u32) {
        let mut layers = Layers::default();
        for (caller, change) in requests {
            layers.add(*caller, *change);
        }
        let bounds = layers.bounds(Bounds::default());
        let attr = layers.apply(SchedAttr::default(), &bounds);
        (attr.priority.level(), attr.weight)
    }

    #[test]
    fn the_last_request_of_the_owner_counts_where_no_administrator_decided() {
        assert_eq!(after(&[]), (4, 1));
        assert_eq!(after(&[(OWNER, change(Some(7), 3)), (OWNER, change(None, 2))]), (7, 2));
    }

    #[test]
    fn the_owner_lowers_what_an_administrator_decided_and_never_raises_it() {
        let lowered = (ROOT, change(Some(2), 0));
        assert_eq!(after(&[(OWNER, change(Some(7), 3)), lowered]), (2, 3), "the weight stays");
        assert_eq!(after(&[lowered, (OWNER, change(Some(7), 3))]), (2, 3));
        assert_eq!(after(&[lowered, (OWNER, change(Some(1), 0))]), (1, 1));
        let restored = [lowered, (OWNER, change(Some(1), 0)), (OWNER, change(Some(2), 0))];
        assert_eq!(after(&restored), (2, 1));
    }

    #[test]
    fn the_owner_raises_the_latency_budget_of_an_administrator_and_never_lowers_it() {
        let budget = |caller, percent| {
            let latency_budget = LatencyBudget::from_percent(percent);
            (caller, SchedAttrChange { latency_budget, ..SchedAttrChange::default() })
        };
        let after = |requests: &[(Caller, SchedAttrChange)]| {
            let mut layers = Layers::default();
            requests.iter().for_each(|(caller, change)| layers.add(*caller, *change));
            let attr = layers.apply(SchedAttr::default(), &layers.bounds(Bounds::default()));
            attr.latency_budget.percent()
        };
        assert_eq!(after(&[(OWNER, change(Some(3), 0))]), 0);
        assert_eq!(after(&[budget(OWNER, 30), budget(OWNER, 0)]), 0, "nothing binds");
        assert_eq!(after(&[budget(ROOT, 20), budget(OWNER, 5)]), 20);
        assert_eq!(after(&[budget(ROOT, 20), budget(OWNER, 60)]), 60);
        assert_eq!(after(&[budget(OWNER, 60), budget(ROOT, 20)]), 20, "root replaces it");
    }

    #[test]
    fn an_administrator_replaces_what_the_owner_asked_for() {
        let lowered = (OWNER, change(Some(1), 0));
        assert_eq!(after(&[lowered, (ROOT, change(Some(12), 0))]), (12, 1));
        assert_eq!(after(&[lowered, (ROOT, change(None, 5))]), (1, 5), "the priority stays");
    }

    #[test]
    fn suspensions_of_the_two_layers_end_on_their_own() {
        let suspension = |until_ns| Some(Suspension { until_ns, uid: 0 });
        let mut both = Layers { admin: suspension(20), owner: suspension(10) };
        assert_eq!((both.until_ns(), both.next_ns()), (Some(20), Some(10)));
        assert_eq!(both.after(10), Layers { admin: suspension(20), owner: None });
        assert!(both.after(20).is_empty());
        both.end(false);
        assert_eq!(both, Layers { admin: suspension(20), owner: None });
        both.end(true);
        assert!(both.is_empty());
    }
}
