//! What the hardware has for every queue, as debugfs prints it (`kfd/mqds`).
//!
//! ```text
//! Process 4711 PASID 0x8001:
//!   Compute queue on device 1a2b
//!     00000000: c0310800 ...              eight words, 64 lines, for each die
//! ```
//!
//! There is no name of a queue, only its ring. The text is printed while queues come and go, so
//! anything may be cut off or stand in the wrong place: what is not whole is not believed.

use super::queue::Kind;

/// Words of a complete descriptor.
const WORDS: usize = 512;
const LINE: usize = 8;

/// Offsets of words in a descriptor; equal on gfx9 to gfx12.
mod at {
    pub(super) const ACTIVE: usize = 130;
    pub(super) const PIPE_PRIORITY: usize = 133;
    pub(super) const QUEUE_PRIORITY: usize = 134;
    pub(super) const RING_BASE: usize = 136;
    pub(super) const READ_ADDRESS: usize = 139;
    pub(super) const WRITE_ADDRESS: usize = 141;
    pub(super) const SAVE_BASE: usize = 171;
    pub(super) const STACK_OFFSET: usize = 174;
    pub(super) const STACK_SIZE: usize = 175;
    pub(super) const SAVE_SIZE: usize = 177;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// In the order of the text. A process may appear twice.
    pub processes: Vec<MqdProcess>,
    /// Lines that make no sense at their place.
    pub strays: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqdProcess {
    pub pid: u32,
    pub pasid: u32,
    /// The newest first.
    pub queues: Vec<MqdQueue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqdQueue {
    pub kind: Kind,
    pub gpu_id: u32,
    /// One descriptor per die. Those of a copy queue are copies of one, as many as the queue before
    /// it had dies.
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Descriptor {
    words: Vec<u32>,
    /// A stray line stood inside, so nothing of it is used.
    is_torn: bool,
}

/// The state of a compute queue in the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    pub ring_base: u64,
    pub read_pointer: u64,
    pub write_pointer: u64,
    pub save_area: u64,
    pub save_area_size: u32,
    pub priority: u32,
    /// What the hardware derives from the priority: 0 low, 1 medium, 2 high.
    pub pipe_priority: u32,
    /// Whether the queue is mapped to the device.
    pub is_active: bool,
    pub has_saved_waves: bool,
    pub dies: usize,
}

impl Dump {
    /// Parses the text. Any bytes are accepted.
    pub fn parse(text: &[u8]) -> Self {
        let mut dump = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else {
                dump.stray();
                continue;
            };
            if line.trim().is_empty() {
                continue;
            }
            if dump.take(line).is_none() {
                dump.stray();
            }
        }
        dump
    }

    /// Parses one line. None if it makes no sense at its place.
    fn take(&mut self, line: &str) -> Option<()> {
        if let Some(rest) = line.strip_prefix("Process ") {
            self.processes.push(parse_process(rest)?);
            return Some(());
        }
        if let Some((kind, gpu_id)) = parse_queue(line) {
            let queue = MqdQueue { kind, gpu_id, descriptors: Vec::new() };
            self.processes.last_mut()?.queues.push(queue);
            return Some(());
        }
        let (offset, words) = parse_words(line)?;
        self.processes.last_mut()?.queues.last_mut()?.add(offset, words)
    }

    /// A stray line invalidates the descriptor around it.
    fn stray(&mut self) {
        self.strays += 1;
        let queue = self.processes.last_mut().and_then(|process| process.queues.last_mut());
        if let Some(descriptor) = queue.and_then(|queue| queue.descriptors.last_mut()) {
            descriptor.is_torn |= descriptor.words.len() < WORDS;
        }
    }
}

impl MqdQueue {
    /// Appends eight words, if they are the next ones or begin a descriptor.
    fn add(&mut self, offset: usize, words: [u32; LINE]) -> Option<()> {
        if offset == 0 {
            self.descriptors.push(Descriptor::default());
        }
        let descriptor = self.descriptors.last_mut()?;
        if offset != descriptor.words.len() * size_of::<u32>() || descriptor.words.len() >= WORDS {
            return None;
        }
        descriptor.words.extend(words);
        Some(())
    }

