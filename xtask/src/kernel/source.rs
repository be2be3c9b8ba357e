//! Debian's kernel source with the patches of `kernel/patches` applied, without installing anything
//! but build tools.
//!
//! The patches are applied to copies of the files that they change; changed results are copied into
//! the source. So the source can be patched again after a patch has changed, and make compiles only
//! what differs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::folder;
use crate::package_files::{self, PackageLists};
use crate::packages::{self, Package};
use crate::process::{remove_folder, repository_root, run_to_success};

/// The package with the source that the patches are made for.
const SOURCE: &str = "linux-source-6.12";
/// The package with Debian's configurations, and the one that is used.
const CONFIG: &str = "linux-config-6.12";
const CONFIG_FILE: &str = "usr/src/linux-config-6.12/config.amd64_none_amd64.xz";

/// The unpacked source, fetched if necessary.
pub(super) fn fetch() -> anyhow::Result<PathBuf> {
    packages::provide(TOOLS)?;
    let source = folder().join(SOURCE);
    if source.join("Makefile").is_file() {
        return Ok(source);
    }
    let archive = package(SOURCE)?;
    let part = folder().join("unpacking");
    remove_folder(&part)?;
    fs::create_dir_all(&part).with_context(|| part.display().to_string())?;
    let filter = "xz -dc -T0 | tar -xf - -C \"$2\" --strip-components=1";
    let mut unpack = package_files::extract(&archive, &format!("usr/src/{SOURCE}.tar.xz"), filter);
    run_to_success(unpack.arg(&part)).context("cannot unpack the kernel's source")?;
    // Renamed last, so that an interrupted unpack leaves no folder of this name.
    fs::rename(&part, &source).with_context(|| source.display().to_string())?;
    Ok(source)
}

/// Debian's configuration of the same version.
pub(super) fn config() -> anyhow::Result<Vec<u8>> {
    package_files::file_in(&package(CONFIG)?, CONFIG_FILE)
}

/// A package, downloaded if necessary.
pub(super) fn package(name: &str) -> anyhow::Result<PathBuf> {
    PackageLists::of_this_machine()?.download(name, &folder().join("packages"))
}

/// Applies the patches, checks their style, and returns the source's folder.
pub(super) fn apply() -> anyhow::Result<PathBuf> {
    let source = fetch()?;
    let touched = touched(&text()?);
    let pristine = folder().join("pristine");
    let patched = folder().join("patched");
    let _ = fs::remove_dir_all(&patched);
    for (path, &is_new) in &touched {
        let kept = pristine.join(path);
        if !is_new && !kept.is_file() {
            copy(&source.join(path), &kept)?;
        }
        if !is_new {
            copy(&kept, &patched.join(path))?;
        }
    }
    fs::create_dir_all(&patched).with_context(|| patched.display().to_string())?;
    for patch in patches()? {
        let mut command = Command::new("patch");
        command.args(["-p1", "--batch", "--fuzz=0", "--no-backup-if-mismatch", "--directory"]);
        command.arg(&patched).arg("--input").arg(&patch);
        run_to_success(&mut command).with_context(|| {
            let name = patch.file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("{name} does not apply to this version of the source")
        })?;
    }
    let paths: Vec<&str> = touched.keys().map(String::as_str).collect();
    forget_old(&source, &pristine, &paths)?;
    for path in paths {
        put(&patched.join(path), &source.join(path))?;
    }
    check_style(&source)?;
    println!("the patches are in {}", source.display());
    Ok(source)
}

/// Reverts files that an earlier version of the patches changed.
fn forget_old(source: &Path, pristine: &Path, paths: &[&str]) -> anyhow::Result<()> {
    let list = folder().join("patched-files");
    let before = fs::read_to_string(&list).unwrap_or_default();
    for path in before.lines().filter(|path| !paths.contains(path)) {
        let kept = pristine.join(path);
        if kept.is_file() {
            put(&kept, &source.join(path))?;
        } else if source.join(path).is_file() {
            fs::remove_file(source.join(path)).with_context(|| path.to_owned())?;
        }
    }
    fs::write(&list, paths.join("\n")).with_context(|| list.display().to_string())
}

/// Runs the kernel's `checkpatch.pl` of the same version.
fn check_style(source: &Path) -> anyhow::Result<()> {
    for patch in patches()? {
        let mut check = Command::new("perl");
        check.arg(source.join("scripts/checkpatch.pl")).arg("--root").arg(source);
        // New files need no entry in MAINTAINERS: their folder has one.
        check.args(["--strict", "--quiet", "--ignore", "FILE_PATH_CHANGES"]).arg(&patch);
        // This repository is not the kernel's, so git has no information for it.
        check.env("GIT_DIR", "none");
        run_to_success(&mut check).context("checkpatch.pl --strict has complaints")?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::copy(from, to).map(drop).with_context(|| from.display().to_string())
}

/// Copies a file only if it differs, because make compiles newer files again.
fn put(from: &Path, to: &Path) -> anyhow::Result<()> {
    let new = fs::read(from).with_context(|| from.display().to_string())?;
    if fs::read(to).is_ok_and(|old| old == new) { Ok(()) } else { copy(from, to) }
}

/// The patches in order, without the cover letter.
pub(super) fn patches() -> anyhow::Result<Vec<PathBuf>> {
    let folder = repository_root().join("kernel/patches");
    let mut patches = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| name.ends_with(".patch") && !name.starts_with("0000-")) {
            patches.push(path);
        }
    }
    patches.sort();
    ensure!(!patches.is_empty(), "{} holds no patches", folder.display());
    Ok(patches)
}

