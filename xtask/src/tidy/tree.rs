//! The files that the checks read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

/// Endings of files that people write in a programming language.
const CODE: &[&str] = &["rs", "py", "c", "h", "sh", "s", "S"];

#[derive(Clone, Debug)]
pub(super) struct File {
    /// From the root of the repository, with `/` between the parts.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    pub(super) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|ending| ending.to_str()).unwrap_or("")
    }

    /// Whether it is a program's source; scripts need no ending, their first line tells.
    pub(super) fn is_code(&self) -> bool {
        CODE.contains(&self.extension()) || self.text.starts_with("#!/")
    }

    /// Whether a program wrote it, which the first lines then say.
    pub(super) fn is_generated(&self) -> bool {
        const MARK: &str = concat!("@", "generated");
        self.text.lines().take(5).any(|line| line.contains(MARK))
    }

    /// The lines with their numbers, counted from 1.
    pub(super) fn numbered_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    files: Vec<File>,
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads what a commit at `root` could contain: tracked files, and new ones not ignored.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let listed = listed_by_git(root);
        let paths = if listed.is_empty() { found_by_walking(root)? } else { listed };
        let mut tree = Self::default();
        // Inputs of the fuzz targets are whatever a fuzzer wrote.
        for path in paths.into_iter().filter(|path| !path.starts_with("fuzz/corpus/")) {
            // Deleted and binary files are not checked.
            let Ok(bytes) = fs::read(root.join(&path)) else {
                continue;
            };
            if let Ok(text) = String::from_utf8(bytes) {
                tree.files.push(File { path: path.clone(), text });
            }
            tree.paths.insert(path);
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.into(), text: text.into() };
        let paths = files.iter().map(|&(path, _)| path.to_owned()).collect();
        Self { files: files.iter().map(file).collect(), paths }
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    pub(super) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.extension() == "rs")
    }

    /// The folders below a `src` that have Rust files, each with the number of its children.
    pub(super) fn source_folders(&self) -> BTreeMap<String, usize> {
        let mut children: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for path in self.rust_files().map(|file| file.path.as_str()) {
            let start = path.find("/src/").map_or(path.len(), |at| at + "/src/".len());
            for (at, _) in path.match_indices('/').filter(|(at, _)| *at >= start) {
                let child = path[at + 1..].split('/').next().unwrap_or_default();
                children.entry(path[..at].to_owned()).or_default().insert(child);
            }
        }
        children.into_iter().map(|(folder, children)| (folder, children.len())).collect()
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether `path` is a file or a folder of the tree; the empty path is the root.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.paths.contains(path)
            || self.paths.iter().any(|known| known.starts_with(&folder))
    }
}

/// What git knows of; nothing where there is no git.
fn listed_by_git(root: &Path) -> BTreeSet<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.current_dir(root).stderr(Stdio::null()).output();
    let listing = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let listing = String::from_utf8(listing.unwrap_or_default()).unwrap_or_default();
    listing.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

/// Every file below `root` except git's own and build output.
fn found_by_walking(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        let entries = entries.with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                // Cargo marks its target folders with this file, wherever they are.
                if entry.file_name() != ".git" && !path.join("CACHEDIR.TAG").exists() {
                    folders.push(path);
                }
            } else if let Some(name) = path.strip_prefix(root)?.to_str() {
                found.insert(name.to_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::repository_root;

    #[test]
    fn the_repository_is_read_with_and_without_git() {
        let root = repository_root();
        let tree = Tree::read(&root).unwrap();
        let walked = found_by_walking(&root).unwrap();
        for path in ["Cargo.toml", "xtask/src/main.rs", ".cargo/config.toml"] {
            assert!(tree.file(path).is_some() && walked.contains(path), "{path}");
        }
        assert!(!walked.iter().any(|path| path.starts_with(".git/")));
    }

    #[test]
    fn folders_exist_through_their_files() {
        let tree = Tree::of(&[("docs/guides/amd.md", "")]);
        assert!(tree.has("docs") && tree.has("docs/guides/amd.md") && tree.has(""));
        assert!(!tree.has("doc") && !tree.has("docs/amd"));
    }

    #[test]
    fn code_is_told_by_its_ending_or_its_first_line() {
        let is_code = |path, text| Tree::of(&[(path, text)]).files()[0].is_code();
        assert!(is_code("a/b.rs", "") && is_code(".ci/run", "#!/usr/bin/env bash\n"));
        assert!(!is_code("a.md", "") && !is_code("Cargo.lock", "# by cargo\n"));
    }
}
