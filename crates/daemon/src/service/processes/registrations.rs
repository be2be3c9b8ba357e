//! Attributes that processes and their children get as soon as they use a device.
//!
//! `gpreempt run` registers a process before its first GPU call. For a child that uses the GPU, the
//! daemon searches its ancestors for a registration.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use gpreempt_device::process::ProcessKey;

use super::client_settings::{Layers, SchedOverride};

/// For each user but root and the user that runs the daemon, and for all of them together.
const PER_USER_MAX: usize = 1_000;
const ALL_MAX: usize = 10_000;
/// More ancestors of a process are not searched for a registration.
pub(crate) const ANCESTORS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Registration {
    /// The administrators' layer also applies to children that run as another user.
    pub(crate) overrides: Layers<SchedOverride>,
    /// The owner of the process.
    pub(crate) uid: u32,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) watch: u64,
}

/// The registrations of processes that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    known: BTreeMap<ProcessKey, Registration>,
}

impl Registrations {
    pub(crate) fn has_room(&self, key: ProcessKey, uid: u32, by_admin: bool) -> bool {
        let is_own = |known: &&Registration| {
            known.overrides.owner.or(known.overrides.admin).is_some_and(|asked| asked.uid == uid)
        };
        let own = self.known.values().filter(is_own).count();
        self.known.contains_key(&key)
            || by_admin
            || (self.known.len() < ALL_MAX && own < PER_USER_MAX)
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

    /// Forgets the process with that number in the epoll set.
    pub(crate) fn remove_watched(&mut self, watch: u64) {
        self.known.retain(|_, registration| registration.watch != watch);
    }

    /// Forgets ended processes that could not be watched.
    pub(crate) fn sweep(&mut self) {
        self.known.retain(|key, known| known.pidfd.is_some() || key.check().is_ok());
    }

    /// The registrations of a process of that user and of its ancestors: the nearest one of an
    /// administrator, and the nearest one of the user unless an administrator's is nearer.
    pub(crate) fn find(&self, lineage: &[ProcessKey], uid: u32) -> Layers<SchedOverride> {
        let mut found = Layers::default();
        for known in lineage.iter().filter_map(|key| self.known.get(key)) {
            if known.uid == uid {
                found.owner = found.owner.or(known.overrides.owner);
            }
            if known.overrides.admin.is_some() {
                found.admin = known.overrides.admin;
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::priority::Priority;
    use gpreempt_wire::process::SchedAttrChange;

    fn registration(level: u8, uid: u32, by_admin: bool) -> Registration {
        let priority = Priority::new(level);
        let change = SchedAttrChange { priority, ..SchedAttrChange::default() };
        let overrides = Layers::of(SchedOverride { change, uid }, by_admin);
        Registration { overrides, uid, pidfd: None, watch: u64::from(level) }
    }

    const fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    #[test]
    fn the_nearest_registered_ancestor_of_the_same_user_counts() {
        let mut known = Registrations::default();
        known.insert(key(1), registration(1, 1000, false));
        known.insert(key(2), registration(2, 1000, false));
        let level = |known: &Registrations, line: &[u32], uid| {
            let line: Vec<ProcessKey> = line.iter().map(|pid| key(*pid)).collect();
            let found = known.find(&line, uid);
            let nearest = found.owner.or(found.admin);
            nearest.and_then(|asked| asked.change.priority).map(Priority::level)
        };
        assert_eq!(level(&known, &[9, 2, 1], 1000), Some(2));
        assert_eq!(level(&known, &[9, 1], 1000), Some(1));
        assert_eq!(level(&known, &[9], 1000), None);
        assert_eq!(level(&known, &[9, 2, 1], 1001), None, "it runs as another user");
        known.insert(key(2), registration(3, 0, true));
        assert_eq!(level(&known, &[9, 2, 1], 1001), Some(3), "root registered it");
        known.remove_watched(3);
        assert_eq!(level(&known, &[9, 2, 1], 1000), Some(1));
    }

    #[test]
    fn a_registration_of_the_user_does_not_hide_one_of_an_administrator() {
        let mut known = Registrations::default();
        known.insert(key(1), registration(0, 0, true));
        known.insert(key(2), registration(7, 1000, false));
        let find = |known: &Registrations, line: [u32; 2]| {
            let found = known.find(&line.map(key), 1000);
            let level = |asked: SchedOverride| asked.change.priority.map(Priority::level);
            (found.admin.and_then(level), found.owner.and_then(level))
        };
        assert_eq!(find(&known, [2, 1]), (Some(0), Some(7)), "a child registered itself");
        assert_eq!(find(&known, [1, 2]), (Some(0), None), "the administrator's is nearer");
    }

    #[test]
    fn registrations_are_limited_for_each_user() {
        let mut known = Registrations::default();
        for pid in 0..1_000 {
            assert!(known.has_room(key(pid), 5, false));
            known.insert(key(pid), registration(1, 5, false));
        }
        assert!(!known.has_room(key(1_000), 5, false));
        assert!(known.has_room(key(999), 5, false), "it is there already");
        assert!(known.has_room(key(1_000), 6, false) && known.has_room(key(1_000), 5, true));
        for pid in 0..u32::try_from(ALL_MAX).unwrap() {
            known.insert(key(pid), registration(1, 10 + pid / 1_000, false));
        }
        assert!(!known.has_room(key(u32::MAX), 6, false));
        assert!(known.has_room(key(u32::MAX), 0, true), "users leave no room, and root needs none");
    }
}
