//! What a rule can see of a process.
//!
//! Everything here was chosen by somebody: the user by the kernel, the rest more or less by the
//! process itself. What is not known, because the kernel does not show it, is `None` and matches
//! no rule.

mod environ;
mod gpu;
mod read;
mod status;

use gpreempt_device::process::ProcessKey;

pub use environ::Environment;
pub use gpu::{Gpu, PciAddress};

use crate::cgroup::Cgroup;

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Which process.
    pub key: ProcessKey,
    /// What the kernel calls it: a few letters, for people only.
    pub name: String,
    /// The real user: who started it, even if the program runs with another's rights.
    pub uid: Option<u32>,
    /// The real group and the supplementary ones.
    pub gids: Option<Vec<u32>>,
    /// The path of the program.
    pub executable: Option<String>,
    /// The arguments, the program's name first, with a space after each but the last.
    pub command: Option<String>,
    /// The variables that rules ask for, as they were when the program was started.
    pub environment: Option<Environment>,
    /// Where it runs.
    pub cgroup: Option<Cgroup>,
    /// The GPUs it uses. Whoever asks about one GPU in particular leaves the others out.
    pub gpus: Vec<Gpu>,
}

impl ProcessFacts {
    /// A process of which nothing is known but that it is there.
    pub fn unknown(key: ProcessKey) -> Self {
        Self {
            key,
            name: String::new(),
            uid: None,
            gids: None,
            executable: None,
            command: None,
            environment: None,
            cgroup: None,
            gpus: Vec::new(),
        }
    }
}
