//! What KFD shows of processes that are off their devices.

use std::collections::BTreeMap;
use std::fs;

use super::act::AmdAct;
use super::queue::{Dump, MqdQueue, users};
use super::site::SiteName;
use crate::journal::Act;
use crate::process::{ProcessInfo, ProcessKey};

/// Processes none of whose compute queues is on a device, as the act that would have paused them.
/// None if the kernel does not show that: only root sees debugfs, and only where it is mounted.
pub(crate) fn stopped(name: &SiteName) -> Option<Vec<(ProcessKey, Act)>> {
    let text = fs::read(name.places().debugfs.join("mqds")).ok()?;
    // A process may come twice in the text.
    let mut is_on: BTreeMap<u32, bool> = BTreeMap::new();
    for process in Dump::parse(&text).processes {
        for hardware in process.queues.iter().filter_map(MqdQueue::hardware) {
            *is_on.entry(process.pid).or_default() |= hardware.is_active;
        }
    }
    let off = is_on.into_iter().filter(|(_, is_on)| !is_on);
    let named = off.filter_map(|(pid, _)| {
        let key = ProcessInfo::read(pid).ok()?.key;
        Some((key, Act::Amd(AmdAct::Pause { site: name.clone() })))
    });
    Some(named.collect())
}

/// Whether a process uses AMD devices, as far as that is shown.
pub(crate) fn uses(name: &SiteName, pid: u32) -> bool {
    users(&name.places().sysfs).is_ok_and(|users| users.contains(&pid))
}
