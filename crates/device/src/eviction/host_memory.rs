//! Whether the host has room for evicted memory: the machine, and the control groups of a process.
//!
//! The driver moves the memory into the process itself, so it counts for the process's control
//! groups. Without this check the process, or another one, would be killed for want of memory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::ProcessKey;

/// What stays free on the machine and in each control group: a process needs some memory to go on.
const RESERVE: u64 = 512 << 20;

/// Where memory is short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{place} has {} MiB left, and evicting {} MiB of GPU memory keeps {} MiB of it free; {advice}",
    left >> 20,
    needed >> 20,
    RESERVE >> 20
)]
pub struct NoHostMemory {
    pub place: String,
    pub left: u64,
    pub needed: u64,
    advice: &'static str,
}

/// The folders that are read; tests have their own.
#[derive(Clone, Debug)]
struct Places {
    proc: PathBuf,
    cgroups: PathBuf,
}

/// Checks that `bytes` fit into the host's memory for a process.
pub fn check(process: ProcessKey, bytes: u64) -> Result<(), NoHostMemory> {
    Places { proc: "/proc".into(), cgroups: "/sys/fs/cgroup".into() }.check(process.pid, bytes)
}

impl Places {
    fn check(&self, pid: u32, needed: u64) -> Result<(), NoHostMemory> {
        let short = |left: u64| left < needed.saturating_add(RESERVE);
        let meminfo = fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        if let Some(left) = available(&meminfo).filter(|left| short(*left)) {
            let (place, advice) = ("this machine".to_owned(), "end other programs first");
            return Err(NoHostMemory { place, left, needed, advice });
        }
        let cgroup = fs::read_to_string(self.proc.join(pid.to_string()).join("cgroup"));
        for folder in self.levels(&cgroup.unwrap_or_default()) {
            if let Some(left) = left_in(&folder).filter(|left| short(*left)) {
                let name = folder.strip_prefix(&self.cgroups).unwrap_or(&folder);
                let place = format!("the control group /{} of the process", name.display());
                let advice = "raise its limit (memory.max, or what the container's manifest says)";
                return Err(NoHostMemory { place, left, needed, advice });
            }
        }
        Ok(())
    }

    /// The control group of a process with a memory controller and those above it. In version 1
    /// only the group of the controller `memory` counts.
    fn levels(&self, cgroup: &str) -> Vec<PathBuf> {
        let mut levels = Vec::new();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next(), fields.next(), fields.next());
            let (Some(controllers), Some(path)) = (controllers, path) else { continue };
            let root = match controllers {
                "" => self.cgroups.clone(),
                list if list.split(',').any(|name| name == "memory") => self.cgroups.join("memory"),
                _ => continue,
            };
            // A group outside of this namespace begins with `/..`, and cannot be read.
            let path = Path::new(path.trim_start_matches('/'));
            let above = path.ancestors().map(|part| root.join(part));
            levels.extend(above.filter(|folder| !folder.ends_with("..")));
        }
        levels
    }
}

/// `MemAvailable` in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// What a control group may still use. `memory.high` counts too: above it processes are throttled.
/// File pages are given back when memory is short, so those that are inactive are not in use.
fn left_in(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit = limits.into_iter().filter_map(number).min()?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let inactive = read("memory.stat").and_then(|stat| {
        let field = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            matches!(name, "inactive_file" | "total_inactive_file").then(|| value.parse().ok())?
        };
        stat.lines().filter_map(field).max()
    });
    Some(limit.saturating_sub(used.saturating_sub(inactive.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine with 8 GiB left, and a process in the control group /a/b.
    fn places(folder: &WorkFolder, cgroup: &str) -> Places {
        let places = Places { proc: folder.path("proc"), cgroups: folder.path("cgroup") };
        fs::create_dir_all(places.proc.join("7")).unwrap();
        fs::write(places.proc.join("meminfo"), "MemFree: 1 kB\nMemAvailable:    8388608 kB\n")
            .unwrap();
        fs::write(places.proc.join("7/cgroup"), cgroup).unwrap();
        places
    }

    fn group(places: &Places, path: &str, files: &[(&str, &str)]) {
        let folder = places.cgroups.join(path);
        fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn the_machine_and_every_control_group_above_limit_it() {
        let folder = WorkFolder::new("host_memory").unwrap();
        let places = places(&folder, "0::/a/b\n");
        assert_eq!(places.check(7, 7 * GIB), Ok(()));
        let error = places.check(7, 8 * GIB).unwrap_err();
        assert_eq!((error.place.as_str(), error.left), ("this machine", 8 * GIB));
        group(&places, "a/b", &[("memory.max", "max\n"), ("memory.current", "1000\n")]);
        assert_eq!(places.check(7, 7 * GIB), Ok(()), "no limit");
        group(&places, "a", &[("memory.max", "3221225472"), ("memory.current", "1073741824")]);
        assert_eq!(places.check(7, GIB), Ok(()));
        let error = places.check(7, 2 * GIB).unwrap_err();
        assert_eq!(
            (error.place.as_str(), error.left),
            ("the control group /a of the process", 2 * GIB)
        );
        assert!(error.to_string().contains("2048 MiB left"), "{error}");
        // Inactive file pages are given back.
        group(&places, "a", &[("memory.stat", "anon 5\ninactive_file 1073741824\n")]);
        assert_eq!(places.check(7, 2 * GIB), Ok(()));
        group(&places, "a", &[("memory.high", "2147483648")]);
        assert!(places.check(7, 2 * GIB).is_err(), "it would be throttled");
    }

    #[test]
    fn version_1_and_unreadable_groups() {
        let folder = WorkFolder::new("host_memory_1").unwrap();
        let places = places(&folder, "5:cpu:/c\n4:memory:/a\n0::/../x\n");
        group(&places, "memory/a", &[("memory.limit_in_bytes", "2147483648")]);
        group(&places, "memory/a", &[("memory.usage_in_bytes", "1073741824")]);
        assert!(places.check(7, GIB).is_err());
        assert_eq!(places.check(7, GIB / 4), Ok(()));
        assert_eq!(places.check(8, GIB), Ok(()), "no such process");
    }
}
