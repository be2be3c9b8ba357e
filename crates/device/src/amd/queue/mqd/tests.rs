use std::fmt::Write;

use super::*;
use crate::amd::abi::trap::QueueEntry;
use crate::amd::queue::hardware_of;

/// A descriptor with those words and zeros.
fn descriptor(words: &[(usize, u32)], length: usize) -> String {
    let mut all = vec![0_u32; length];
    for (index, word) in words {
        all[*index] = *word;
    }
    let mut text = String::new();
    for (line, words) in all.chunks(LINE).enumerate() {
        let words: Vec<String> = words.iter().map(|word| format!("{word:08x}")).collect();
        writeln!(text, "    {:08x}: {}", line * 32, words.join(" ")).unwrap();
    }
    text
}

fn compute(ring: u64) -> String {
    let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
    let (base, write, read) = (ring >> 8, ring + 0x38, ring + 0x80);
    let pairs = [(136, base), (139, read), (141, write), (171, 0x7f00_0000_0000)];
    let mut words = vec![(130, 1), (133, 1), (134, 7), (174, 4096), (175, 4096), (177, 65536)];
    for (index, value) in pairs {
        words.extend([(index, low(value)), (index + 1, low(value >> 32))]);
    }
    descriptor(&words, WORDS)
}

/// Two processes; the first has a queue on two dies and one for copies behind it.
fn example() -> String {
    let (first, second) = (compute(0x7f12_3456_7000), compute(0x7fab_0000_0000));
    let copies = descriptor(&[(1, 77)], 128);
    format!(
        "Process 4711 PASID 0x8001:\n  Compute queue on device 1a2b\n{first}{first}  SDMA queue on \
         device 1a2b\n{copies}{copies}Process 4712 PASID 32770:\n  Bad user queue type 6 on device \
         3c4d\n  Compute queue on device 3c4d\n{second}  DIQ on device 3c4d\n{copies}"
    )
}

#[test]
fn every_shape_is_read() {
    let dump = Dump::parse(example().as_bytes());
    assert_eq!(dump.strays, 0);
    let [first, second] = &dump.processes[..] else { panic!("{dump:?}") };
    assert_eq!((first.pid, first.pasid, second.pid, second.pasid), (4711, 0x8001, 4712, 0x8002));
    let kinds = |process: &MqdProcess| process.queues.iter().map(|q| q.kind).collect::<Vec<_>>();
    assert_eq!(kinds(first), [Kind::Compute, Kind::Copy]);
    assert_eq!(kinds(second), [Kind::Other(6), Kind::Compute, Kind::Other(3)]);
    let hardware = first.queues[0].hardware().unwrap();
    assert_eq!(hardware.ring_base, 0x7f12_3456_7000);
    assert_eq!(hardware.write_pointer, 0x7f12_3456_7038);
    assert_eq!(hardware.read_pointer, 0x7f12_3456_7080);
    assert_eq!((hardware.priority, hardware.pipe_priority, hardware.dies), (7, 1, 2));
    assert!(hardware.is_active && !hardware.has_saved_waves);
    assert_eq!(first.queues[1].hardware(), None, "copies have no ring that is known");
}

#[test]
fn waves_on_any_die_are_saved_waves() {
    let idle = descriptor(&[(174, 4096), (175, 4096)], WORDS);
    let saved = descriptor(&[(174, 4000), (175, 4096)], WORDS);
    let text = format!("Process 1 PASID 1:\n  Compute queue on device 1\n{idle}{saved}");
    let hardware = Dump::parse(text.as_bytes()).processes[0].queues[0].hardware().unwrap();
    assert!(hardware.has_saved_waves && !hardware.is_active);
}

#[test]
fn a_queue_is_found_by_its_ring() {
    let dump = Dump::parse(example().as_bytes());
    let queue = QueueEntry { ring_base: 0x7fab_0000_0000, gpu_id: 0x3c4d, ..QueueEntry::default() };
    assert!(hardware_of(&dump, 4712, &queue).is_some());
    assert!(hardware_of(&dump, 4711, &queue).is_none(), "of another process");
    let elsewhere = QueueEntry { gpu_id: 0x1a2b, ..queue };
    assert!(hardware_of(&dump, 4712, &elsewhere).is_none(), "on another device");
}

#[test]
fn what_is_cut_off_is_not_believed() {
    let text = example();
    let whole = Dump::parse(text.as_bytes());
    for end in (0..text.len()).step_by(37) {
        let dump = Dump::parse(&text.as_bytes()[..end]);
        for process in &dump.processes {
            for (index, queue) in process.queues.iter().enumerate() {
                let Some(hardware) = queue.hardware() else { continue };
                let same = whole.processes.iter().find(|found| found.pid == process.pid).unwrap();
                let complete = same.queues[index].hardware().unwrap();
                // One die may be missing, but what is there is right.
                assert_eq!(Hardware { dies: complete.dies, ..hardware }, complete);
            }
        }
    }
}

#[test]
fn what_stands_in_between_spoils_only_its_surroundings() {
    let text = example();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(30, "    00000020: 1 2 3 4 5 6 7 8");
    let dump = Dump::parse(lines.join("\n").as_bytes());
    assert_eq!(dump.strays, 1);
    assert_eq!(dump.processes[0].queues[0].hardware(), None);
    assert!(dump.processes[1].queues[1].hardware().is_some());
    // A descriptor that begins in the middle of another one.
    let torn: Vec<&str> = text.lines().take(20).chain(text.lines().skip(2)).collect();
    let dump = Dump::parse(torn.join("\n").as_bytes());
    assert_eq!(dump.processes[0].queues[0].hardware(), None);
}

#[test]
fn lines_without_a_place_are_counted() {
    let dump = Dump::parse(b"    00000000: 0 0 0 0 0 0 0 0\n  Compute queue on device 1\n\xff\n");
    assert_eq!((dump.processes.len(), dump.strays), (0, 3));
    for line in [
        "Process x PASID 1:",
        "Process 1 PASID 1",
        "  Compute queue on device x",
        "  Bad user queue type on device 1",
        "    00000000: 0 0 0 0 0 0 0",
        "    00000000: 0 0 0 0 0 0 0 0 0",
        "    00000000: 0 0 0 0 0 0 0 100000000",
    ] {
        assert_eq!(Dump::parse(line.as_bytes()).strays, 1, "{line}");
    }
}
