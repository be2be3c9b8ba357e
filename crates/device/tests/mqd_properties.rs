//! Whatever debugfs prints while queues come and go, reading it does not fail, and what is believed
//! was printed.

use gpreempt_device::amd::queue::{Dump, Kind};
use proptest::prelude::*;

/// A descriptor for kernels whose ring is there.
fn descriptor(ring: u64) -> String {
    let mut words = vec![0x5a5a_5a5a_u32; 512];
    let half = |word: u64| u32::try_from(word & 0xffff_ffff).expect("32 bits");
    (words[136], words[137]) = (half(ring >> 8), half(ring >> 40));
    let mut text = String::new();
    for (line, words) in words.chunks(8).enumerate() {
        let words: Vec<String> = words.iter().map(|word| format!("{word:08x}")).collect();
        text.push_str(&format!("    {:08x}: {}\n", line * 32, words.join(" ")));
    }
    text
}

/// A dump of processes with queues on several dies.
fn dump() -> impl Strategy<Value = (String, Vec<u64>)> {
    let ring = (1_u64..1 << 40).prop_map(|page| page << 8);
    let queue = (ring, 1_usize..4, 0_u32..3);
    let process = (1_u32..100_000, proptest::collection::vec(queue, 0..4));
    proptest::collection::vec(process, 0..4).prop_map(|processes| {
        let (mut text, mut rings) = (String::new(), Vec::new());
        for (pid, queues) in processes {
            text.push_str(&format!("Process {pid} PASID 0x{pid:x}:\n"));
            for (ring, dies, kind) in queues {
                let name = ["Compute queue", "SDMA queue", "DIQ"][kind as usize];
                text.push_str(&format!("  {name} on device {pid:x}\n"));
                let body = if kind == 0 { descriptor(ring) } else { sdma() };
                text.push_str(&body.repeat(dies));
                if kind == 0 {
                    rings.push(ring);
                }
            }
        }
        (text, rings)
    })
}

fn sdma() -> String {
    descriptor(0x1000).lines().take(16).map(|line| format!("{line}\n")).collect()
}

fn rings(text: &[u8]) -> Vec<u64> {
    let dump = Dump::parse(text);
    let queues = dump.processes.iter().flat_map(|process| &process.queues);
    queues.filter_map(|queue| queue.hardware()).map(|hardware| hardware.ring_base).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whole_dumps_are_read_completely((text, expected) in dump()) {
        prop_assert_eq!(rings(text.as_bytes()), expected);
        prop_assert_eq!(Dump::parse(text.as_bytes()).strays, 0);
    }

    #[test]
    fn truncated_dumps_show_nothing_else(
        (text, expected) in dump(),
        at in any::<proptest::sample::Index>(),
    ) {
        let end = at.index(text.len() + 1);
        let found = rings(&text.as_bytes()[..end]);
        prop_assert!(expected.starts_with(&found));
        // Nor does what is left when the beginning is missing.
        for ring in rings(&text.as_bytes()[end..]) {
            prop_assert!(expected.contains(&ring));
        }
    }

    #[test]
    fn interleaved_dumps_show_nothing_else(
        (one, first) in dump(),
        (two, second) in dump(),
        picks in proptest::collection::vec(any::<bool>(), 0..2000),
    ) {
        let (mut left, mut right) = (one.lines(), two.lines());
        let mut text = String::new();
        for pick in picks {
            let next = if pick { left.next() } else { right.next() };
            if let Some(line) = next {
                text.push_str(line);
                text.push('\n');
            }
        }
        for ring in rings(text.as_bytes()) {
            prop_assert!(first.contains(&ring) || second.contains(&ring));
        }
    }

    #[test]
    fn any_bytes_are_a_dump(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let dump = Dump::parse(&bytes);
        prop_assert!(dump.processes.iter().all(|process| process.queues.is_empty()));
    }

    #[test]
    fn any_lines_that_look_like_it_are_a_dump(
        lines in proptest::collection::vec(
            "(Process|  Compute queue on device|    0000000[02]:) ?[0-9a-fx :]{0,80}",
            0..50,
        ),
    ) {
        let dump = Dump::parse(lines.join("\n").as_bytes());
        for queue in dump.processes.iter().flat_map(|process| &process.queues) {
            prop_assert!(queue.hardware().is_none() && queue.kind == Kind::Compute);
        }
    }
}
