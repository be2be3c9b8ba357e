//! Rules about files: their size, their folders, which of them may contain unsafe code, which paths
//! and words they may contain. Every limit and every list is at the top of this file.

use super::Problem;
use super::code::{code_only, names};
use super::tree::{File, Tree};

/// Whether the rules about short files, folders and vague subjects are enforced.
pub(super) const STRUCTURE_IS_CHECKED: bool = true;

/// A file that is longer has more than one purpose.
const FILE_LINES_MAX: usize = 600;
/// Two files fit side by side on a screen.
const LINE_COLUMNS_MAX: usize = 100;
/// Rust files with fewer lines belong into the file of the purpose they serve.
const FILE_LINES_MIN: usize = 40;

/// Beginnings of paths of Rust files that may be shorter, and why.
const SHORT_FILES: &[(&str, &str)] = &[
    ("crates/core/src/id.rs", "every other crate names it"),
    ("crates/device/src/bin/", "cargo needs a file for each program"),
    ("crates/wire/examples/", "programs that show one thing each"),
    ("crates/sim/tests/simulations/seeds.rs", "seeds that failed once, one test each"),
];

/// Lines with one of [`VAGUE_SUBJECTS`] in Rust and Markdown, in the whole repository.
const VAGUE_LINES_MAX: usize = 40;

/// Words that hide which program or user a sentence is about. In pieces, or the check would find
/// itself.
const VAGUE_SUBJECTS: &[&str] = &[
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("every", "body"),
    concat!("any", "body"),
    concat!("who", "ever"),
    concat!("who", "m"),
];

/// The files that may contain `unsafe`, each with the reason why it must.
const UNSAFE_FILES: &[(&str, &str)] = &[
    ("crates/agent/src/amd.rs", "a call to KFD"),
    ("crates/agent/src/c_api.rs", "functions that C calls, with the pointers that C passes"),
    ("crates/agent/src/c_api/", "functions that C calls, with the pointers that C passes"),
    ("crates/agent/src/fork.rs", "closing descriptors in a child after fork"),
    ("crates/agent/src/submit/cuda.rs", "libcuda by `dlopen`"),
    ("crates/bench/src/load/cuda.rs", "libcuda by `dlopen`"),
    ("crates/bench/src/load/cuda/symbols.rs", "libcuda by `dlopen`"),
    ("crates/device/src/amd/kfd_file.rs", "arrays passed to KFD by address"),
    ("crates/device/src/amd/tracer.rs", "tracing has no safe form"),
    ("crates/device/src/eviction/libcuda.rs", "libcuda by `dlopen`"),
    ("crates/device/src/ioctl.rs", "the system calls to the drivers"),
    ("crates/device/src/mapping.rs", "rings, doorbells and hold pages, mapped"),
    ("crates/device/src/nvidia/abi/control.rs", "which number goes with which block"),
    ("crates/device/src/nvidia/abi/escape.rs", "which number goes with which block"),
    ("crates/device/src/nvidia/rm.rs", "control blocks passed by address"),
    ("crates/device/src/nvidia/uvm.rs", "blocks of unified memory passed by address"),
    ("crates/device/src/peer_pidfd.rs", "a socket option that rustix does not have"),
    ("crates/device/src/user_child.rs", "giving up root's rights between fork and exec"),
    ("crates/kfd-check/src/raw.rs", "calls that no kernel has"),
    (
        "crates/wire/src/server/unwanted_files.rs",
        "a socket option that rustix lacks, and a thread's own descriptor table",
    ),
    ("crates/wire/src/shared_memory.rs", "the hint page, and rings shared with the emulator"),
    ("xtask/src/attack/descriptors.rs", "a filter for system calls"),
];

pub(super) fn check_unsafe(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files() {
        let is_listed = UNSAFE_FILES.iter().any(|(path, _)| file.path.starts_with(path));
        let Some(line) = unsafe_line(file).filter(|_| !is_listed) else { continue };
        let reason = "unsafe code in a file that xtask/src/tidy/files.rs does not list: use one \
                      of the listed files, or add this one with the reason";
        problems.push(Problem::new(&file.path, line, reason));
    }
    problems
}

/// The first line with `unsafe`, counted from 1.
fn unsafe_line(file: &File) -> Option<usize> {
    let code = code_only(&file.text);
    let is_unsafe = |line: &str| names(line).any(|(_, name)| name == "unsafe");
    code.lines().position(is_unsafe).map(|index| index + 1)
}

/// Slivers: short Rust files, folders of Rust files with one child, and vague subjects.
pub(super) fn check_structure(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust_files().filter(|file| !file.is_generated()) {
        let lines = file.text.lines().count();
        let is_root = ["lib.rs", "main.rs"].iter().any(|name| file.path.ends_with(name));
        let has_folder = tree.has(file.path.trim_end_matches(".rs"));
        let may_be = has_folder || SHORT_FILES.iter().any(|(path, _)| file.path.starts_with(path));
        if lines < FILE_LINES_MIN && !is_root && !may_be {
            let reason = format!("{lines} lines: move them to where they are used");
            problems.push(Problem::new(&file.path, 1, reason));
        }
    }
    let lonely = tree.source_folders().into_iter().filter(|(folder, children)| {
        *children == 1 && !folder.ends_with("/bin") && !needs_two_files(tree, folder)
    });
    problems.extend(
        lonely.map(|(folder, _)| {
            Problem::new(&folder, 1, "a folder with one child: move the child up")
        }),
    );
    let vague: Vec<Problem> = tree.files().iter().flat_map(vague_lines).collect();
    if vague.len() > VAGUE_LINES_MAX {
        problems.extend(vague);
    }
    problems
}

