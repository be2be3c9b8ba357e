//! Processes by what /proc says of them.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gpreempt_device::process::{ProcessInfo, all_pids};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The children of a process, also those that have ended and that nobody has looked at.
pub(super) fn all_children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.filter_map(Result::ok).map(|thread| thread.path().join("children"));
    let lists: Vec<String> = lists.filter_map(|list| fs::read_to_string(list).ok()).collect();
    let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Kills a child of `parent`, and nobody who has its number by now. False if it is gone.
pub(super) fn kill_child(pid: u32, parent: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(descriptor) = pidfd_open(number, PidfdFlags::empty()) else { return false };
    // From here on the number cannot be given to anybody else.
    let is_child = ProcessInfo::read(pid).is_ok_and(|info| info.parent == parent && !info.zombie);
    is_child && pidfd_send_signal(&descriptor, Signal::KILL).is_ok()
}

/// Processes that have a folder in their environment, with their names.
pub(super) fn inhabitants(folder: &Path) -> Vec<String> {
    let folder = folder.as_os_str().as_bytes();
    let lives_here = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(folder.len()).any(|window| window == folder)
    };
    let here = all_pids().unwrap_or_default().into_iter().filter(lives_here);
    let infos = here.filter_map(|pid| ProcessInfo::read(pid).ok());
    infos.map(|info| format!("{} ({})", info.key, info.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_are_found_and_only_their_parent_may_have_them_killed() {
        let folder = std::env::temp_dir().join(format!("gpreempt-proc-{}", std::process::id()));
        let mut sleep = Command::new("sleep").arg("60").env("HERE", &folder).spawn().unwrap();
        let own = std::process::id();
        assert!(all_children(own).contains(&sleep.id()));
        // Until it has become what it is, it has our surroundings.
        let found = (0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            inhabitants(&folder).len() == 1
        });
        assert!(found);
        assert!(!kill_child(sleep.id(), own + 1));
        assert!(kill_child(sleep.id(), own));
        sleep.wait().unwrap();
        assert!(!kill_child(sleep.id(), own), "it is gone");
        assert!(inhabitants(&folder).is_empty());
    }
}
