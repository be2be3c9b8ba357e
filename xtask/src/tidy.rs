//! `cargo xtask tidy`: the rules of CONTRIBUTING.md that a program can check.
//!
//! Every check reads a [`Tree`] and returns [`Problem`]s; none of them touches the disk, so each
//! has a unit test with a tree that breaks its rule.

mod code;
mod files;
mod markdown;
mod tree;
mod words;

use std::fmt;

use anyhow::bail;

use crate::process::repository_root;
use tree::Tree;

const CHECKS: &[fn(&Tree) -> Vec<Problem>] = &[
    files::check_size,
    files::check_paths,
    files::check_unsafe,
    code::check_core,
    words::check,
    markdown::check_titles,
    markdown::check_links,
];

/// A broken rule: where, and why it is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    path: String,
    /// Counted from 1.
    line: usize,
    reason: String,
}

impl Problem {
    fn new(path: &str, line: usize, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, reason: reason.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.reason)
    }
}

pub(crate) fn main() -> anyhow::Result<bool> {
    check_repository()?;
    Ok(true)
}

/// Checks the repository; prints every problem and then fails if there was one.
pub(crate) fn check_repository() -> anyhow::Result<()> {
    let tree = Tree::read(&repository_root())?;
    let problems = check(&tree);
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => {
            println!("{} files are tidy", tree.files().len());
            Ok(())
        }
        1 => bail!("1 problem"),
        count => bail!("{count} problems"),
    }
}

fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems: Vec<Problem> = CHECKS.iter().flat_map(|check| check(tree)).collect();
    if files::STRUCTURE_IS_CHECKED {
        problems.extend(files::check_structure(tree));
    }
    problems.sort();
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let problems = check(&Tree::read(&repository_root()).unwrap());
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn problems_come_sorted_and_say_where_they_are() {
        let long = "x".repeat(101);
        let code = format!("\n// {long}\n{}", "// short\n".repeat(40));
        let tree = Tree::of(&[("b.rs", &code), ("a.md", "no title\n")]);
        let lines: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("a.md:1: "), "{lines:?}");
        assert!(lines[1].starts_with("b.rs:2: "), "{lines:?}");
    }
}
