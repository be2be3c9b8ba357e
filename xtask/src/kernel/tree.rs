//! The source with the patches in it.
//!
//! The patches are applied to copies of the few files they are about; what comes out is put into
//! the source where it differs. So the source can be patched anew after a patch has changed, and
//! what did not change is not compiled again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::{fetch, folder, series};
use crate::process::run_to_success;

/// Applies the patches, checks their style, and says where the source is.
pub(super) fn apply() -> anyhow::Result<PathBuf> {
    let source = fetch::source()?;
    let touched = series::touched(&series::text()?);
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
    for patch in series::patches()? {
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

/// Takes back what an earlier version of the patches changed and this one does not.
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

/// The kernel's own style check, of the same version.
fn check_style(source: &Path) -> anyhow::Result<()> {
    for patch in series::patches()? {
        let mut check = Command::new("perl");
        check.arg(source.join("scripts/checkpatch.pl")).arg("--root").arg(source);
        // New files need no entry in MAINTAINERS: the folder they are in has one.
        check.args(["--strict", "--quiet", "--ignore", "FILE_PATH_CHANGES"]).arg(&patch);
        // The repository we are called in is not the kernel's: nothing to be learnt from it.
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

/// Copies a file if that changes anything, because whatever is newer is compiled again.
fn put(from: &Path, to: &Path) -> anyhow::Result<()> {
    let new = fs::read(from).with_context(|| from.display().to_string())?;
    if fs::read(to).is_ok_and(|old| old == new) { Ok(()) } else { copy(from, to) }
}
