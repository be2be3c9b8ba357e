//! Paths that exist on one computer only.

use super::Problem;
use super::tree::Tree;

/// Where people's own files are, in pieces so that this file does not find itself.
const PRIVATE: &[&str] = &[concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Files that speak of somebody's own folders.
pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        for (number, line) in file.numbered_lines() {
            for path in PRIVATE.iter().filter(|path| mentions(line, path)) {
                let reason = format!("`{path}` is on one computer only: write a relative path");
                problems.push(Problem::new(&file.path, number, reason));
            }
        }
    }
    problems
}

/// Whether `line` has `path` at the beginning of a path, not in the middle of a longer one.
fn mentions(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|char| !char.is_alphanumeric() && !matches!(char, '.' | '-' | '_' | '/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_folders_are_found_in_every_file() {
        for folder in PRIVATE {
            for text in [format!("cd {folder}x"), format!("{folder}x"), format!("\"{folder}\"")] {
                let problems = check(&Tree::of(&[("a.json", &text)]));
                assert_eq!(problems.len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn parts_of_longer_paths_are_fine() {
        for folder in PRIVATE {
            let text = format!("https://example.org{folder}x and ..{folder}x and a{folder}b");
            assert_eq!(check(&Tree::of(&[("a.md", &text)])), []);
        }
    }
}
