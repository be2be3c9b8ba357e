//! What the hardware has for every queue, as the kernel prints it.

use std::fmt::Write;

use gpreempt_core::id::QueueId;

use super::SAVE_AREA_BYTES;
use crate::kfd::driver::{ProcessView, QueueView};

/// Words of a descriptor.
const WORDS: usize = 512;
/// Words in a line.
const LINE: usize = 8;
/// Bytes of the control stack that saved waves use, at least.
const STACK_USED: u32 = 0x100;

/// The text for all processes; `saved` says how many waves of a queue are saved.
pub(crate) fn mqds(processes: &[ProcessView], xccs: u32, saved: impl Fn(QueueId) -> u64) -> String {
    let mut text = String::new();
    for process in processes {
        // Writing to a string does not fail.
        let _ = writeln!(text, "Process {} PASID 0x{:x}:", process.pid, process.pasid);
        for queue in process.queues.iter().rev() {
            let _ = writeln!(text, "  Compute queue on device {:x}", queue.entry.gpu_id);
            let words = words(queue, saved(queue.device_id) > 0);
            for _ in 0..xccs {
                dump(&mut text, &words);
            }
        }
    }
    text
}

fn dump(text: &mut String, words: &[u32; WORDS]) {
    for (line, words) in words.chunks_exact(LINE).enumerate() {
        let _ = write!(text, "    {:08x}:", line * LINE * size_of::<u32>());
        for word in words {
            let _ = write!(text, " {word:08x}");
        }
        text.push('\n');
    }
}

/// A descriptor, as far as it is known.
fn words(queue: &QueueView, is_saved: bool) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    words[0] = 0xc031_0800;
    words[130] = u32::from(queue.is_on);
    words[133] = match queue.priority {
        0..=6 => 0,
        7..=10 => 1,
        _ => 2,
    };
    words[134] = queue.priority;
    let entry = &queue.entry;
    let addresses = [
        (136, entry.ring_base >> 8),
        (139, entry.read_pointer),
        (141, entry.write_pointer),
        (171, entry.save_area),
    ];
    for (at, address) in addresses {
        let bytes = address.to_le_bytes();
        let half = |from: usize| bytes[from..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        (words[at], words[at + 1]) = (half(0), half(4));
    }
    let stack = SAVE_AREA_BYTES.1;
    words[174] = if is_saved { stack - STACK_USED } else { stack };
    words[175] = stack;
    words[177] = entry.save_area_size;
    words
}
