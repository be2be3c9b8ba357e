//! Rules: which processes get which attributes.
//!
//! A rule matches a process if all its conditions hold. Of the rules that match, only the first in
//! the file counts. [`crate::config`] reads rules, [`crate::assignment`] applies them.

use std::fmt;

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use crate::accounts::Accounts;
use crate::config::Unmanaged;
use crate::glob::Glob;
use crate::process_attributes::{Gpu, PciAddress, ProcessAttributes};

/// The attributes that a rule or an environment sets; the others keep their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrSettings {
    pub priority: Option<Priority>,
    /// The share under the fair policy: 1 to [`AttrSettings::WEIGHT_MAX`].
    pub weight: Option<u32>,
    /// From the arrival of a request to its completion: up to [`AttrSettings::DEADLINE_US_MAX`].
    pub deadline: Option<Duration>,
    /// How much slower the process may become.
    pub latency_budget: Option<LatencyBudget>,
    /// GPU memory that the process needs, in bytes.
    pub memory: Option<u64>,
    /// Whether it is evicted when processes with a higher priority need room.
    pub evictable: Option<bool>,
}

impl AttrSettings {
    pub const WEIGHT_MAX: u32 = 1_000;
    /// The longest deadline: an hour.
    pub const DEADLINE_US_MAX: u64 = 3_600_000_000;

    /// Whether no attribute is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a rule does with the processes it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process is not scheduled, whatever its environment says.
    Ignore,
    /// The process gets these attributes; the environment and the defaults give the others.
    Give(AttrSettings),
}

/// How messages name a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLabel {
    /// The position among the rules, counted from 1.
    pub number: usize,
    pub name: Option<String>,
    /// The line in the file, counted from 1.
    pub line: usize,
}

impl fmt::Display for RuleLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}", self.number)?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        write!(f, " (line {})", self.line)
    }
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub label: RuleLabel,
    /// At least one; all must hold.
    pub conditions: Vec<Condition>,
    pub action: Action,
    /// What happens to the process where nothing else names it; none: what the configuration says.
    pub unmanaged: Option<Unmanaged>,
    /// Whether the environment of the process may set the attributes that the rule does not set.
    pub trust_env: bool,
}

impl Rule {
    /// Whether all conditions hold.
    pub fn matches(&self, facts: &ProcessAttributes, accounts: &Accounts) -> bool {
        self.conditions.iter().all(|condition| condition.holds(facts, accounts))
    }

    /// The conditions in words.
    pub fn conditions_text(&self) -> String {
        let words: Vec<String> = self.conditions.iter().map(ToString::to_string).collect();
        words.join(" and ")
    }
}

/// A user, by number or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    Uid(u32),
    /// Looked up each time: accounts are created and deleted.
    Name(String),
}

/// Which GPU a condition means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuPattern {
    /// The number on this machine.
    Index(u32),
    /// The beginning of the uuid, in upper or lower case.
    UuidPrefix(String),
    Pci(PciAddress),
}

/// One condition. It does not hold where the attribute of the process is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The owner of the process.
    User(User),
    /// The path of the program or, if the pattern has no `/`, the last part of that path.
    Executable(Glob),
    /// The command line; a pattern without wildcards may be any part of it.
    Command(Glob),
    /// The path of one of its control groups.
    Cgroup(Glob),
    /// The beginning of the container's id, or the name of the container or pod.
    Container(Glob),
    /// An environment variable at the start of the process.
    Env { name: String, value: Glob },
    /// A GPU that the process uses, perhaps among others.
    Gpu(GpuPattern),
}

