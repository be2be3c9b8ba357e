//! The core has no world: no standard library, no unsafe code, no floats, no hash order.
//!
//! That it compiles proves nothing, because a host always has a standard library to link. So its
//! sources are read.

use super::Problem;
use super::code::{code_only, names};
use super::tree::Tree;

const SOURCES: &str = "crates/core/src/";
const ROOT: &str = "crates/core/src/lib.rs";

/// What the root of the crate has to say.
const ATTRIBUTES: &[&str] = &["#![no_std]", "#![forbid(unsafe_code)]"];

/// Names that must not appear, and why.
const FOREIGN: &[(&str, &str)] = &[
    ("std", "the standard library brings clocks and threads; use `core` and `alloc`"),
    ("f32", FLOATS),
    ("f64", FLOATS),
    ("HashMap", HASHES),
    ("HashSet", HASHES),
];
const FLOATS: &str = "floats round differently from one machine to the next; use integers";
const HASHES: &str = "hash order differs from run to run; use `BTreeMap` or `BTreeSet`";

/// Places where the core's sources know too much.
pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(root) = tree.file(ROOT) {
        for attribute in ATTRIBUTES.iter().filter(|&a| !root.text.lines().any(|line| line == *a)) {
            let reason = format!("`{attribute}` is missing: it keeps the world out of the core");
            problems.push(Problem::new(ROOT, 1, reason));
        }
    }
    for file in tree.rust_files().filter(|file| file.path.starts_with(SOURCES)) {
        for (number, line) in (1..).zip(code_only(&file.text).lines()) {
            let reasons = names(line).filter_map(|(before, name)| foreign(line, before, name));
            problems.extend(reasons.map(|reason| Problem::new(&file.path, number, reason)));
        }
    }
    problems
}

/// Why `name`, which follows `before` in `line`, does not belong into the core.
fn foreign(line: &str, before: &str, name: &str) -> Option<String> {
    let begins_with_digit = name.starts_with(|char: char| char.is_ascii_digit());
    if begins_with_digit {
        let after = &line[before.len() + name.len()..];
        let mut next = after.chars();
        let has_point = next.next() == Some('.')
            && next.next().is_some_and(|char| char.is_ascii_digit())
            && !before.ends_with('.');
        let has_suffix =
            !name.starts_with("0x") && (name.ends_with("f32") || name.ends_with("f64"));
        return (has_point || has_suffix).then(|| format!("`{name}`: {FLOATS}"));
    }
    let (_, why) = FOREIGN.iter().find(|(foreign, _)| *foreign == name)?;
    Some(format!("`{name}`: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_root(text: &str) -> Vec<Problem> {
        check(&Tree::of(&[(ROOT, text)]))
    }

    const HEAD: &str = "#![no_std]\n#![forbid(unsafe_code)]\n";

    #[test]
    fn both_attributes_are_needed() {
        assert_eq!(check_root(HEAD), []);
        assert_eq!(check_root("#![no_std]\n").len(), 1);
        assert_eq!(check_root("// #![no_std]\n#![forbid(unsafe_code)]\n").len(), 1);
    }

    #[test]
    fn the_world_is_found_in_the_core() {
        for code in [
            "use std::time::Instant;",
            "extern crate std;",
            "fn f(x: f32) {}",
            "let x: f64 = y;",
            "let x = 1.5;",
            "let x = 1_f64;",
            "use hashbrown::HashMap;",
            "let x = HashSet::new();",
        ] {
            let problems = check(&Tree::of(&[("crates/core/src/policy/fair.rs", code)]));
            assert_eq!(problems.len(), 1, "{code}: {problems:?}");
        }
    }

    #[test]
    fn words_integers_and_other_crates_are_fine() {
        let fine = "// std::time is f64\nlet x = \"std::f32\"; let y = z.0.1; let r = 0..10;";
        assert_eq!(check(&Tree::of(&[("crates/core/src/a.rs", fine)])), []);
        let other = "use std::collections::HashMap;";
        assert_eq!(check(&Tree::of(&[("crates/cli/src/main.rs", other)])), []);
        assert_eq!(check(&Tree::of(&[("crates/core/tests/a.rs", other)])), []);
    }
}
