//! Suites: the cases to measure, the loads of each, and the checks on the results.
//!
//! A suite is data, read from TOML; those of the project are built in.

mod arrivals;
mod criterion;
mod load;
mod read;

use gpreempt_core::config::PolicyKind;
use gpreempt_core::time::Duration;

use crate::results::{CurvePoint, Role, SuiteInfo};

pub use arrivals::Arrivals;
pub use criterion::{Criterion, Quantity, Threshold};
pub use load::{Load, Work};
pub use read::{check_modes, read_suite};

/// Everything that one command measures.
#[derive(Clone, Debug)]
pub struct Suite {
    pub name: String,
    /// A line about it.
    pub title: String,
    pub text: String,
    pub digest: String,
    /// How often each case is measured in each mode unless the command line says otherwise.
    pub repetitions: u32,
    /// How often in the short form.
    pub repetitions_short: u32,
    /// The modes on the emulated GPU unless the command line names others.
    pub emulated_modes: Vec<String>,
    /// The same on an NVIDIA GPU.
    pub nvidia_modes: Vec<String>,
    /// The same in the short form; empty: `nvidia_modes`.
    pub nvidia_modes_short: Vec<String>,
    pub cases: Vec<Case>,
    pub criteria: Vec<Criterion>,
}

/// Loads that run together.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// A line about it.
    pub title: String,
    /// How long it is measured on a real GPU, in the long and in the short form.
    pub real: LongAndShort,
    /// How long it is simulated, in virtual time.
    pub simulated: LongAndShort,
    pub policy: PolicyKind,
    /// Whether the kernels themselves record when they are preempted.
    pub probed: bool,
    /// Whether the calls that control a process are timed during the run.
    pub controlled: bool,
    /// The modes in which the case is measured; empty: all.
    pub modes: Vec<String>,
    /// On which backends the case is measured.
    pub backends: Backends,
    /// Whether the short form on a real GPU includes the case: GPU time is expensive.
    pub is_in_nvidia_short: bool,
    /// The place of this case in a curve, if it is part of one.
    pub point: Option<CurvePoint>,
    pub loads: Vec<Load>,
}

/// A length of time, and a shorter one for when there is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongAndShort {
    pub long: Duration,
    pub short: Duration,
}

/// On which backends a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backends {
    All,
    Emulated,
    Nvidia,
}

impl Suite {
    /// What results store about the suite.
    pub fn info(&self) -> SuiteInfo {
        SuiteInfo {
            name: self.name.clone(),
            title: self.title.clone(),
            digest: self.digest.clone(),
            text: Some(self.text.clone()),
        }
    }
}

impl LongAndShort {
    pub fn length(self, is_short: bool) -> Duration {
        if is_short { self.short } else { self.long }
    }
}

impl Case {
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Load> {
        self.loads.iter().filter(move |load| load.role == role)
    }
}

const SUITES: [(&str, &str); 8] = [
    ("micro", include_str!("../suites/micro.toml")),
    ("disb", include_str!("../suites/disb.toml")),
    ("online-offline", include_str!("../suites/online-offline.toml")),
    ("share", include_str!("../suites/share.toml")),
    ("torch", include_str!("../suites/torch.toml")),
    ("scale", include_str!("../suites/scale.toml")),
    ("memory", include_str!("../suites/memory.toml")),
    ("demo", include_str!("../suites/demo.toml")),
];

/// The suite of that name.
pub fn built_in(name: &str) -> Option<Suite> {
    let (name, text) = SUITES.iter().find(|(known, _)| *known == name)?;
    // PANIC: a test reads every one of them.
    Some(read_suite(&format!("{name}.toml"), text).expect("a built-in suite"))
}

pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests;
