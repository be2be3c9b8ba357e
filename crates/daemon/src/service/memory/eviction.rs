//! One eviction: the processes that are evicted together, why, and where their memory is.
//!
//! ```text
//!   Checking -> Ready -> Releasing -> MovingOut -> Out -> MovingBack -> under control again
//!       |                    |            |                   |
//!    refused               late        undone               no room: Out, and again later
//! ```
//!
//! This module decides nothing about the machine; [`super`] carries out what follows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::priority::Priority;
use gpreempt_device::process::ProcessKey;

use crate::service::clients::pending_answers::RequestRef;
use crate::service::processes::client_settings::{Layers, Suspension};

/// Why processes are evicted. Their memory returns when no reason is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    /// What users asked for. A lease of `u64::MAX` does not end.
    pub(crate) asked: Layers<Suspension>,
    /// The claims that they are evicted for.
    pub(crate) room: BTreeSet<u64>,
    /// It is the turn of others.
    pub(crate) turn: bool,
}

impl Reasons {
    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.room.is_empty() && !self.turn
    }

    /// Removes leases that have ended. Returns whether there was one.
    pub(crate) fn end_leases(&mut self, now_ns: u64) -> bool {
        let before = self.asked;
        self.asked = before.after(now_ns);
        before != self.asked
    }
}

/// Where the memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was touched yet.
    Checking,
    /// It can be done, and waits until others that are evicted for the same claim were checked.
    Ready,
    /// The controllers release the processes.
    Releasing {
        since_ns: u64,
    },
    MovingOut {
        since_ns: u64,
    },
    Out {
        /// Not before then is the next try to restore it.
        retry_ns: u64,
        /// Why it was not restored.
        waits: Option<String>,
    },
    MovingBack {
        since_ns: u64,
    },
}

/// Processes that are evicted and restored together.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    /// The process that the request named; it may use no device itself.
    pub(crate) root: ProcessKey,
    pub(crate) members: Vec<ProcessKey>,
    pub(crate) gpu: String,
    /// The highest priority of the members.
    pub(crate) priority: Priority,
    /// What they had on the device.
    pub(crate) bytes: u64,
    pub(crate) phase: Phase,
    pub(crate) reasons: Reasons,
    /// How long the lease is that begins when the memory is out.
    pub(crate) lease_ns: Option<u64>,
    /// Clients that wait until the memory is out.
    pub(crate) asked_out: Vec<RequestRef>,
    /// Clients that wait until the memory is back.
    pub(crate) asked_back: Vec<RequestRef>,
}

impl Eviction {
    /// Whether nothing was touched yet.
    pub(crate) const fn is_planned(&self) -> bool {
        matches!(self.phase, Phase::Checking | Phase::Ready)
    }

    pub(crate) const fn is_out(&self) -> bool {
        matches!(self.phase, Phase::Out { .. })
    }

    /// Whether its memory is on the device, and is to leave.
    pub(crate) const fn is_leaving(&self) -> bool {
        !matches!(self.phase, Phase::Out { .. } | Phase::MovingBack { .. })
    }

    pub(crate) fn concerns(&self, key: ProcessKey) -> bool {
        self.root == key || self.members.contains(&key)
    }

    /// Whether its memory is to come back now, or as soon as there is room.
    pub(crate) fn may_return(&self) -> bool {
        self.is_out() && self.reasons.is_empty()
    }

    /// Begins the lease of the request for which it was evicted.
    pub(crate) fn begin_lease(&mut self, now_ns: u64) {
        let Some(lease_ns) = self.lease_ns.take() else { return };
        let until_ns = now_ns.saturating_add(lease_ns);
        for layer in [&mut self.reasons.asked.admin, &mut self.reasons.asked.owner] {
            if let Some(asked) = layer.as_mut().filter(|asked| asked.until_ns == PENDING_NS) {
                asked.until_ns = until_ns;
            }
        }
    }
}

/// The end of a lease that begins when the memory is out.
pub(crate) const PENDING_NS: u64 = u64::MAX - 1;

/// What the memory of a moment is, for decisions about one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceMemory {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

impl DeviceMemory {
    pub(crate) const fn free(self) -> u64 {
        self.total.saturating_sub(self.used)
    }
}

