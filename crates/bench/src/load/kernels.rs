//! The CUDA kernels as PTX, which the driver compiles for its device.
//!
//! A text in `kernels/` is PTX except for `#each`, which repeats a line for every accumulator, and
//! `COUNT` and `BLOCKS`, which stand for numbers. The number of accumulators determines how many
//! registers a thread fills, and so how much state a preemption saves.

use clap::ValueEnum;
use serde::Serialize;
use std::ffi::{CStr, CString};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Arithmetic on registers.
    Fma,
    /// The same in rounds, until the host sets the stop word.
    Endless,
    /// Arithmetic and eight increments that must happen exactly once.
    Counter,
    /// Waiting by the clock of the device.
    Spin,
    /// The counter kernel with a flag at which blocks exit before they begin.
    Resettable,
    /// Arithmetic, and the times of its first and last instruction.
    Probe,
    /// Arithmetic, and a record of the intervals in which it was off the GPU.
    Beat,
    /// The endless kernel with that record.
    Beating,
    /// Publishes the time of the device.
    Clock,
}

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

/// Records of `beat` and `beating`, as in their texts.
pub(crate) const RECORDS: usize = 16_384;
/// Words before the first record of `beat`.
pub(crate) const RECORD_HEAD: usize = 4;
/// Words of a record: two times of 64 bits.
pub(crate) const RECORD_WORDS: usize = 4;

impl Kernel {
    /// How often one run of the counter kernel (and the resettable one) adds one to a word.
    pub(crate) const INCREMENTS: u32 = 8;

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
    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    pub(crate) fn text(&self) -> &CStr {
        &self.text
    }

    pub(crate) fn data_words(&self) -> usize {
        self.data_words
    }

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
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    const KERNELS: [Kernel; 9] = [
        Kernel::Fma,
        Kernel::Endless,
        Kernel::Counter,
        Kernel::Spin,
        Kernel::Resettable,
        Kernel::Probe,
        Kernel::Beat,
        Kernel::Beating,
        Kernel::Clock,
    ];

    /// Every text with its name and without comments.
    fn texts() -> Vec<(String, String)> {
        let mut texts = Vec::new();
        for kernel in KERNELS {
            for registers in [Registers::Few, Registers::Full] {
                let source = kernel.source(registers);
                let text = source.text().to_str().unwrap();
                let code: Vec<&str> =
                    text.lines().map(|line| line.split("//").next().unwrap()).collect();
                texts.push((format!("{kernel:?} {registers:?}"), code.join("\n")));
            }
        }
        texts
    }