    /// The state of a compute queue, if all of it was printed.
    pub fn hardware(&self) -> Option<Hardware> {
        if self.kind != Kind::Compute || !self.descriptors.iter().all(Descriptor::is_whole) {
            return None;
        }
        let first = self.descriptors.first()?;
        let word = |index: usize| first.words.get(index).copied();
        let address = |index: usize| {
            let (low, high) = (u64::from(word(index)?), u64::from(word(index + 1)?));
            Some(high << 32 | low)
        };
        let any = |test: &dyn Fn(&Descriptor) -> bool| self.descriptors.iter().any(test);
        Some(Hardware {
            ring_base: address(at::RING_BASE)? << 8,
            read_pointer: address(at::READ_ADDRESS)?,
            write_pointer: address(at::WRITE_ADDRESS)?,
            save_area: address(at::SAVE_BASE)?,
            save_area_size: word(at::SAVE_SIZE)?,
            priority: word(at::QUEUE_PRIORITY)?,
            pipe_priority: word(at::PIPE_PRIORITY)?,
            is_active: any(&|descriptor| descriptor.word(at::ACTIVE) & 1 != 0),
            has_saved_waves: any(&|descriptor| {
                descriptor.word(at::STACK_OFFSET) < descriptor.word(at::STACK_SIZE)
            }),
            dies: self.descriptors.len(),
        })
    }
}

impl Descriptor {
    fn is_whole(&self) -> bool {
        !self.is_torn && self.words.len() == WORDS
    }

    fn word(&self, index: usize) -> u32 {
        self.words.get(index).copied().unwrap_or(0)
    }
}

/// `4711 PASID 0x8001:`, or a decimal number without `0x` in newer kernels.
fn parse_process(rest: &str) -> Option<MqdProcess> {
    let (pid, rest) = rest.split_once(" PASID ")?;
    let pasid = rest.strip_suffix(':')?;
    let pasid = match pasid.strip_prefix("0x") {
        Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok()?,
        None => pasid.parse().ok()?,
    };
    Some(MqdProcess { pid: pid.parse().ok()?, pasid, queues: Vec::new() })
}

fn parse_queue(line: &str) -> Option<(Kind, u32)> {
    let (what, device) = line.strip_prefix("  ")?.split_once(" on device ")?;
    let kind = match what {
        "Compute queue" => Kind::Compute,
        "SDMA queue" => Kind::Copy,
        // The number of the kernel's debug interface queue.
        "DIQ" => Kind::Other(3),
        bad => Kind::Other(bad.strip_prefix("Bad user queue type ")?.parse().ok()?),
    };
    Some((kind, u32::from_str_radix(device, 16).ok()?))
}

fn parse_words(line: &str) -> Option<(usize, [u32; LINE])> {
    let (offset, rest) = line.strip_prefix("    ")?.split_once(": ")?;
    let offset = usize::from_str_radix(offset, 16).ok()?;
    let mut words = [0; LINE];
    let mut texts = rest.split_ascii_whitespace();
    for word in &mut words {
        *word = u32::from_str_radix(texts.next()?, 16).ok()?;
    }
    texts.next().is_none().then_some((offset, words))
}

#[cfg(test)]
mod tests {
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

    /// Two processes; the first has a queue on two dies and a copy queue after it.
    fn example() -> String {
        let (first, second) = (compute(0x7f12_3456_7000), compute(0x7fab_0000_0000));
        let copies = descriptor(&[(1, 77)], 128);
        format!(
            "Process 4711 PASID 0x8001:\n  Compute queue on device 1a2b\n{first}{first}  SDMA \
             queue on device 1a2b\n{copies}{copies}Process 4712 PASID 32770:\n  Bad user queue \
             type 6 on device 3c4d\n  Compute queue on device 3c4d\n{second}  DIQ on \
             device 3c4d\n{copies}"
        )
    }

    #[test]
    fn every_shape_is_read() {
        let dump = Dump::parse(example().as_bytes());
        assert_eq!(dump.strays, 0);
        let [first, second] = &dump.processes[..] else { panic!("{dump:?}") };
        assert_eq!(
            (first.pid, first.pasid, second.pid, second.pasid),
            (4711, 0x8001, 4712, 0x8002)
        );
        let kinds =
            |process: &MqdProcess| process.queues.iter().map(|q| q.kind).collect::<Vec<_>>();
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
        let queue =
            QueueEntry { ring_base: 0x7fab_0000_0000, gpu_id: 0x3c4d, ..QueueEntry::default() };
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
                    let same =
                        whole.processes.iter().find(|found| found.pid == process.pid).unwrap();
                    let complete = same.queues[index].hardware().unwrap();
                    // A die may be missing, but the rest is right.
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
        let dump =
            Dump::parse(b"    00000000: 0 0 0 0 0 0 0 0\n  Compute queue on device 1\n\xff\n");
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
}
