//! Fuzz targets: for each reader of bytes that other programs or users write, a function that
//! panics if the reader does, or if what it read breaks a rule.
//!
//! The same functions are driven twice. `cargo xtask fuzz TARGET` builds them with coverage and
//! lets libFuzzer look for new inputs; `tests/corpus.rs`, part of the normal tests, gives them
//! every kept input and a fixed number of [mutations](mutation) of these. A kept input is a file
//! in `fuzz/corpus/TARGET`: it reached code that no other input reaches, or failed once.

mod files;
pub mod mutation;
mod packets;

/// One reader and what must hold for it.
#[derive(Debug)]
pub struct Target {
    /// Its name for `cargo xtask fuzz`, and the folder of its corpus.
    pub name: &'static str,
    /// Panics if these bytes break a rule.
    pub check: fn(&[u8]),
    /// How many mutations the normal tests try: about two seconds of them in a debug build.
    pub mutations: u32,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "wire", check: packets::check_message, mutations: 100_000 },
    Target { name: "hint-page", check: packets::check_hint_page, mutations: 20_000 },
    Target { name: "journal", check: files::check_journal, mutations: 50_000 },
    Target { name: "mqds", check: files::check_mqds, mutations: 10_000 },
    Target { name: "config", check: files::check_config, mutations: 5_000 },
    Target { name: "scenario", check: files::check_scenario, mutations: 5_000 },
    Target { name: "model", check: files::check_model, mutations: 5_000 },
    Target { name: "suite", check: files::check_suite, mutations: 3_000 },
];

/// The target of that name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
