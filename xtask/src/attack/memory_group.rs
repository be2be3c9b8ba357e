//! A control group that limits the memory of an attacked daemon.
//!
//! The kernel counts there what a process has mapped, and also the packets that it has sent and
//! that no client has read, which the memory of the process does not show. The Kubernetes manifest
//! gives the daemon the same limit: an attack that makes the daemon need more has it killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The limit of the Kubernetes manifest.
const LIMIT_MIB: u64 = 64;
/// Where the controller is in a system with one hierarchy, and in an older one, with the names of
/// the files with the limits of memory and of memory with swap.
const HIERARCHIES: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
];

/// A control group of its own. It is removed when this is dropped, after its processes have ended.
#[derive(Debug)]
pub(super) struct MemoryGroup {
    folder: PathBuf,
}

impl MemoryGroup {
    /// None, with a line that says so, where this system has no control groups that may be made.
    pub(super) fn new() -> Option<Self> {
        let made = HIERARCHIES
            .iter()
            .find_map(|(root, limit, with_swap)| Self::at(Path::new(root), limit, with_swap));
        if made.is_none() {
            eprintln!("the memory of the daemon is measured and not limited: no control groups");
        }
        made
    }

    fn at(root: &Path, limit: &str, with_swap: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // ORDERING: only that numbers differ matters.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("gpreempt-attack-{}-{number}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let group = Self { folder };
        // Outside of control groups, the folder is made and the file is not there.
        let bytes = (LIMIT_MIB << 20).to_string();
        let file = group.folder.join(limit);
        if !file.exists() || fs::write(file, &bytes).is_err() {
            return None;
        }
        // A system without swap has no such file.
        let swap = if with_swap == "memory.swap.max" { "0" } else { &bytes };
        let _unlimited = fs::write(group.folder.join(with_swap), swap);
        Some(group)
    }

    /// A command that runs the program which follows it in this group.
    pub(super) fn join_command(&self) -> Vec<String> {
        let procs = self.folder.join("cgroup.procs");
        let script = format!("echo $$ >{} && exec \"$0\" \"$@\"", procs.display());
        ["sh", "-c", &script].map(str::to_owned).into()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The keeper may take a moment to end.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("{} cannot be removed", self.folder.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_that_of_the_manifest() {
        let root = crate::process::repository_root();
        let manifest = fs::read_to_string(root.join("deploy/kubernetes/daemonset.yaml")).unwrap();
        let limits = manifest.split_once("limits:").unwrap().1;
        assert!(limits.contains(&format!("memory: {LIMIT_MIB}Mi")), "{manifest}");
    }

    #[test]
    fn a_folder_that_is_no_control_group_is_left_as_it_was() {
        let folder = gpreempt_stage::WorkFolder::new("memory-group").unwrap();
        let (_, limit, with_swap) = HIERARCHIES[0];
        assert!(MemoryGroup::at(folder.root(), limit, with_swap).is_none());
        assert!(folder.names().unwrap().is_empty());
    }
}
