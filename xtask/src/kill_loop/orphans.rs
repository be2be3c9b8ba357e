//! Keepers outlive their daemons. They become ours, so that we know when they have ended.

use std::collections::BTreeSet;

use anyhow::Context;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use super::proc;

/// From now on the children of our children become ours when their parents die.
pub(super) fn take_in() -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot look after orphans")
}

/// Takes note of orphans that have ended. `known` are children of our own. Returns who is left.
pub(super) fn look_after(known: &BTreeSet<u32>) -> Vec<u32> {
    let mut left = Vec::new();
    for pid in proc::all_children(std::process::id()) {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(number) = number.filter(|_| !known.contains(&pid)) else { continue };
        if matches!(waitpid(Some(number), WaitOptions::NOHANG), Ok(None)) {
            left.push(pid);
        }
    }
    left
}
