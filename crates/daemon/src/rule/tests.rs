//! When conditions hold.

use gpreempt_device::process::ProcessKey;

use super::*;
use crate::cgroup::Cgroup;
use crate::facts::{Gpu, PciAddress};
use crate::glob::Glob;

const ID: &str = "3f2a9c81d4e5b6a7908172635445362718f9e0d1c2b3a4958677867564534231";
const POD: &str = "0c7b6e1d-52f8-4a9d-8f0e-2b7c1d9e3a45";

fn accounts() -> Accounts {
    Accounts::parse(b"root:x:0:0:::\nalice:x:1000:1000:::\n", b"")
}

fn key() -> ProcessKey {
    ProcessKey { pid: 42, start_ticks: 7 }
}

fn facts() -> ProcessFacts {
    let cgroup = format!("0::/kubepods/burstable/pod{POD}/{ID}\n4:cpu:/other\n");
    ProcessFacts {
        key: key(),
        name: "python3".to_owned(),
        uid: Some(1000),
        gids: Some(vec![1000]),
        executable: Some("/usr/bin/python3.11".to_owned()),
        command: Some("python3 serve.py --port 80".to_owned()),
        environment: Some([("ROLE", "serve-eu"), ("EMPTY", "")].into_iter().collect()),
        cgroup: Some(Cgroup::parse(cgroup.as_bytes())),
        gpus: vec![
            Gpu { index: Some(0), uuid: Some("GPU-7F1C0000".to_owned()), pci: address("41:00.0") },
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
        vec![Condition::User(User::Uid(0)), user("root"), user("nobody")],
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
        assert!(!condition.holds(&ProcessFacts::unknown(key()), &accounts()), "{condition}");
    }
}

#[test]
fn names_of_containers_are_not_cut() {
    let cgroup = Some(Cgroup::parse(b"0::/lxc.payload.webhook\n"));
    let facts = ProcessFacts { cgroup, ..facts() };
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
        trust_env: true,
    };
    assert!(rule(vec![user("alice"), gpu("GPU-7")]).matches(&facts(), &accounts()));
    assert!(!rule(vec![user("alice"), gpu("GPU-8")]).matches(&facts(), &accounts()));
    let words = rule(vec![user("alice"), gpu("GPU-7")]).conditions_text();
    assert_eq!(words, "the user is alice and a GPU whose uuid begins with GPU-7 is used");
}
