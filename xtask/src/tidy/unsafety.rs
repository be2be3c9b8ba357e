//! Unsafe code is allowed in a few files, and ARCHITECTURE.md lists all of them.

use super::Problem;
use super::code::{code_only, names};
use super::tree::Tree;

const LIST: &str = "ARCHITECTURE.md";

/// Files with unsafe code that are not on the list.
pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let list = tree.file(LIST).map_or("", |file| file.text.as_str());
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(|file| !list.contains(&file.path)) {
        let code = code_only(&file.text);
        let place = code.lines().position(|line| names(line).any(|(_, name)| name == "unsafe"));
        if let Some(index) = place {
            let reason = format!(
                "unsafe code in a file that {LIST} does not list: move it behind one of the doors \
                 there, or add this one with the reason"
            );
            problems.push(Problem::new(&file.path, index + 1, reason));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOOR: &str = "fn f() {\n    unsafe { g() }\n}\n";

    #[test]
    fn a_file_that_is_not_listed_is_found() {
        for files in [
            &[("src/door.rs", DOOR)][..],
            &[("src/door.rs", DOOR), (LIST, "# Architecture\n`src/other.rs`\n")],
            &[("src/door.rs", "\n#[unsafe(no_mangle)]\n")],
        ] {
            let problems = check(&Tree::of(files));
            assert_eq!(problems.len(), 1, "{files:?}");
            assert_eq!((problems[0].path.as_str(), problems[0].line), ("src/door.rs", 2));
        }
    }

    #[test]
    fn listed_files_and_words_about_unsafe_code_are_fine() {
        let list = (LIST, "# Architecture\n`src/door.rs`\n");
        assert_eq!(check(&Tree::of(&[("src/door.rs", DOOR), list])), []);
        let words = "#![forbid(unsafe_code)]\n// unsafe is not needed\nlet a = \"unsafe\";\n";
        assert_eq!(check(&Tree::of(&[("src/words.rs", words)])), []);
    }
}
