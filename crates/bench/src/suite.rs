//! What is measured: cases, the loads of each, and what must come out.
//!
//! A suite is data, read from TOML; those of the project are built in.

mod arrivals;
mod built_in;
mod case;
mod criterion;
mod load;
mod mode_names;
mod numbers;
mod read;

use gpreempt_core::config::PolicyKind;
use gpreempt_core::time::Duration;

use crate::results::{CurvePoint, Role, SuiteInfo};

pub use arrivals::Arrivals;
pub use built_in::{built_in, built_in_names};
pub use criterion::{Criterion, Limit, Quantity};
pub use load::{Load, Work};
pub use mode_names::check_modes;
pub use read::read_suite;

/// Everything that one command measures.
#[derive(Clone, Debug)]
pub struct Suite {
    /// What people type.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// Its text.
    pub text: String,
    /// A checksum of that.
    pub digest: String,
    /// How often each case is measured in each mode, unless somebody says otherwise.
    pub repetitions: u32,
    /// How often in the short form.
    pub repetitions_short: u32,
    /// The modes of the emulated GPU, unless somebody says otherwise.
    pub emulated_modes: Vec<String>,
    /// The modes of an NVIDIA GPU, unless somebody says otherwise.
    pub nvidia_modes: Vec<String>,
    /// The same in the short form; none named are the same.
    pub nvidia_modes_short: Vec<String>,
    /// What runs.
    pub cases: Vec<Case>,
    /// What must come out.
    pub criteria: Vec<Criterion>,
}

/// One thing that runs.
#[derive(Clone, Debug)]
pub struct Case {
    /// What people type.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// How long it is measured on a real GPU, in the long and in the short form.
    pub real: LongAndShort,
    /// How long it is simulated, in virtual time.
    pub simulated: LongAndShort,
    /// The rule by which it is scheduled.
    pub policy: PolicyKind,
    /// Whether preemptions are looked at from inside the kernels.
    pub probed: bool,
    /// Whether the calls that control a process are timed meanwhile.
    pub controlled: bool,
    /// The modes in which it makes sense; none named are all.
    pub modes: Vec<String>,
    /// Whether it is measured on the emulated GPU, and on a real one.
    pub backends: Backends,
    /// Whether the short form on a real GPU has it: time there is dear.
    pub is_in_nvidia_short: bool,
    /// The place of this case in a curve, if it is part of one.
    pub point: Option<CurvePoint>,
    /// Who runs.
    pub loads: Vec<Load>,
}

/// A length of time, and a shorter one for when there is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongAndShort {
    /// The usual one.
    pub long: Duration,
    /// The shorter one.
    pub short: Duration,
}

/// Where a case makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backends {
    /// Everywhere.
    All,
    /// In the simulator.
    Emulated,
    /// On a real GPU.
    Nvidia,
}

impl Suite {
    /// What results say about it.
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
    /// One of the two.
    pub fn length(self, is_short: bool) -> Duration {
        if is_short { self.short } else { self.long }
    }
}

impl Case {
    /// The loads of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Load> {
        self.loads.iter().filter(move |load| load.role == role)
    }
}

#[cfg(test)]
mod tests;
