//! Who uses AMD devices, from what the kernel shows to everybody.

use gpreempt_device::amd::probe::Places;
use gpreempt_device::amd::queue::{Kind, ListedQueue, queues_of, users};
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::process::{ProcessInfo, ProcessKey};

use super::{Row, State, Use};

/// A row for each process. Without such devices there are none.
pub(super) fn rows(places: &Places, touched: &[(ProcessKey, State)]) -> Vec<Row> {
    let topology = Topology::read(&places.sysfs).unwrap_or_default();
    let pids = users(&places.sysfs).unwrap_or_default().into_iter();
    // Whoever ends meanwhile is not worth a word.
    let found = pids.filter_map(|pid| {
        Some((ProcessInfo::read(pid).ok()?, queues_of(&places.sysfs, pid).unwrap_or_default()))
    });
    found.map(|(info, queues)| row(info, &queues, &topology, touched)).collect()
}

fn row(
    info: ProcessInfo,
    queues: &[ListedQueue],
    topology: &Topology,
    touched: &[(ProcessKey, State)],
) -> Row {
    let is_used = |node: &&Node| queues.iter().any(|queue| queue.gpu_id == node.gpu_id);
    let used = || topology.devices().filter(is_used);
    Row {
        pid: info.key.pid,
        start_ticks: info.key.start_ticks,
        uid: info.uid,
        name: info.name,
        container: info.container,
        devices: used().map(Node::uuid).collect(),
        uses: used().map(|node| use_of(node, queues)).collect(),
        groups: compute(queues),
        channels: queues.len(),
        slices_us: Vec::new(),
        switches: None,
        state: State::of(info.key, touched),
        problem: None,
    }
}

/// What a process has on one device: a group is a queue for kernels, and every queue a channel.
fn use_of(node: &Node, queues: &[ListedQueue]) -> Use {
    let here: Vec<ListedQueue> =
        queues.iter().filter(|queue| queue.gpu_id == node.gpu_id).copied().collect();
    let groups = compute(&here);
    let (uuid, pci) = (node.uuid(), Some(node.pci()));
    Use { uuid, pci, contexts: groups, groups, channels: here.len() }
}

fn compute(queues: &[ListedQueue]) -> usize {
    queues.iter().filter(|queue| queue.kind == Kind::Compute).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn processes_are_listed_with_what_they_have_on_each_device() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-ps-amd", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let places = Places::emulated(&root);
        assert!(rows(&places, &[]).is_empty());
        let node = places.sysfs.join("topology/nodes/1");
        fs::create_dir_all(&node).unwrap();
        fs::write(node.join("gpu_id"), "77").unwrap();
        fs::write(node.join("properties"), "unique_id 5\nlocation_id 1280\n").unwrap();
        let own = ProcessInfo::read(std::process::id()).unwrap();
        for (queue, kind) in [(0, 0), (1, 0), (2, 1)] {
            let folder = places.sysfs.join(format!("proc/{}/queues/{queue}", own.key.pid));
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("gpuid", 77), ("type", kind), ("size", 4096)] {
                fs::write(folder.join(file), value.to_string()).unwrap();
            }
        }
        let rows = rows(&places, &[(own.key, State::Stopped)]);
        assert_eq!((rows.len(), rows[0].groups, rows[0].channels), (1, 2, 3));
        assert_eq!((rows[0].pid, rows[0].state), (own.key.pid, State::Stopped));
        assert_eq!(rows[0].uses[0].pci.as_deref(), Some("0000:05:00.0"));
        fs::remove_dir_all(root).unwrap();
    }
}
