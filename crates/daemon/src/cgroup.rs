//! Which container, pod or batch job a process belongs to, read off its control group.
//!
//! Nobody has to be asked: every container runtime and batch system makes a control group of its
//! own for what it starts, and puts its name for it into the path. What they do not put there is
//! not known here: Docker's and Kubernetes' names for people, for example.

mod placement;

use std::collections::BTreeSet;

pub use placement::{Placement, Runtime, SlurmJob};

/// The control groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// The paths, that of the unified hierarchy first, each once.
    pub paths: Vec<String>,
    /// Where that is, in terms people use.
    pub placement: Placement,
}

impl Cgroup {
    /// What a `/proc/PID/cgroup` says. Any bytes do; lines that make no sense are passed over.
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut hierarchies: Vec<(bool, &str)> = text.lines().filter_map(hierarchy).collect();
        hierarchies.sort_by_key(|(is_unified, _)| !is_unified);
        let mut seen = BTreeSet::new();
        let paths: Vec<String> = hierarchies
            .into_iter()
            .filter(|(_, path)| seen.insert(*path))
            .map(|(_, path)| path.to_owned())
            .collect();
        let placement =
            paths.iter().fold(Placement::default(), |known, path| known.or(Placement::of(path)));
        Self { paths, placement }
    }
}

/// The path in a line `NUMBER:CONTROLLERS:PATH`, and whether it is that of the unified hierarchy,
/// which has number 0 and no list of controllers.
fn hierarchy(line: &str) -> Option<(bool, &str)> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.starts_with('/').then_some((number == "0" && controllers.is_empty(), path))
}

#[cfg(test)]
mod tests;