/// Which of the evictions that may return are restored now, by their position: the highest priority
/// first, then the one that waits longest, and none before one that is ahead of it on the same
/// device. `free` is what the device has left, where that is known.
pub(crate) fn restorable(
    waiting: &[(u64, &Eviction)],
    now_ns: u64,
    mut free: impl FnMut(&Eviction) -> Option<u64>,
) -> (Vec<u64>, Vec<(u64, u64)>) {
    let mut order: Vec<&(u64, &Eviction)> = waiting.iter().collect();
    order.sort_by_key(|(id, eviction)| (Reverse(eviction.priority), *id));
    let mut taken: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut now, mut short): (Vec<u64>, Vec<(u64, u64)>) = (Vec::new(), Vec::new());
    let mut blocked: BTreeSet<&str> = BTreeSet::new();
    for (id, eviction) in order {
        let gpu = eviction.gpu.as_str();
        if blocked.contains(gpu) {
            continue;
        }
        let Phase::Out { retry_ns, .. } = eviction.phase else { continue };
        let taken = taken.entry(gpu).or_default();
        let left = free(eviction).map(|free| free.saturating_sub(*taken));
        match left {
            Some(left) if left < eviction.bytes => {
                short.push((*id, left));
                blocked.insert(gpu);
            }
            _ if now_ns < retry_ns => {
                blocked.insert(gpu);
            }
            _ => {
                *taken = taken.saturating_add(eviction.bytes);
                now.push(*id);
            }
        }
    }
    (now, short)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    fn out(priority: u8, gib: u64, gpu: &str) -> Eviction {
        Eviction {
            root: key(1),
            members: vec![key(1)],
            gpu: gpu.to_owned(),
            priority: Priority::new(priority).unwrap(),
            bytes: gib * GIB,
            phase: Phase::Out { retry_ns: 0, waits: None },
            reasons: Reasons::default(),
            lease_ns: None,
            asked_out: Vec::new(),
            asked_back: Vec::new(),
        }
    }

    fn restored(evictions: &[Eviction], free_gib: u64) -> (Vec<u64>, Vec<(u64, u64)>) {
        let waiting: Vec<(u64, &Eviction)> = (1..).zip(evictions).collect();
        restorable(&waiting, 5, |_| Some(free_gib * GIB))
    }

    #[test]
    fn the_highest_priority_returns_first_and_none_passes_it() {
        let two = [out(2, 16, "a"), out(5, 16, "a")];
        assert_eq!(restored(&two, 20), (vec![2], vec![(1, 4 * GIB)]));
        assert_eq!(restored(&two, 40), (vec![2, 1], vec![]));
        let small_is_lower = [out(2, 1, "a"), out(5, 16, "a"), out(2, 3, "b")];
        assert_eq!(restored(&small_is_lower, 10), (vec![3], vec![(2, 10 * GIB)]));
    }

    #[test]
    fn what_failed_is_tried_again_later_also_where_the_memory_is_unknown() {
        let mut late = out(2, 16, "a");
        late.phase = Phase::Out { retry_ns: 10, waits: None };
        assert_eq!(restorable(&[(1, &late)], 5, |_| None), (vec![], vec![]));
        assert_eq!(restorable(&[(1, &late)], 10, |_| None), (vec![1], vec![]));
    }

    #[test]
    fn a_lease_begins_when_the_memory_is_out_and_ends() {
        let mut evicted = out(2, 1, "a");
        let asked = Suspension { until_ns: PENDING_NS, uid: 5 };
        evicted.reasons.asked = Layers::of(asked, false);
        evicted.lease_ns = Some(100);
        assert!(!evicted.reasons.end_leases(1_000), "it has not begun");
        evicted.begin_lease(1_000);
        assert!(!evicted.reasons.end_leases(1_099));
        assert!(!evicted.may_return());
        assert!(evicted.reasons.end_leases(1_100));
        assert!(evicted.may_return());
    }

    #[test]
    fn memory_returns_when_no_reason_is_left() {
        let mut reasons =
            Reasons { room: BTreeSet::from([3, 4]), turn: true, ..Reasons::default() };
        reasons.room.clear();
        assert!(!reasons.is_empty());
        reasons.turn = false;
        assert!(reasons.is_empty());
    }
}
