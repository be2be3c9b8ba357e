//! Queues as sysfs lists them: for every process, readable by everybody.

use std::fs;
use std::io;
use std::path::Path;

use super::Kind;

/// One queue of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedQueue {
    /// Its name in its process.
    pub queue_id: u32,
    /// Its device.
    pub gpu_id: u32,
    /// What it is for.
    pub kind: Kind,
    /// Bytes of its ring.
    pub ring_size: u64,
}

/// The processes that use KFD, from its folder in sysfs.
///
/// # Errors
/// If there is no such folder.
pub fn users(sysfs: &Path) -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> = fs::read_dir(sysfs.join("proc"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The queues of a process. One that goes away meanwhile is left out.
///
/// # Errors
/// If the process does not use KFD, or there is no such folder.
pub fn queues_of(sysfs: &Path, pid: u32) -> io::Result<Vec<ListedQueue>> {
    let mut queues = Vec::new();
    for entry in fs::read_dir(sysfs.join(format!("proc/{pid}/queues")))? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        let Some(queue_id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let number = |file: &str| -> Option<u64> {
            fs::read_to_string(entry.path().join(file)).ok()?.trim().parse().ok()
        };
        let short = |file: &str| number(file).and_then(|value| u32::try_from(value).ok());
        let (Some(gpu_id), Some(kind), Some(ring_size)) =
            (short("gpuid"), short("type"), number("size"))
        else {
            continue;
        };
        queues.push(ListedQueue { queue_id, gpu_id, kind: Kind::of_sysfs(kind), ring_size });
    }
    queues.sort_by_key(|queue| queue.queue_id);
    Ok(queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_listed_and_half_gone_ones_are_not() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-queues", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        assert!(users(&root).is_err());
        let process = root.join("proc/42");
        // As the kernel writes them: without the end of a line.
        for (queue, gpu, kind, size) in [(10, 1234, 0, 65536), (2, 1234, 1, 4096)] {
            let folder = process.join(format!("queues/{queue}"));
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("gpuid", gpu), ("type", kind), ("size", size)] {
                fs::write(folder.join(file), value.to_string()).unwrap();
            }
        }
        fs::create_dir_all(process.join("queues/3")).unwrap();
        fs::create_dir_all(root.join("proc/7")).unwrap();
        assert_eq!(users(&root).unwrap(), [7, 42]);
        let copy = ListedQueue { queue_id: 2, gpu_id: 1234, kind: Kind::Copy, ring_size: 4096 };
        let compute =
            ListedQueue { queue_id: 10, gpu_id: 1234, kind: Kind::Compute, ring_size: 65536 };
        assert_eq!(queues_of(&root, 42).unwrap(), [copy, compute]);
        assert!(queues_of(&root, 7).is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
