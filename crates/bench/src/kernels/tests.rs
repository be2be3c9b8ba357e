use std::collections::BTreeSet;
use std::process::Command;

use super::*;

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
        .filter(|name| !["tid", "ctaid", "ntid", "nctaid", "globaltimer"].contains(&name.as_str()))
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
fn nothing_of_the_template_is_left() {
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
        let body: String = text.lines().filter(|line| !line.trim().starts_with(".reg ")).collect();
        assert_eq!(registers(&body), declared(&text), "{name}");
    }
}

#[test]
fn branches_lead_somewhere_and_lines_end() {
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
fn the_counter_kernel_adds_as_often_as_the_check_expects() {
    for kernel in [Kernel::Counter, Kernel::Resettable] {
        let source = kernel.source(Registers::Few);
        let line = format!("mov.u32 %rounds, {};", Kernel::INCREMENTS);
        assert!(source.text().to_str().unwrap().contains(&line), "{kernel:?}");
    }
}

#[test]
fn the_resettable_kernel_asks_before_it_does_anything() {
    let source = Kernel::Resettable.source(Registers::Few);
    let text = source.text().to_str().unwrap();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}"));
    let asked = at("ld.volatile.global.u32 %flag, [%words];");
    let decided = at("@%reset bra leave;");
    assert!(asked < decided);
    // Nothing of the device's memory is touched before, nor after leaving but for the record.
    assert!(!text[..decided].contains("[%address"));
    let left = &text[at("leave:")..];
    assert!(!left.contains("[%address") && left.contains("[%record + 8]"));
    // The record of a run is written after all threads have met.
    let ended = &text[at("done:")..at("leave:")];
    assert!(ended.find("bar.sync").unwrap() < ended.find("st.volatile").unwrap());
}

#[test]
fn threads_use_as_many_words_as_their_memory_is_made_for() {
    for kernel in KERNELS {
        let source = kernel.source(Registers::Few);
        let bytes = format!("mul.wide.u32 %offset, %index, {};", kernel.data_words() * 4);
        let text = source.text().to_str().unwrap();
        // Those that only wait have no memory.
        let waits = matches!(kernel, Kernel::Spin | Kernel::Clock);
        assert!(waits || text.contains(&bytes), "{kernel:?}");
        assert_eq!(source.data_words(), kernel.data_words());
    }
}

#[test]
fn records_have_as_much_room_as_the_texts_say() {
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
    for (index, (name, text)) in texts().into_iter().enumerate() {
        let path = std::env::temp_dir().join(format!("gpreempt-{}-{index}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let output = Command::new(&assembler)
            .args(["-v", "-arch=sm_90", "-o", "/dev/null"])
            .arg(&path)
            .output()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
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
