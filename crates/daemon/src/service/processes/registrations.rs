//! What processes and their children are to have as soon as they use a device.
//!
//! `gpreempt run` registers a process before its first GPU call. Which of its children uses the GPU
//! in the end is found out by going up from that one.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;

use gpreempt_device::process::{ProcessInfo, ProcessKey};

use super::tracked_process::Order;

/// How many there may be, of one user who is not our master.
const PER_USER_MAX: usize = 1_000;
/// How many there may be at all.
const ALL_MAX: usize = 10_000;
/// How far up it is looked for a parent that was registered.
const ANCESTORS_MAX: usize = 64;

/// One that was registered.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) order: Order,
    /// Whether it counts for children that run as somebody else.
    pub(crate) by_master: bool,
    pub(crate) uid: u32,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) watch: u64,
}

/// All that were registered and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    known: BTreeMap<ProcessKey, Registration>,
}

impl Registrations {
    /// Whether one more of that user fits.
    pub(crate) fn has_room(&self, key: ProcessKey, uid: u32, by_master: bool) -> bool {
        let own = self.known.values().filter(|registration| registration.order.uid == uid).count();
        self.known.contains_key(&key)
            || (self.known.len() < ALL_MAX && (by_master || own < PER_USER_MAX))
    }

    pub(crate) fn get_mut(&mut self, key: ProcessKey) -> Option<&mut Registration> {
        self.known.get_mut(&key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ProcessKey, &Registration)> {
        self.known.iter()
    }

    pub(crate) fn insert(&mut self, key: ProcessKey, registration: Registration) {
        self.known.insert(key, registration);
    }

    pub(crate) fn remove(&mut self, key: ProcessKey) {
        self.known.remove(&key);
    }

    /// Forgets the one that the loop watches by that number. False if there is none.
    pub(crate) fn remove_watched(&mut self, watch: u64) -> bool {
        let before = self.known.len();
        self.known.retain(|_, registration| registration.watch != watch);
        self.known.len() < before
    }

    /// Forgets those that ended and could not be watched.
    pub(crate) fn sweep(&mut self) {
        self.known.retain(|key, known| known.pidfd.is_some() || key.check().is_ok());
    }

    /// What was asked for a process of that user, or for the nearest of its ancestors.
    pub(crate) fn find(&self, key: ProcessKey, uid: u32) -> Option<Order> {
        if self.known.is_empty() {
            return None;
        }
        self.find_in(std::iter::once(key).chain(ancestors(key.pid)), uid)
    }

    fn find_in(&self, mut line: impl Iterator<Item = ProcessKey>, uid: u32) -> Option<Order> {
        line.find_map(|key| {
            let known = self.known.get(&key)?;
            (known.by_master || known.uid == uid).then_some(known.order)
        })
    }
}

/// The parent of a process, its parent, and so on.
fn ancestors(pid: u32) -> impl Iterator<Item = ProcessKey> {
    let parents = std::iter::successors(parent(pid), |pid| parent(*pid)).take(ANCESTORS_MAX);
    parents.filter_map(|pid| ProcessInfo::read(pid).ok()).map(|info| info.key)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parent_in(&String::from_utf8_lossy(&stat))
}

/// The second field after the name, which stands in parentheses and may contain others.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let pid: u32 = rest.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (pid > 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::priority::Priority;
    use gpreempt_wire::process::SchedAttrChange;

    fn registration(level: u8, uid: u32, by_master: bool) -> Registration {
        let priority = Priority::new(level);
        let change = SchedAttrChange { priority, ..SchedAttrChange::default() };
        let order = Order { change, uid };
        Registration { order, by_master, uid, pidfd: None, watch: u64::from(level) }
    }

    const fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    #[test]
    fn the_nearest_ancestor_counts_and_users_speak_for_themselves() {
        let mut known = Registrations::default();
        known.insert(key(1), registration(1, 1000, false));
        known.insert(key(2), registration(2, 1000, false));
        let level = |known: &Registrations, line: &[u32], uid| {
            let order = known.find_in(line.iter().map(|pid| key(*pid)), uid);
            order.and_then(|order| order.change.priority).map(Priority::level)
        };
        assert_eq!(level(&known, &[9, 2, 1], 1000), Some(2));
        assert_eq!(level(&known, &[9, 1], 1000), Some(1));
        assert_eq!(level(&known, &[9], 1000), None);
        assert_eq!(level(&known, &[9, 2, 1], 1001), None, "it runs as somebody else");
        known.insert(key(2), registration(3, 0, true));
        assert_eq!(level(&known, &[9, 2, 1], 1001), Some(3), "root may say so");
        assert!(known.remove_watched(3) && !known.remove_watched(3));
        assert_eq!(level(&known, &[9, 2, 1], 1000), Some(1));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut known = Registrations::default();
        for pid in 0..1_000 {
            assert!(known.has_room(key(pid), 5, false));
            known.insert(key(pid), registration(1, 5, false));
        }
        assert!(!known.has_room(key(1_000), 5, false));
        assert!(known.has_room(key(999), 5, false), "it is there already");
        assert!(known.has_room(key(1_000), 6, false) && known.has_room(key(1_000), 5, true));
    }

    #[test]
    fn a_child_leads_to_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        let line: Vec<ProcessKey> = ancestors(child.id()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(line.first(), Some(&own));
        assert_eq!(parent_in("7 (a) b) S 42 1"), Some(42));
        assert_eq!(parent_in("1 (init) S 0 1"), None);
        assert_eq!(parent_in("cut"), None);
    }
}