    /// The words that begin with a percent sign, without the registers of the machine itself.
    fn registers(text: &str) -> BTreeSet<String> {
        text.split('%')
            .skip(1)
            .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric()).collect::<String>())
            .filter(|name| {
                !["tid", "ctaid", "ntid", "nctaid", "globaltimer"].contains(&name.as_str())
            })
            .collect()
    }

    fn declared(text: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for line in text.lines().map(str::trim).filter(|line| line.starts_with(".reg ")) {
            for word in line.trim_end_matches(';').split([' ', ',']) {
                let Some(name) = word.strip_prefix('%') else { continue };
                if let Some((stem, count)) = name.trim_end_matches('>').split_once('<') {
                    let count: usize = count.parse().unwrap();
                    names.extend((0..count).map(|index| format!("{stem}{index}")));
                } else {
                    names.insert(name.to_owned());
                }
            }
        }
        names
    }

    #[test]
    fn every_kernel_has_the_three_parameters_that_launch_passes() {
        for kernel in KERNELS {
            let source = kernel.source(Registers::Few);
            let head = format!(
                ".visible .entry {}(.param .u64 data, .param .u64 amount, .param .u64 extra)\n\
                 .maxntid 256, 1, 1\n",
                source.name().to_str().unwrap()
            );
            let text = source.text().to_str().unwrap();
            assert_eq!(text.matches(&head).count(), 1, "{kernel:?}");
            assert_eq!(text.matches(".entry").count(), 1, "{kernel:?}");
        }
    }

    #[test]
    fn no_template_mark_is_left() {
        for (name, text) in texts() {
            for mark in ["#", "<I>", "COUNT", "BLOCKS"] {
                assert!(!text.contains(mark), "{name}: {mark}");
            }
            assert_eq!(text.matches('{').count(), text.matches('}').count(), "{name}");
        }
    }

    #[test]
    fn registers_are_declared_and_used() {
        for (name, text) in texts() {
            let body: String =
                text.lines().filter(|line| !line.trim().starts_with(".reg ")).collect();
            assert_eq!(registers(&body), declared(&text), "{name}");
        }
    }

    #[test]
    fn branches_have_targets_and_lines_have_ends() {
        for (name, text) in texts() {
            let labels: BTreeSet<&str> =
                text.lines().filter_map(|line| line.trim().strip_suffix(':')).collect();
            let mut targets = BTreeSet::new();
            for line in text.lines().map(str::trim).filter(|line| line.contains("bra ")) {
                targets.insert(line.split("bra ").nth(1).unwrap().trim_end_matches(';'));
            }
            assert_eq!(labels, targets, "{name}");
            let body = text.split(['{', '}']).nth(1).unwrap();
            for line in body.lines().map(str::trim).filter(|line| !line.is_empty()) {
                assert!(line.ends_with([';', ':']), "{name}: {line}");
            }
        }
    }

    #[test]
    fn the_counter_kernel_increments_as_often_as_the_check_expects() {
        for kernel in [Kernel::Counter, Kernel::Resettable] {
            let source = kernel.source(Registers::Few);
            let line = format!("mov.u32 %rounds, {};", Kernel::INCREMENTS);
            assert!(source.text().to_str().unwrap().contains(&line), "{kernel:?}");
        }
    }

    #[test]
    fn the_resettable_kernel_reads_the_flag_before_it_does_anything() {
        let source = Kernel::Resettable.source(Registers::Few);
        let text = source.text().to_str().unwrap();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}"));
        let asked = at("ld.volatile.global.u32 %flag, [%words];");
        let decided = at("@%reset bra leave;");
        assert!(asked < decided);
        // Before the decision, and after an exit, it touches no device memory but the record.
        assert!(!text[..decided].contains("[%address"));
        let left = &text[at("leave:")..];
        assert!(!left.contains("[%address") && left.contains("[%record + 8]"));
        // The record of a run is written after all threads have synchronised.
        let ended = &text[at("done:")..at("leave:")];
        assert!(ended.find("bar.sync").unwrap() < ended.find("st.volatile").unwrap());
    }

    #[test]
    fn threads_use_as_many_words_as_their_memory_has() {
        for kernel in KERNELS {
            let source = kernel.source(Registers::Few);
            let bytes = format!("mul.wide.u32 %offset, %index, {};", kernel.data_words() * 4);
            let text = source.text().to_str().unwrap();
            // Kernels that only wait use no memory.
            let waits = matches!(kernel, Kernel::Spin | Kernel::Clock);
            assert!(waits || text.contains(&bytes), "{kernel:?}");
            assert_eq!(source.data_words(), kernel.data_words());
        }
    }

    #[test]
    fn the_texts_and_the_memory_have_the_same_number_of_records() {
        let line = format!("setp.ge.u32 %skip, %records, {RECORDS};");
        for kernel in [Kernel::Beat, Kernel::Beating] {
            let source = kernel.source(Registers::Few);
            assert!(source.text().to_str().unwrap().contains(&line), "{kernel:?}");
            assert_eq!(source.record_words(), RECORD_HEAD + RECORDS * RECORD_WORDS);
        }
    }

    /// With `PTXAS` set to NVIDIA's assembler: it accepts the texts, and nothing spills.
    #[test]
    fn the_assembler_accepts_every_text() {
        let Some(assembler) = std::env::var_os("PTXAS") else {
            println!("SKIPPED: PTXAS does not name an assembler");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for (name, text) in texts() {
            std::fs::write(&path, text).unwrap();
            let output = Command::new(&assembler)
                .args(["-v", "-arch=sm_90", "-o", "/dev/null"])
                .arg(&path)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && said.contains(" 0 bytes spill stores"),
                "{name}: {said}"
            );
            let waits = name.starts_with("Spin") || name.starts_with("Clock");
            if name.ends_with("Full") && !waits {
                let count = said.split("Used ").nth(1).unwrap().split(' ').next().unwrap();
                assert!(count.parse::<u32>().unwrap() > 230, "{name}: {said}");
            }
        }
    }
}