/// Whether a module and the files in its folder are too long for one file.
fn needs_two_files(tree: &Tree, folder: &str) -> bool {
    let parent = format!("{folder}.rs");
    let inside = format!("{folder}/");
    let own = tree.rust_files().filter(|f| f.path == parent || f.path.starts_with(&inside));
    own.map(|file| file.text.lines().count()).sum::<usize>() > FILE_LINES_MAX
}

fn vague_lines(file: &File) -> Vec<Problem> {
    if !["rs", "md"].contains(&file.extension()) {
        return Vec::new();
    }
    let vague = file.numbered_lines().filter_map(|(number, line)| {
        let line = line.to_lowercase();
        let (_, word) = names(&line).find(|(_, word)| VAGUE_SUBJECTS.contains(word))?;
        let reason = format!("`{word}`: name the program, process or user");
        Some(Problem::new(&file.path, number, reason))
    });
    vague.collect()
}

/// Code in long files and long lines.
pub(super) fn check_size(tree: &Tree) -> Vec<Problem> {
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

/// Where people's own files are, in pieces so that this file does not find itself.
const PRIVATE: &[&str] = &[concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Files that name a folder of one user.
pub(super) fn check_paths(tree: &Tree) -> Vec<Problem> {
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

    const UNSAFE: &str = "fn f() {\n    unsafe { g() }\n}\n";

    #[test]
    fn unsafe_code_in_a_file_that_is_not_listed_is_found() {
        for code in [UNSAFE, "\n#[unsafe(no_mangle)]\n"] {
            let problems = check_unsafe(&Tree::of(&[("src/call.rs", code)]));
            assert_eq!(problems.len(), 1, "{code}");
            assert_eq!((problems[0].path.as_str(), problems[0].line), ("src/call.rs", 2));
        }
    }

    #[test]
    fn listed_files_and_words_about_unsafe_code_are_fine() {
        let (listed, _) = UNSAFE_FILES[0];
        assert_eq!(check_unsafe(&Tree::of(&[(listed, UNSAFE)])), []);
        let words = "#![forbid(unsafe_code)]\n// unsafe is not needed\nlet a = \"unsafe\";\n";
        assert_eq!(check_unsafe(&Tree::of(&[("src/words.rs", words)])), []);
    }

    #[test]
    fn every_listed_file_has_unsafe_code() {
        let tree = Tree::read(&crate::process::repository_root()).unwrap();
        for (path, _) in UNSAFE_FILES {
            let mut files = tree.rust_files().filter(|file| file.path.starts_with(path));
            assert!(files.any(|file| unsafe_line(file).is_some()), "{path} has none");
        }
    }

    #[test]
    fn slivers_are_found() {
        let long = "\n".repeat(FILE_LINES_MIN);
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod b;\n"),
            ("crates/a/src/short.rs", "// x\n"),
            ("crates/a/src/b/c/d.rs", &long),
            ("crates/a/src/b/e.rs", &long),
            ("crates/device/src/bin/f.rs", ""),
        ]);
        let problems = check_structure(&tree);
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["crates/a/src/short.rs", "crates/a/src/b/c"]);
    }

    #[test]
    fn vague_subjects_are_counted_in_rust_and_markdown() {
        let line = format!("{} knows\n", VAGUE_SUBJECTS[0].to_uppercase());
        for (count, found) in [(VAGUE_LINES_MAX, 0), (VAGUE_LINES_MAX + 1, VAGUE_LINES_MAX + 1)] {
            let tree = Tree::of(&[("a.md", &line.repeat(count)), ("b.py", &line.repeat(99))]);
            assert_eq!(check_structure(&tree).len(), found);
        }
    }

    #[test]
    fn long_files_and_long_lines_are_found() {
        let tree = Tree::of(&[
            ("long.rs", &"\n".repeat(601)),
            ("wide.py", &format!("\n{}\n", "ä".repeat(101))),
            ("fits.c", &format!("{}\n", "ä".repeat(100)).repeat(600)),
        ]);
        let problems = check_size(&tree);
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
        assert_eq!(check_size(&tree), []);
    }

    #[test]
    fn private_folders_are_found_in_every_file() {
        for folder in PRIVATE {
            for text in [format!("cd {folder}x"), format!("{folder}x"), format!("\"{folder}\"")] {
                let problems = check_paths(&Tree::of(&[("a.json", &text)]));
                assert_eq!(problems.len(), 1, "{text}");
            }
        }
    }

    #[test]
    fn parts_of_longer_paths_are_fine() {
        for folder in PRIVATE {
            let text = format!("https://example.org{folder}x and ..{folder}x and a{folder}b");
            assert_eq!(check_paths(&Tree::of(&[("a.md", &text)])), []);
        }
    }
}
