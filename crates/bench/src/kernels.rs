//! The kernels as text, compiled by the driver for whatever device is there.
//!
//! A text in `kernels/` is PTX but for two things: `#each` repeats a line for every accumulator,
//! and `COUNT` and `BLOCKS` stand for numbers. How many accumulators there are decides how many
//! registers a thread fills, and so how much a preemption has to save.

use std::ffi::{CStr, CString};

use clap::ValueEnum;
use serde::Serialize;

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Arithmetic on registers.
    Fma,
    /// The same in rounds until the host says stop.
    Endless,
    /// Arithmetic and eight increments that must happen exactly once.
    Counter,
    /// Waiting by the clock of the device.
    Spin,
    /// The counter kernel with a flag that makes blocks leave before they begin.
    Resettable,
    /// Arithmetic, and the times of its first and last instruction.
    Probe,
    /// Arithmetic, and a record of the times in which it stood still.
    Beat,
    /// The endless kernel with that record.
    Beating,
    /// Tells the time of the device.
    Clock,
}

/// How many registers a thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Registers {
    /// A dozen: as many blocks fit as the device has room for threads.
    Few,
    /// About 240: one block of 256 threads fills the registers of a multiprocessor.
    Full,
}

/// A kernel text.
///
/// # Invariants
/// The kernel has three parameters of 64 bits and is made for blocks of 256 threads; it touches
/// no more than `data_words` words of `data` and one of `extra` for each thread, and one word of
/// `extra` besides, and `record_words` more of it. The texts are part of the program, and a test
/// reads them.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    name: &'static CStr,
    text: CString,
    data_words: usize,
    record_words: usize,
}

/// Records of `beat` and `beating`: as many as their texts say.
pub(crate) const RECORDS: usize = 16_384;
/// Words before the first record of `beat`.
pub(crate) const RECORD_HEAD: usize = 4;
/// Words of a record: two times of 64 bits.
pub(crate) const RECORD_WORDS: usize = 4;

impl Kernel {
    /// How often one run of the counter kernel (and the resettable one) adds one to a word.
    pub(crate) const INCREMENTS: u32 = 8;

    /// Its text.
    pub(crate) fn source(self, registers: Registers) -> Source {
        let (name, template) = match self {
            Self::Fma => (c"fma", include_str!("kernels/fma.ptx")),
            Self::Endless => (c"endless", include_str!("kernels/endless.ptx")),
            Self::Counter => (c"counter", include_str!("kernels/counter.ptx")),
            Self::Spin => (c"spin", include_str!("kernels/spin.ptx")),
            Self::Resettable => (c"resettable", include_str!("kernels/resettable.ptx")),
            Self::Probe => (c"probe", include_str!("kernels/probe.ptx")),
            Self::Beat => (c"beat", include_str!("kernels/beat.ptx")),
            Self::Beating => (c"beating", include_str!("kernels/beating.ptx")),
            Self::Clock => (c"clock", include_str!("kernels/clock.ptx")),
        };
        let text = expand(template, registers);
        // PANIC: the texts are part of the program and hold no zero byte.
        let text = CString::new(text).expect("a text without zero bytes");
        let (data_words, record_words) = (self.data_words(), self.record_words());
        Source { name, text, data_words, record_words }
    }

    /// How many words of `data` a thread uses.
    pub(crate) fn data_words(self) -> usize {
        match self {
            Self::Fma
            | Self::Endless
            | Self::Counter
            | Self::Spin
            | Self::Probe
            | Self::Beat
            | Self::Beating
            | Self::Clock => 1,
            Self::Resettable => 2,
        }
    }

    /// How many words of `extra` it uses besides one for each thread and one more.
    pub(crate) fn record_words(self) -> usize {
        match self {
            Self::Fma | Self::Endless | Self::Counter | Self::Spin | Self::Resettable => 0,
            Self::Probe | Self::Clock => RECORD_HEAD,
            Self::Beat | Self::Beating => RECORD_HEAD + RECORDS * RECORD_WORDS,
        }
    }
}

impl Registers {
    fn accumulators(self) -> usize {
        match self {
            Self::Few => 4,
            // With addresses and counters 239 to 243 registers; above 255 they would spill.
            Self::Full => 232,
        }
    }

    /// Blocks that must fit on a multiprocessor, for the compiler to plan with.
    fn blocks(self) -> usize {
        match self {
            Self::Few => 4,
            Self::Full => 1,
        }
    }
}

impl Source {
    /// The name of the kernel in the text.
    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    /// The text.
    pub(crate) fn text(&self) -> &CStr {
        &self.text
    }

    /// How many words of `data` a thread uses.
    pub(crate) fn data_words(&self) -> usize {
        self.data_words
    }

    /// How many words of `extra` the kernel uses besides those of its threads.
    pub(crate) fn record_words(&self) -> usize {
        self.record_words
    }
}

fn expand(template: &str, registers: Registers) -> String {
    let count = registers.accumulators();
    let mut text = String::new();
    for line in template.lines() {
        if let Some(repeated) = line.trim_start().strip_prefix("#each ") {
            for index in 0..count {
                text.push_str(&repeated.replace("<I>", &index.to_string()));
                text.push('\n');
            }
        } else {
            let line = line
                .replace("COUNT", &count.to_string())
                .replace("BLOCKS", &registers.blocks().to_string());
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
