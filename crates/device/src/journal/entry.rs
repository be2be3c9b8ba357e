//! What is written down of one process.

use serde::{Deserialize, Serialize};

pub use crate::act::Act;
use crate::process::ProcessKey;

/// Everything that was changed in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose state it is.
    pub process: ProcessKey,
    /// What was changed, in the order it was.
    pub acts: Vec<Act>,
    /// When it has to be undone whatever happens, on the monotonic clock.
    pub until_ns: Option<u64>,
}

impl Entry {
    /// Adds what was found later. Nothing is forgotten: what was only overlooked is still stopped.
    pub fn join(&mut self, fresh: Vec<Act>) {
        for act in fresh {
            match self.acts.iter().position(|known| known.concerns_the_same(&act)) {
                Some(at) => self.acts[at] = act.joined(&self.acts[at]),
                None => self.acts.push(act),
            }
        }
    }
}
