//! All queues of all processes, as a patched KFD lists them in debugfs (`kfd/queues`).
//!
//! ```text
//! pid 4711 queue 0 serial 17 gpu_id 40961 type 0 format 1 ring 7f00 size 4096 read 7f38 write 7f80
//! ```
//!
//! At the end is `preempted` if it is. Addresses are hexadecimal. What makes no sense is left out,
//! and words that are not known are passed over, so that a newer patch may say more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::Kind;
use crate::amd::abi::block::QueueType;
use crate::amd::abi::trap::QueueEntry;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whose queue.
    pub pid: u32,
    /// Its serial number, which no other queue ever has.
    pub serial: u64,
    /// What it is for.
    pub kind: Kind,
    /// What a snapshot would say of it.
    pub entry: QueueEntry,
    /// Whether a call of ours, or the kernel's scheduler, keeps it off.
    pub is_preempted: bool,
}

/// Every queue there is, from KFD's folder in debugfs.
///
/// # Errors
/// If the file is not there or may not be read.
pub fn listing(debugfs: &Path) -> io::Result<Vec<Line>> {
    let text = fs::read(debugfs.join("queues"))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// The lines that make sense.
fn parse(text: &str) -> Vec<Line> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "pid 42 queue 3 serial 5000000000 gpu_id 40961 type 0 format 1 \
                        ring 7f00aa00 size 4096 read 7f000080 write 7f000038 preempted\n";

    #[test]
    fn a_line_is_a_queue() {
        let lines = parse(TEXT);
        let Line { pid, serial, kind, entry, is_preempted } = lines[0];
        assert_eq!((pid, kind, is_preempted), (42, Kind::Compute, true));
        assert_eq!(serial, 5_000_000_000);
        assert_eq!((entry.queue_id, entry.gpu_id, entry.queue_type), (3, 40_961, 2));
        assert_eq!((entry.ring_base, entry.ring_size), (0x7f00_aa00, 4096));
        assert_eq!((entry.read_pointer, entry.write_pointer), (0x7f00_0080, 0x7f00_0038));
    }

    #[test]
    fn what_is_cut_off_or_of_another_kind_is_told_apart() {
        assert_eq!(parse(&TEXT[..40]), []);
        let copy = TEXT.replace("type 0 format 1", "type 1 format 0");
        assert_eq!(parse(&copy)[0].kind, Kind::Copy);
        let pm4 = TEXT.replace("format 1", "format 0 color blue");
        assert_eq!(parse(&pm4)[0].entry.queue_type, 0);
        assert_eq!(parse(&TEXT.replace("7f00aa00", "ring")), []);
        assert!(listing(Path::new("/nonexistent")).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_listing(text in "(pid|queue|ring|preempted|[0-9a-f]{1,20}|[ \\n]){0,60}") {
            prop_assert!(parse(&text).len() <= text.lines().count());
        }
    }
}
