//! Rust sources without their comments and strings, and the rule that the core has no standard
//! library, no unsafe code, no floats and no hash order.
//!
//! That the core compiles proves nothing, because a host always has a standard library to link. So
//! its sources are read.

use super::Problem;
use super::tree::Tree;

/// `source` with every comment, string and character literal replaced by blanks.
///
/// Lines and columns stay where they are.
pub(super) fn code_only(source: &str) -> String {
    let mut masker = Masker { rest: source, code: String::with_capacity(source.len()) };
    while let Some(next) = masker.rest.chars().next() {
        match masker.blank_length() {
            Some(length) => masker.blank(length),
            None => masker.keep(next),
        }
    }
    masker.code
}

/// The names in a line of code, each with the text before it.
///
/// Numbers count as names, because a suffix such as the one of `1f32` names a type.
pub(super) fn names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_border = |char: char| !is_name_char(char);
    line.split(is_border).filter(|name| !name.is_empty()).map(move |name| {
        let start = name.as_ptr().addr() - line.as_ptr().addr();
        (&line[..start], name)
    })
}

fn is_name_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

struct Masker<'a> {
    rest: &'a str,
    code: String,
}

impl Masker<'_> {
    fn keep(&mut self, char: char) {
        self.code.push(char);
        self.rest = &self.rest[char.len_utf8()..];
    }

    fn blank(&mut self, length: usize) {
        let (blanked, rest) = self.rest.split_at(length);
        self.code.extend(blanked.chars().map(|char| if char == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }

    /// How many bytes from here on are a comment or a literal, if this is one.
    fn blank_length(&self) -> Option<usize> {
        let rest = self.rest;
        if rest.starts_with("//") {
            return Some(rest.find('\n').unwrap_or(rest.len()));
        }
        if rest.starts_with("/*") {
            return Some(block_comment_length(rest));
        }
        if rest.starts_with('"') {
            return Some(literal_length(rest, '"'));
        }
        let after_name = self.code.chars().next_back().is_some_and(is_name_char);
        if !after_name && let Some(length) = raw_string_length(rest) {
            return Some(length);
        }
        is_char_literal(rest).then(|| literal_length(rest, '\''))
    }
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    loop {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            match here.chars().next() {
                Some(char) => at += char.len_utf8(),
                None => return at,
            }
        }
    }
}

/// The length of a literal from its opening `quote` to its closing one, backslashes heeded.
fn literal_length(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        if char == '\\' {
            chars.next();
        } else if char == quote {
            return at + quote.len_utf8();
        }
    }
    rest.len()
}

/// The length of `r"…"`, `br#"…"#` and their like.
fn raw_string_length(rest: &str) -> Option<usize> {
    let after_r = ["r", "br", "cr"].into_iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let body = after_r.trim_start_matches('#');
    let hashes = &after_r[..after_r.len() - body.len()];
    let body = body.strip_prefix('"')?;
    let start = rest.len() - body.len();
    let end = format!("\"{hashes}");
    Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

/// Whether this quote begins a character; the other thing it can begin is a lifetime.
fn is_char_literal(rest: &str) -> bool {
    let mut chars = rest.chars();
    if chars.next() != Some('\'') {
        return false;
    }
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

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
pub(super) fn check_core(tree: &Tree) -> Vec<Problem> {
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

    #[test]
    fn comments_and_literals_become_blanks() {
        for (source, code) in [
            ("a // b", "a     "),
            ("a /* b /* c */ d\n */ e", "a               \n    e"),
            (r#"a("b \" c", d)"#, "a(        , d)"),
            ("a(r#\"b \" c\"#, br\"d\", e)", "a(          ,      , e)"),
            (r"a('b', '\'', c)", "a(   ,     , c)"),
            ("a::<'b, 'c>(d)", "a::<'b, 'c>(d)"),
            ("r#type + attr\"b\"", "r#type + attr   "),
            ("a \"never ends", "a            "),
            ("a /* never ends", "a              "),
        ] {
            assert_eq!(code_only(source), code, "{source}");
        }
    }

    #[test]
    fn names_come_with_what_precedes_them() {
        let found: Vec<_> = names("let x = y.slice_ns + 1f32;").collect();
        let before = "let x = y.slice_ns + ";
        assert_eq!(found[2..], [("let x = ", "y"), ("let x = y.", "slice_ns"), (before, "1f32")]);
    }

    fn check_root(text: &str) -> Vec<Problem> {
        check_core(&Tree::of(&[(ROOT, text)]))
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
            let problems = check_core(&Tree::of(&[("crates/core/src/policy/fair.rs", code)]));
            assert_eq!(problems.len(), 1, "{code}: {problems:?}");
        }
    }

    #[test]
    fn words_integers_and_other_crates_are_fine() {
        let fine = "// std::time is f64\nlet x = \"std::f32\"; let y = z.0.1; let r = 0..10;";
        assert_eq!(check_core(&Tree::of(&[("crates/core/src/a.rs", fine)])), []);
        let other = "use std::collections::HashMap;";
        assert_eq!(check_core(&Tree::of(&[("crates/cli/src/main.rs", other)])), []);
        assert_eq!(check_core(&Tree::of(&[("crates/core/tests/a.rs", other)])), []);
    }
}
