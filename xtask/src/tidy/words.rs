//! One word per concept: names that the glossary has replaced, names that say nothing, leftovers.
//!
//! The words in question are written in pieces here, or the checks would find themselves.

use super::Problem;
use super::code::{code_only, names};
use super::tree::{File, Tree};

/// A name the glossary has a better word for.
struct Synonym {
    word: &'static str,
    instead: &'static str,
    /// Where another project uses the word: beginnings of paths.
    allowed_in: &'static [&'static str],
}

const SYNONYMS: &[Synonym] = &[
    Synonym { word: concat!("time", "slice"), instead: "slice", allowed_in: &[] },
    Synonym {
        word: concat!("quan", "tum"),
        instead: "slice",
        // AMD's driver calls it that, and so does the key in the files of device models.
        allowed_in: &["crates/sim/src/model"],
    },
    Synonym { word: concat!("ki", "ck"), instead: "doorbell", allowed_in: &[] },
];

/// Module names that say nothing about their contents.
const DRAWERS: &[&str] =
    &[concat!("uti", "ls"), concat!("com", "mon"), concat!("mi", "sc"), concat!("hel", "pers")];

/// Notes to oneself, in any file.
const NOTES: &[&str] = &[concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X")];

/// Macros that stand for code not written or not removed yet.
const MACROS: &[&str] = &[concat!("db", "g"), concat!("to", "do"), concat!("unimple", "mented")];

/// Endings of files that hold no code and may hold notes all the same.
const PROSE: &[&str] = &["md", "toml", "yml", "yaml"];

/// Words that should be others, or should not be there at all.
pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        check_path(file, &mut problems);
        if file.is_code() || PROSE.contains(&file.extension()) {
            check_notes(file, &mut problems);
        }
    }
    for file in tree.rust_files() {
        for (number, line) in (1..).zip(code_only(&file.text).lines()) {
            let reasons = names(line).filter_map(|(before, name)| {
                let after = &line[before.len() + name.len()..];
                synonym(&file.path, before, name)
                    .or_else(|| drawer(before, name))
                    .or_else(|| unfinished(name, after))
            });
            problems.extend(reasons.map(|reason| Problem::new(&file.path, number, reason)));
        }
    }
    problems
}

fn check_path(file: &File, problems: &mut Vec<Problem>) {
    let stem = |part: &str| part.split('.').next().unwrap_or(part).to_lowercase();
    for part in file.path.split('/').map(stem) {
        if DRAWERS.contains(&part.as_str()) {
            problems.push(Problem::new(&file.path, 1, drawer_reason(&part)));
        }
    }
}

fn check_notes(file: &File, problems: &mut Vec<Problem>) {
    for (number, line) in file.numbered_lines() {
        for (_, word) in names(line).filter(|(_, word)| NOTES.contains(word)) {
            let reason = format!("`{word}` is a note to oneself: do it, or open an issue");
            problems.push(Problem::new(&file.path, number, reason));
        }
    }
}

/// Why `name` should be another one. After a dot it is fine: names are judged where they are
/// given, not where they are used.
fn synonym(path: &str, before: &str, name: &str) -> Option<String> {
    let is_field = before.ends_with('.') && !before.ends_with("..");
    if is_field {
        return None;
    }
    let name_lower = name.to_lowercase();
    let found = SYNONYMS.iter().find(|synonym| {
        let is_allowed = synonym.allowed_in.iter().any(|start| path.starts_with(start));
        name_lower.contains(synonym.word) && !is_allowed
    })?;
    Some(format!("`{name}`: the glossary says {}, one word per thing", found.instead))
}

/// Why a module should have another name.
fn drawer(before: &str, name: &str) -> Option<String> {
    let is_module = before.trim_end().ends_with("mod") && DRAWERS.contains(&name);
    is_module.then(|| drawer_reason(name))
}

fn drawer_reason(name: &str) -> String {
    format!("`{name}` says nothing about what is inside: name it after its one noun")
}

/// Why a macro has no place in finished code.
fn unfinished(name: &str, after: &str) -> Option<String> {
    let is_found = after.starts_with('!') && MACROS.contains(&name);
    is_found.then(|| format!("`{name}!` is for unfinished code: finish it or take it out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|problem| problem.reason).collect()
    }

    fn assert_found(path: &str, text: &str, reason: &str) {
        let reasons = reasons(path, text);
        assert!(reasons.len() == 1 && reasons[0].contains(reason), "{path}: {text}: {reasons:?}");
    }

    #[test]
    fn synonyms_are_found_in_names() {
        let [slice, period, bell] = [0, 1, 2].map(|index: usize| SYNONYMS[index].word);
        assert_found("a.rs", &format!("let {slice}_ns = 1;"), "says slice");
        assert_found("a.rs", "struct TimeSlice;", "says slice");
        assert_found("a.rs", &format!("for i in 0..{period} {{}}"), "says slice");
        assert_found("a.rs", &format!("fn {bell}_ring() {{}}"), "says doorbell");
    }

    #[test]
    fn synonyms_are_fine_in_prose_in_use_and_where_they_are_allowed() {
        let [slice, period, bell] = [0, 1, 2].map(|index: usize| SYNONYMS[index].word);
        let prose = format!("// the driver's {slice}\nlet a = \"{bell}\";");
        assert_eq!(reasons("a.rs", &prose), Vec::<String>::new());
        assert_eq!(reasons("a.rs", &format!("let a = b.{period};")), Vec::<String>::new());
        let field = format!("{period}: Duration,");
        assert_eq!(reasons("crates/sim/src/model/builtin.rs", &field), Vec::<String>::new());
        assert_found("crates/sim/src/machine.rs", &field, "says slice");
    }

    #[test]
    fn drawers_are_found_as_files_folders_and_modules() {
        for drawer in DRAWERS {
            assert_found(&format!("src/{drawer}.rs"), "", "says nothing");
            assert_found(&format!("tests/{drawer}/a.py"), "", "says nothing");
            assert_found("a.rs", &format!("pub mod {drawer};"), "says nothing");
            assert_eq!(reasons("a.rs", &format!("let {drawer} = 1;")), Vec::<String>::new());
        }
    }

    #[test]
    fn leftovers_are_found() {
        for note in NOTES {
            assert_found("a.rs", &format!("// {note}: later"), "note to oneself");
            assert_found("a.md", &format!("# A\n{note}\n"), "note to oneself");
            assert_eq!(reasons("a.sh", &format!("mktemp {note}{note}")), Vec::<String>::new());
        }
        for name in MACROS {
            assert_found("a.rs", &format!("{name}!(x);"), "unfinished code");
            assert_eq!(reasons("a.rs", &format!("// {name}!(x)")), Vec::<String>::new());
        }
    }
}