impl Condition {
    pub fn holds(&self, facts: &ProcessAttributes, accounts: &Accounts) -> bool {
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

/// Whether `container` is an id that begins with `prefix`. Names must match in full, or a rule for
/// `web` would match `webhook` too.
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

#[cfg(test)]
mod tests {
    use gpreempt_device::process::ProcessKey;

    use super::*;
    use crate::cgroup::Cgroup;

    const ID: &str = "3f2a9c81d4e5b6a7908172635445362718f9e0d1c2b3a4958677867564534231";
    const POD: &str = "0c7b6e1d-52f8-4a9d-8f0e-2b7c1d9e3a45";

    fn accounts() -> Accounts {
        Accounts::parse(b"root:x:0:0:::\nalice:x:1000:1000:::\n", b"")
    }

    fn key() -> ProcessKey {
        ProcessKey { pid: 42, start_ticks: 7 }
    }

    fn facts() -> ProcessAttributes {
        let cgroup = format!("0::/kubepods/burstable/pod{POD}/{ID}\n4:cpu:/other\n");
        ProcessAttributes {
            key: key(),
            name: "python3".to_owned(),
            uid: Some(1000),
            gids: Some(vec![1000]),
            executable: Some("/usr/bin/python3.11".to_owned()),
            command: Some("python3 serve.py --port 80".to_owned()),
            environment: Some([("ROLE", "serve-eu"), ("EMPTY", "")].into_iter().collect()),
            cgroup: Some(Cgroup::parse(cgroup.as_bytes())),
            gpus: vec![
                Gpu {
                    index: Some(0),
                    uuid: Some("GPU-7F1C0000".to_owned()),
                    pci: address("41:00.0"),
                },
                Gpu { index: Some(3), ..Gpu::default() },
            ],
        }
    }

    fn env(name: &str, value: &str) -> Condition {
        Condition::Env { name: name.to_owned(), value: Glob::new(value) }
    }

    fn address(text: &str) -> Option<PciAddress> {
        PciAddress::parse(text)
    }

    fn at(text: &str) -> Condition {
        Condition::Gpu(GpuPattern::Pci(address(text).unwrap()))
    }

    fn gpu(prefix: &str) -> Condition {
        Condition::Gpu(GpuPattern::UuidPrefix(prefix.to_owned()))
    }

    fn user(name: &str) -> Condition {
        Condition::User(User::Name(name.to_owned()))
    }

    /// Every kind of condition as it holds for the process above, and as it does not.
    fn conditions() -> (Vec<Condition>, Vec<Condition>) {
        use Condition::{Cgroup, Command, Container, Executable};
        let globs = |kind: fn(Glob) -> Condition, patterns: &[&str]| -> Vec<Condition> {
            patterns.iter().map(|pattern| kind(Glob::new(pattern))).collect()
        };
        let pod = "0c7b6e1d-*";
        let holds = [
            vec![Condition::User(User::Uid(1000)), user("alice")],
            globs(Executable, &["/usr/bin/python3*", "python3.11", "python*", "*"]),
            globs(Command, &["serve.py", "python3 *--port 80", "*"]),
            globs(Cgroup, &["/kubepods/*", "/other", &format!("*{ID}")]),
            globs(Container, &["3f2a9c", "3F2A9C", ID, "3f*", POD, pod, "*"]),
            vec![env("ROLE", "serve-*"), env("EMPTY", ""), env("EMPTY", "*")],
            vec![
                gpu("GPU-7f1c"),
                gpu("gpu-7F"),
                Condition::Gpu(GpuPattern::Index(3)),
                at("0000:41:00.0"),
            ],
        ];
        let fails = [
            vec![Condition::User(User::Uid(0)), user("root"), user("mallory")],
            globs(Executable, &["/usr/bin/python3", "bin/python3.11", "python3", ""]),
            globs(Command, &["train.py", "serve*", "*serve.py"]),
            globs(Cgroup, &["/kubepods", "kubepods/*", "/other/*"]),
            globs(Container, &["f2a9", "3f2a9c0", "0c7b6e1d", "web"]),
            vec![env("ROLE", "train-*"), env("ROLE", ""), env("MISSING", "*")],
            vec![
                gpu("GPU-7f1c00000"),
                gpu("7F1C"),
                Condition::Gpu(GpuPattern::Index(1)),
                at("42:00.0"),
            ],
        ];
        (holds.concat(), fails.concat())
    }

    #[test]
    fn conditions_hold_when_they_should() {
        let (holds, fails) = conditions();
        for condition in holds {
            assert!(condition.holds(&facts(), &accounts()), "{condition}");
        }
        for condition in fails {
            assert!(!condition.holds(&facts(), &accounts()), "{condition}");
        }
    }

    #[test]
    fn what_is_unknown_matches_nothing() {
        let (holds, fails) = conditions();
        for condition in holds.into_iter().chain(fails) {
            assert!(
                !condition.holds(&ProcessAttributes::unknown(key()), &accounts()),
                "{condition}"
            );
        }
    }

    #[test]
    fn names_of_containers_are_not_cut() {
        let cgroup = Some(Cgroup::parse(b"0::/lxc.payload.webhook\n"));
        let facts = ProcessAttributes { cgroup, ..facts() };
        let named = |pattern: &str| Condition::Container(Glob::new(pattern));
        assert!(!named("web").holds(&facts, &accounts()));
        assert!(named("webhook").holds(&facts, &accounts()));
        assert!(named("web*").holds(&facts, &accounts()));
    }

    #[test]
    fn all_conditions_of_a_rule_must_hold() {
        let rule = |conditions: Vec<Condition>| Rule {
            label: RuleLabel { number: 1, name: None, line: 1 },
            conditions,
            action: Action::Ignore,
            unmanaged: None,
            trust_env: true,
        };
        assert!(rule(vec![user("alice"), gpu("GPU-7")]).matches(&facts(), &accounts()));
        assert!(!rule(vec![user("alice"), gpu("GPU-8")]).matches(&facts(), &accounts()));
        let words = rule(vec![user("alice"), gpu("GPU-7")]).conditions_text();
        assert_eq!(words, "the user is alice and a GPU whose uuid begins with GPU-7 is used");
    }
}
