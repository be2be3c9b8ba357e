//! Lists the queues of processes, from sysfs and from the debugfs of a patched KFD.
//!
//! A debug session's snapshot has everything except the priority. sysfs has ids and devices,
//! readable by all users. `mqds` in debugfs has the rest for root, but no queue ids: there a queue
//! is found by its ring ([`hardware_of`]). A patched KFD lists all queues of all processes in
//! `kfd/queues`:
//!
//! ```text
//! pid 4711 queue 0 serial 17 gpu_id 40961 type 0 format 1 ring 7f00 size 4096 read 7f38 write 7f80
//! ```
//!
//! A preempted queue has `preempted` at the end. Addresses are hexadecimal. Malformed lines are
//! skipped, and unknown words are ignored, so that a newer patch may add some.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use super::abi::block::QueueType;
use super::abi::trap::QueueEntry;
pub use super::mqd::{Dump, Hardware, MqdProcess, MqdQueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Compute,
    Copy,
    Other(u32),
}

impl Kind {
    /// The numbers of snapshots.
    pub const fn of_snapshot(number: u32) -> Self {
        const COMPUTE: u32 = QueueType::Compute as u32;
        const COMPUTE_AQL: u32 = QueueType::ComputeAql as u32;
        const SDMA: u32 = QueueType::Sdma as u32;
        const SDMA_XGMI: u32 = QueueType::SdmaXgmi as u32;
        match number {
            COMPUTE | COMPUTE_AQL => Self::Compute,
            SDMA | SDMA_XGMI | 4 => Self::Copy,
            number => Self::Other(number),
        }
    }

    /// The numbers of sysfs, where 2 is a queue of the kernel. Kernels differ in the numbers of
    /// copy queues above that.
    pub const fn of_sysfs(number: u32) -> Self {
        match number {
            0 => Self::Compute,
            1 | 3..=5 => Self::Copy,
            number => Self::Other(number),
        }
    }
}

/// The hardware state of a queue, if the dump contains it.
pub fn hardware_of(dump: &Dump, pid: u32, queue: &QueueEntry) -> Option<Hardware> {
    let queues = dump.processes.iter().filter(|process| process.pid == pid);
    let mut queues = queues.flat_map(|process| &process.queues);
    queues.find_map(|found| {
        let hardware = found.hardware()?;
        (found.gpu_id == queue.gpu_id && hardware.ring_base == queue.ring_base).then_some(hardware)
    })
}

/// A line of `kfd/queues`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub pid: u32,
    /// Never reused, unlike the queue id.
    pub serial: u64,
    pub kind: Kind,
    /// What a snapshot would contain.
    pub entry: QueueEntry,
    /// Whether a patched call or the in-kernel scheduler keeps it off the device.
    pub is_preempted: bool,
}

/// All queues, from KFD's folder in debugfs.
pub fn listing(debugfs: &Path) -> io::Result<Vec<Line>> {
    let text = fs::read(debugfs.join("queues"))?;
    Ok(parse_queues(&String::from_utf8_lossy(&text)))
}

/// The queues in the text of `kfd/queues`.
pub fn parse_queues(text: &str) -> Vec<Line> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace().peekable();
    let (mut values, mut is_preempted) = (BTreeMap::new(), false);
    while let Some(word) = words.next() {
        if word == "preempted" {
            is_preempted = true;
        } else if let Some(value) = words.next() {
            values.insert(word, value);
        }
    }
    let number = |name: &str| values.get(name)?.parse::<u32>().ok();
    let address = |name: &str| u64::from_str_radix(values.get(name)?, 16).ok();
    let kind = Kind::of_sysfs(number("type")?);
    let queue_type = match (kind, number("format")?) {
        (Kind::Compute, 1) => QueueType::ComputeAql,
        (Kind::Compute, _) => QueueType::Compute,
        (Kind::Copy | Kind::Other(_), _) => QueueType::Sdma,
    };
    let entry = QueueEntry {
        queue_id: number("queue")?,
        gpu_id: number("gpu_id")?,
        ring_base: address("ring")?,
        ring_size: number("size")?,
        read_pointer: address("read")?,
        write_pointer: address("write")?,
        // CAST: `QueueType` has 32 bits.
        queue_type: queue_type as u32,
        ..QueueEntry::default()
    };
    let serial = values.get("serial")?.parse().ok()?;
    Some(Line { pid: number("pid")?, serial, kind, entry, is_preempted })
}

