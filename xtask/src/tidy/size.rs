//! Files and lines that a reader can take in. (The length of functions is clippy's business.)

use super::Problem;
use super::tree::Tree;

const FILE_LINES_MAX: usize = 600;
const LINE_COLUMNS_MAX: usize = 100;

/// Code in long files and long lines.
pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files().iter().filter(|file| file.is_code() && !file.is_generated()) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            let reason = format!(
                "{lines} lines; from {FILE_LINES_MAX} on a file holds more than one noun: \
                 give the second one a file of its own"
            );
            problems.push(Problem::new(&file.path, FILE_LINES_MAX + 1, reason));
        }
        for (number, line) in file.numbered_lines() {
            let columns = line.chars().count();
            if columns > LINE_COLUMNS_MAX {
                let reason = format!(
                    "{columns} columns; two files side by side leave room for {LINE_COLUMNS_MAX}"
                );
                problems.push(Problem::new(&file.path, number, reason));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_and_long_lines_are_found() {
        let tree = Tree::of(&[
            ("long.rs", &"\n".repeat(601)),
            ("wide.py", &format!("\n{}\n", "ä".repeat(101))),
            ("fits.c", &format!("{}\n", "ä".repeat(100)).repeat(600)),
        ]);
        let problems = check(&tree);
        let places: Vec<_> = problems.iter().map(|p| (p.path.as_str(), p.line)).collect();
        assert_eq!(places, [("long.rs", 601), ("wide.py", 2)]);
        assert!(problems[0].reason.starts_with("601 lines"), "{}", problems[0]);
        assert!(problems[1].reason.starts_with("101 columns"), "{}", problems[1]);
    }

    #[test]
    fn prose_tables_and_generated_files_are_free() {
        let wide = "x".repeat(200);
        let generated = format!("// {} by a program\n{wide}\n", concat!("@", "generated"));
        let tree = Tree::of(&[("a.md", &wide), ("b.toml", &wide), ("c.h", &generated)]);
        assert_eq!(check(&tree), []);
    }
}