pub(super) fn text() -> anyhow::Result<String> {
    let mut text = String::new();
    for patch in patches()? {
        let part = fs::read_to_string(&patch).with_context(|| patch.display().to_string())?;
        text.push_str(&part);
    }
    Ok(text)
}

/// Every file that the patches change, and whether they create it.
pub(super) fn touched(patches: &str) -> BTreeMap<String, bool> {
    let mut files = BTreeMap::new();
    let mut before = "";
    for line in patches.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            let is_new = before == "--- /dev/null";
            files.entry(path.to_owned()).and_modify(|new| *new |= is_new).or_insert(is_new);
        }
        before = line;
    }
    files
}

/// The contents of a file that a patch creates.
pub(super) fn new_file(patches: &str, path: &str) -> Option<String> {
    let header = format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1");
    let (_, rest) = patches.split_once(&header)?;
    let lines = rest.lines().skip(1).map_while(|line| line.strip_prefix('+'));
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

/// The patch with other contents of a file that it creates, if it creates that file: the hunk, its
/// length and the statistics change.
pub(super) fn with_new_file(patch: &str, path: &str, contents: &str) -> Option<String> {
    let before = new_file(patch, path)?;
    let hunk = |text: &str| {
        let lines: String = text.lines().map(|line| format!("+{line}\n")).collect();
        format!("+++ b/{path}\n@@ -0,0 +1,{} @@\n{lines}", text.lines().count())
    };
    let updated = patch.replace(&hunk(&before), &hunk(contents));
    let (old, new) = (before.lines().count(), contents.lines().count());
    let name = path.rsplit('/').next().unwrap_or(path);
    let line = |line: &str| {
        let Some((file, rest)) =
            line.split_once(" | ").filter(|(file, _)| file.trim_end().ends_with(name))
        else {
            let (start, count) = line.split_once(" files changed, ")?;
            let count: usize = count.split(' ').next()?.parse().ok()?;
            return Some(format!("{start} files changed, {} insertions(+)", count + new - old));
        };
        Some(format!("{file} | {new:>4} {}", rest.trim_start().split_once(' ')?.1))
    };
    let lines = updated.lines().map(|text| line(text).unwrap_or_else(|| text.to_owned()) + "\n");
    Some(lines.collect())
}

const fn tool(name: &'static str, program: &'static str) -> Package {
    Package { name, program, needed_by: "building the kernel" }
}

pub(super) const TOOLS: &[Package] = &[
    tool("gcc", "gcc"),
    tool("make", "make"),
    tool("flex", "flex"),
    tool("bison", "bison"),
    tool("bc", "bc"),
    tool("perl", "perl"),
    tool("patch", "patch"),
    tool("xz-utils", "xz"),
    tool("libelf-dev", "/usr/include/libelf.h"),
    tool("libssl-dev", "/usr/include/openssl/ssl.h"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-x\n+y\n\
                         diff --git a/d/n.h b/d/n.h\nnew file mode 100644\n--- /dev/null\n\
                         +++ b/d/n.h\n@@ -0,0 +1,3 @@\n+one\n+\n++three\n-- \n2.39\n";

    #[test]
    fn changed_and_new_files_are_distinguished() {
        let files: Vec<_> = touched(PATCH).into_iter().collect();
        assert_eq!(files, [("a.c".to_owned(), false), ("d/n.h".to_owned(), true)]);
    }

    #[test]
    fn the_contents_of_a_new_file_can_be_replaced() {
        let stat = " d/n.h | 3 +++\n 2 files changed, 4 insertions(+)\n";
        let patch = format!("{stat}{PATCH}");
        let updated = with_new_file(&patch, "d/n.h", "1\n2\n3\n4\n").unwrap();
        assert_eq!(new_file(&updated, "d/n.h").as_deref(), Some("1\n2\n3\n4\n"));
        assert!(updated.starts_with(" d/n.h |    4 +++\n 2 files changed, 5 insertions(+)\n"));
        assert!(updated.ends_with("+4\n-- \n2.39\n") && updated.contains("+1,4 @@"), "{updated}");
        assert_eq!(with_new_file(&patch, "a.c", "1\n"), None);
    }

    #[test]
    fn a_new_file_is_read_from_its_patch() {
        assert_eq!(new_file(PATCH, "d/n.h").as_deref(), Some("one\n\n+three\n"));
        assert_eq!(new_file(PATCH, "a.c"), None);
        assert_eq!(new_file(PATCH, "n.h"), None);
    }

    #[test]
    fn the_series_names_its_files() {
        let files = touched(&text().unwrap());
        assert_eq!(files.get("include/uapi/linux/kfd_ioctl.h"), Some(&false));
        assert_eq!(files.get("drivers/gpu/drm/amd/amdkfd/kfd_preempt.c"), Some(&true));
    }
}
