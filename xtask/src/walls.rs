//! Which crates of the workspace a crate may link, checked against `cargo tree`.
//!
//! Only normal dependencies count: a test may use the emulator wherever it likes, but what is
//! linked into user programs (the agent) and what runs as root (device, daemon) may not.

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use crate::process::{cargo, repository_root};

/// The beginning of the names of the workspace's crates.
const OURS: &str = "gpreempt-";

/// What a crate may link, directly or not.
enum Rule {
    /// Of the workspace's crates, these and no others.
    Only(&'static [&'static str]),
    Never(&'static [&'static str]),
    /// At most so many packages, itself included.
    AtMost(usize),
}

const WALLS: &[(&str, Rule, &str)] = &[
    ("core", Rule::Only(&[]), "the scheduler knows no devices and no protocol"),
    ("kfd", Rule::Only(&[]), "it describes a kernel interface"),
    ("wire", Rule::Only(&["core", "kfd"]), "it defines bytes and knows no devices"),
    ("sim", Rule::Only(&["core", "fields"]), "a simulation depends on its scenario only"),
    ("agent", Rule::Only(&["wire", "core", "kfd"]), "it is linked into user programs"),
    ("agent", Rule::AtMost(11), "it is linked into user programs, so it stays small"),
    ("device", Rule::Never(&["sim", "emu"]), "the emulated GPU is reached over wire"),
    ("daemon", Rule::Never(&["sim", "emu"]), "the emulated GPU is reached over wire"),
];

pub(crate) fn main() -> anyhow::Result<bool> {
    check_repository()?;
    println!("{} rules about crates hold", WALLS.len());
    Ok(true)
}

/// Fails if a crate links what it may not, and says through which others.
pub(crate) fn check_repository() -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for (package, rule, reason) in WALLS {
        problems.extend(violations(package, rule, reason, &tree_of(package)?)?);
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// What `cargo tree` prints for a crate of the workspace.
fn tree_of(package: &str) -> anyhow::Result<String> {
    let mut tree = cargo(["tree", "--edges", "normal,no-proc-macro", "--prefix", "depth"]);
    tree.args(["--package", &format!("{OURS}{package}")]).current_dir(repository_root());
    let output = tree.output().context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree of {package}: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("cargo tree wrote no UTF-8")
}

/// The sentences about everything in a tree that breaks a rule.
fn violations(package: &str, rule: &Rule, reason: &str, tree: &str) -> anyhow::Result<Vec<String>> {
    let paths = paths(tree)?;
    let root = paths.first().and_then(|path| path.first()).map(String::as_str);
    if root != Some(format!("{OURS}{package}").as_str()) {
        bail!("the tree of {package} begins with {root:?}");
    }
    let is_forbidden = |name: &str| match (rule, name.strip_prefix(OURS)) {
        (Rule::Only(allowed), Some(name)) => name != package && !allowed.contains(&name),
        (Rule::Never(forbidden), Some(name)) => forbidden.contains(&name),
        (Rule::AtMost(_), _) | (_, None) => false,
    };
    let mut found = BTreeSet::new();
    let mut problems: Vec<String> = paths
        .iter()
        .filter_map(|path| path.last().filter(|name| is_forbidden(name)).map(|name| (path, name)))
        .filter(|(_, name)| found.insert((*name).clone()))
        .map(|(path, name)| {
            format!("{package} may not link {name} ({}): {reason}", path.join(" -> "))
        })
        .collect();
    if let Rule::AtMost(limit) = rule {
        let names: BTreeSet<&str> =
            paths.iter().filter_map(|path| path.last()).map(|s| &**s).collect();
        if names.len() > *limit {
            let list = names.iter().copied().collect::<Vec<_>>().join(", ");
            let count = names.len();
            problems.push(format!(
                "{package} links {count} packages, and may link {limit}: {reason}; they are {list}"
            ));
        }
    }
    Ok(problems)
}

/// The way from the root to each line of a tree with depths: `2rustix v1.1.6 (*)`.
fn paths(tree: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let mut path: Vec<String> = Vec::new();
    let mut paths = Vec::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let digits = line.find(|char: char| !char.is_ascii_digit()).unwrap_or(0);
        let (depth, rest) = line.split_at(digits);
        let depth: usize = depth.parse().with_context(|| format!("no depth in `{line}`"))?;
        let name =
            rest.split_whitespace().next().with_context(|| format!("no name in `{line}`"))?;
        if depth > path.len() {
            bail!("`{line}` has no parent");
        }
        path.truncate(depth);
        path.push(name.to_owned());
        paths.push(path.clone());
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0gpreempt-device v0.1.0 (/somewhere/crates/device)
1gpreempt-core v0.1.0 (/somewhere/crates/core)
1gpreempt-emu v0.1.0 (/somewhere/crates/emu)
2gpreempt-core v0.1.0 (/somewhere/crates/core)
2gpreempt-sim v0.1.0 (/somewhere/crates/sim)
3gpreempt-core v0.1.0 (/somewhere/crates/core)
1gpreempt-sim v0.1.0 (/somewhere/crates/sim) (*)
1rustix v1.1.6
2bitflags v2.13.2
";

    fn sentences(rule: &Rule) -> Vec<String> {
        violations("device", rule, "it is so", TREE).unwrap()
    }

    #[test]
    fn what_is_reached_is_named_once_with_the_way_to_it() {
        let way = "gpreempt-device -> gpreempt-emu -> gpreempt-sim";
        let sim = format!("device may not link gpreempt-sim ({way}): it is so");
        assert_eq!(sentences(&Rule::Never(&["sim"])), [sim.as_str()]);
        assert_eq!(sentences(&Rule::Only(&["core", "emu"])), [sim]);
        assert_eq!(sentences(&Rule::Only(&["core"])).len(), 2);
        let none: [&str; 0] = [];
        assert_eq!(sentences(&Rule::Never(&["wire"])), none);
        assert_eq!(sentences(&Rule::Only(&["core", "emu", "sim"])), none);
    }

    #[test]
    fn packages_are_counted_once() {
        assert!(sentences(&Rule::AtMost(6)).is_empty());
        let problems = sentences(&Rule::AtMost(5));
        let beginning = "device links 6 packages, and may link 5: it is so; they are bitflags, ";
        assert!(problems.len() == 1 && problems[0].starts_with(beginning), "{problems:?}");
    }

    #[test]
    fn text_that_is_no_tree_is_an_error() {
        for text in ["", "gpreempt-device v0.1.0", "0", "0gpreempt-agent v0.1.0"] {
            assert!(violations("device", &Rule::Only(&[]), "", text).is_err(), "{text}");
        }
        assert!(paths("0gpreempt-device v0.1.0\n2gpreempt-core v0.1.0\n").is_err());
    }
}
