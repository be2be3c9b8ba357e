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

use super::Kind;

/// Words of a descriptor that was printed completely.
const WORDS: usize = 512;
/// Words in a line.
const LINE: usize = 8;

/// Where things are in a descriptor; the same on gfx9 to gfx12.
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

/// Everything the text says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Processes, in the order of the text. One may come twice.
    pub processes: Vec<MqdProcess>,
    /// Lines that made no sense where they stood.
    pub strays: usize,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqdProcess {
    /// Its number.
    pub pid: u32,
    /// Its number for the device.
    pub pasid: u32,
    /// Its queues, the newest first.
    pub queues: Vec<MqdQueue>,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqdQueue {
    /// What it is for.
    pub kind: Kind,
    /// Its device.
    pub gpu_id: u32,
    /// A descriptor for each die. Of a queue for copies they are the same, as often as the queue
    /// printed before had dies.
    descriptors: Vec<Descriptor>,
}

/// One descriptor, as far as it was printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Descriptor {
    words: Vec<u32>,
    /// Something stood in between, so that nothing of it is believed.
    is_torn: bool,
}

/// What is worth knowing of a queue for kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Where its ring is.
    pub ring_base: u64,
    /// Where the index is that the device moves.
    pub read_pointer: u64,
    /// Where the index is that the process moves.
    pub write_pointer: u64,
    /// Where its waves are saved.
    pub save_area: u64,
    /// Bytes there.
    pub save_area_size: u32,
    /// Its priority, 0 to 15.
    pub priority: u32,
    /// What the hardware makes of that: 0 low, 1 medium, 2 high.
    pub pipe_priority: u32,
    /// Whether it is on the device.
    pub is_active: bool,
    /// Whether waves are saved.
    pub has_saved_waves: bool,
    /// How many dies it runs on.
    pub dies: usize,
}

impl Dump {
    /// Reads the text. Any bytes are a dump, perhaps an empty one.
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

    /// One line, if it makes sense here.
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

    /// A line that is not believed spoils what stands around it.
    fn stray(&mut self) {
        self.strays += 1;
        let queue = self.processes.last_mut().and_then(|process| process.queues.last_mut());
        if let Some(descriptor) = queue.and_then(|queue| queue.descriptors.last_mut()) {
            descriptor.is_torn |= descriptor.words.len() < WORDS;
        }
    }
}

impl MqdQueue {
    /// Eight more words, if they are the next ones or begin a descriptor.
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

    /// What it says of a queue for kernels, if it was printed completely.
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

/// Behind `Process `: `4711 PASID 0x8001:`, or without the `0x` in newer kernels, which mean
/// another base.
fn parse_process(rest: &str) -> Option<MqdProcess> {
    let (pid, rest) = rest.split_once(" PASID ")?;
    let pasid = rest.strip_suffix(':')?;
    let pasid = match pasid.strip_prefix("0x") {
        Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok()?,
        None => pasid.parse().ok()?,
    };
    Some(MqdProcess { pid: pid.parse().ok()?, pasid, queues: Vec::new() })
}

/// `  Compute queue on device 1a2b` and its like.
fn parse_queue(line: &str) -> Option<(Kind, u32)> {
    let (what, device) = line.strip_prefix("  ")?.split_once(" on device ")?;
    let kind = match what {
        "Compute queue" => Kind::Compute,
        "SDMA queue" => Kind::Copy,
        // The number of the kernel's own queue for debuggers.
        "DIQ" => Kind::Other(3),
        bad => Kind::Other(bad.strip_prefix("Bad user queue type ")?.parse().ok()?),
    };
    Some((kind, u32::from_str_radix(device, 16).ok()?))
}

/// `    00000020: w0 w1 w2 w3 w4 w5 w6 w7`.
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
mod tests;
