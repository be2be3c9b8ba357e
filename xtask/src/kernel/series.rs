//! The patches of `kernel/patches`, as text.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::process::repository_root;

/// Where the patches are.
fn folder() -> PathBuf {
    repository_root().join("kernel/patches")
}

/// The patches in their order, without the letter that introduces them.
pub(super) fn patches() -> anyhow::Result<Vec<PathBuf>> {
    let folder = folder();
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

/// The text of all patches, one after the other.
pub(super) fn text() -> anyhow::Result<String> {
    let mut text = String::new();
    for patch in patches()? {
        let part = fs::read_to_string(&patch).with_context(|| patch.display().to_string())?;
        text.push_str(&part);
    }
    Ok(text)
}

/// Every file that patches change, and whether they make it anew.
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

/// A file that one of the patches makes anew, as that patch makes it.
pub(super) fn new_file(patches: &str, path: &str) -> Option<String> {
    let header = format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1");
    let (_, rest) = patches.split_once(&header)?;
    let lines = rest.lines().skip(1).map_while(|line| line.strip_prefix('+'));
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-x\n+y\n\
                         diff --git a/d/n.h b/d/n.h\nnew file mode 100644\n--- /dev/null\n\
                         +++ b/d/n.h\n@@ -0,0 +1,3 @@\n+one\n+\n++three\n-- \n2.39\n";

    #[test]
    fn changed_and_new_files_are_told_apart() {
        let files: Vec<_> = touched(PATCH).into_iter().collect();
        assert_eq!(files, [("a.c".to_owned(), false), ("d/n.h".to_owned(), true)]);
    }

    #[test]
    fn a_new_file_is_read_out_of_its_patch() {
        assert_eq!(new_file(PATCH, "d/n.h").as_deref(), Some("one\n\n+three\n"));
        assert_eq!(new_file(PATCH, "a.c"), None);
        assert_eq!(new_file(PATCH, "n.h"), None);
    }

    #[test]
    fn the_series_names_the_files_it_is_about() {
        let files = touched(&text().unwrap());
        assert_eq!(files.get("include/uapi/linux/kfd_ioctl.h"), Some(&false));
        assert_eq!(files.get("drivers/gpu/drm/amd/amdkfd/kfd_preempt.c"), Some(&true));
    }
}