/// A queue in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedQueue {
    pub queue_id: u32,
    pub gpu_id: u32,
    pub kind: Kind,
    pub ring_size: u64,
}

/// The processes that use KFD, from its folder in sysfs.
pub fn users(sysfs: &Path) -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> = fs::read_dir(sysfs.join("proc"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The queues of a process. One that is destroyed meanwhile is left out.
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
    fn snapshot_and_sysfs_numbers_differ() {
        assert_eq!(Kind::of_snapshot(2), Kind::Compute);
        assert_eq!(Kind::of_sysfs(2), Kind::Other(2));
        assert_eq!(Kind::of_snapshot(3), Kind::Copy);
        assert_eq!(Kind::of_sysfs(4), Kind::Copy);
        assert_eq!(Kind::of_snapshot(9), Kind::Other(9));
    }

    const TEXT: &str = "pid 42 queue 3 serial 5000000000 gpu_id 40961 type 0 format 1 \
                        ring 7f00aa00 size 4096 read 7f000080 write 7f000038 preempted\n";

    #[test]
    fn a_line_is_parsed_as_a_queue() {
        let lines = parse_queues(TEXT);
        let Line { pid, serial, kind, entry, is_preempted } = lines[0];
        assert_eq!((pid, kind, is_preempted), (42, Kind::Compute, true));
        assert_eq!(serial, 5_000_000_000);
        assert_eq!((entry.queue_id, entry.gpu_id, entry.queue_type), (3, 40_961, 2));
        assert_eq!((entry.ring_base, entry.ring_size), (0x7f00_aa00, 4096));
        assert_eq!((entry.read_pointer, entry.write_pointer), (0x7f00_0080, 0x7f00_0038));
    }

    #[test]
    fn truncated_lines_and_other_kinds_are_recognised() {
        assert_eq!(parse_queues(&TEXT[..40]), []);
        let copy = TEXT.replace("type 0 format 1", "type 1 format 0");
        assert_eq!(parse_queues(&copy)[0].kind, Kind::Copy);
        let pm4 = TEXT.replace("format 1", "format 0 color blue");
        assert_eq!(parse_queues(&pm4)[0].entry.queue_type, 0);
        assert_eq!(parse_queues(&TEXT.replace("7f00aa00", "ring")), []);
        assert!(listing(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn incomplete_queues_are_not_listed() {
        let folder = gpreempt_stage::WorkFolder::new("queues").unwrap();
        let root = folder.root();
        assert!(users(root).is_err());
        let process = root.join("proc/42");
        // The kernel writes them without a newline.
        for (queue, gpu, kind, size) in [(10, 1234, 0, 65536), (2, 1234, 1, 4096)] {
            let folder = process.join(format!("queues/{queue}"));
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("gpuid", gpu), ("type", kind), ("size", size)] {
                fs::write(folder.join(file), value.to_string()).unwrap();
            }
        }
        fs::create_dir_all(process.join("queues/3")).unwrap();
        fs::create_dir_all(root.join("proc/7")).unwrap();
        assert_eq!(users(root).unwrap(), [7, 42]);
        let copy = ListedQueue { queue_id: 2, gpu_id: 1234, kind: Kind::Copy, ring_size: 4096 };
        let compute =
            ListedQueue { queue_id: 10, gpu_id: 1234, kind: Kind::Compute, ring_size: 65536 };
        assert_eq!(queues_of(root, 42).unwrap(), [copy, compute]);
        assert!(queues_of(root, 7).is_err());
    }
}
