//! What must be so for a rule to be about a process.

use std::fmt;

use crate::accounts::Accounts;
use crate::facts::{Gpu, PciAddress, ProcessFacts};
use crate::glob::Glob;

/// A user as an operator writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// By number.
    Uid(u32),
    /// By name, looked up each time: accounts come and go.
    Name(String),
}

/// A GPU as an operator writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuPattern {
    /// By its number on this machine.
    Index(u32),
    /// By the beginning of its uuid; upper and lower case are the same.
    UuidPrefix(String),
    /// By where it is plugged in.
    Pci(PciAddress),
}

/// One condition. What is unknown of a process fulfils none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It was started by this user.
    User(User),
    /// Its program's path is like this, or, where the pattern has no `/`, the last part of it.
    Executable(Glob),
    /// Its command line is like this, or, where the pattern has no wildcards, contains it.
    Command(Glob),
    /// One of its control groups has a path like this.
    Cgroup(Glob),
    /// Its container's id begins so, or its container or pod is called like this.
    Container(Glob),
    /// This variable was set when it started, to something like this.
    Env {
        /// The variable.
        name: String,
        /// Its value.
        value: Glob,
    },
    /// It uses this GPU, perhaps among others.
    Gpu(GpuPattern),
}

impl Condition {
    /// Whether it is so.
    pub fn holds(&self, facts: &ProcessFacts, accounts: &Accounts) -> bool {
        let known = match self {
            Self::User(User::Uid(uid)) => facts.uid.map(|found| found == *uid),
            Self::User(User::Name(name)) => {
                accounts.uid(name).zip(facts.uid).map(|(wanted, found)| wanted == found)
            }
            Self::Executable(pattern) => facts.executable.as_deref().map(|path| {
                let whole = pattern.to_string().contains('/');
                let name = path.rsplit('/').next().unwrap_or(path);
                pattern.matches(if whole { path } else { name })
            }),
            Self::Command(pattern) => facts.command.as_deref().map(|command| {
                if pattern.has_wildcards() {
                    pattern.matches(command)
                } else {
                    command.contains(&pattern.to_string())
                }
            }),
            Self::Cgroup(pattern) => facts
                .cgroup
                .as_ref()
                .map(|cgroup| cgroup.paths.iter().any(|path| pattern.matches(path))),
            Self::Container(pattern) => facts.cgroup.as_ref().map(|cgroup| {
                let placement = &cgroup.placement;
                let prefix = pattern.to_string();
                let is_it = |container: &String| {
                    is_id_prefix(&prefix, container) || pattern.matches(container)
                };
                placement.container.as_ref().is_some_and(is_it)
                    || placement.pod.as_ref().is_some_and(|pod| pattern.matches(pod))
            }),
            Self::Env { name, value } => {
                let environment = facts.environment.as_ref();
                environment.and_then(|known| known.get(name)).map(|found| value.matches(found))
            }
            Self::Gpu(pattern) => Some(facts.gpus.iter().any(|gpu| pattern.is(gpu))),
        };
        known.unwrap_or(false)
    }
}

/// Whether `container` is an id that begins so. Names must be given in full, or a rule for `web`
/// would be one for `webhook` too.
fn is_id_prefix(prefix: &str, container: &str) -> bool {
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_id = container.len() == 64 && is_hexadecimal(container);
    is_id && starts_with_ignoring_case(container, prefix)
}

fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

impl GpuPattern {
    fn is(&self, gpu: &Gpu) -> bool {
        match self {
            Self::Index(index) => gpu.index == Some(*index),
            Self::Pci(address) => gpu.pci == Some(*address),
            Self::UuidPrefix(prefix) => {
                gpu.uuid.as_ref().is_some_and(|uuid| starts_with_ignoring_case(uuid, prefix))
            }
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(User::Uid(uid)) => write!(f, "the user is number {uid}"),
            Self::User(User::Name(name)) => write!(f, "the user is {name}"),
            Self::Executable(pattern) => write!(f, "the executable is like {pattern}"),
            Self::Command(pattern) if pattern.has_wildcards() => {
                write!(f, "the command line is like {pattern}")
            }
            Self::Command(pattern) => write!(f, "the command line contains {pattern}"),
            Self::Cgroup(pattern) => write!(f, "the control group is like {pattern}"),
            Self::Container(pattern) => write!(f, "the container or pod is {pattern}"),
            Self::Env { name, value } => write!(f, "{name} is set to {value}"),
            Self::Gpu(GpuPattern::Pci(address)) => write!(f, "the GPU at {address} is used"),
            Self::Gpu(GpuPattern::Index(index)) => write!(f, "GPU {index} is used"),
            Self::Gpu(GpuPattern::UuidPrefix(prefix)) => {
                write!(f, "a GPU whose uuid begins with {prefix} is used")
            }
        }
    }
}
