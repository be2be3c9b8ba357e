//! The tarball: the same files, a list of them, and a script that installs them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::VERSION;
use super::layout::Layout;
use super::stage::{Stage, make_folder, put};
use crate::process::run_to_success;

/// The name of the tarball without its ending, and of the one folder in it.
pub(super) fn name() -> String {
    format!("gpreempt-{VERSION}-x86_64")
}

/// Makes it in the folder `out`.
pub(super) fn make(stage: &Stage, layout: &Layout, out: &Path) -> anyhow::Result<PathBuf> {
    let above = stage.root.with_file_name("tarball");
    let folder = above.join(name());
    make_folder(&folder)?;
    let mut manifest = String::new();
    for entry in &layout.entries {
        put(&stage.root.join(&entry.target), &folder.join(&entry.target), entry.mode)?;
        writeln!(manifest, "{:o} {}", entry.mode, entry.target)?;
    }
    fs::write(folder.join("manifest"), manifest)?;
    put(&layout.installer, &folder.join("install.sh"), 0o755)?;
    let tarball = out.join(format!("{}.tar.gz", name()));
    let mut tar = Command::new("tar");
    // Nothing of this machine or this hour: the same files make the same tarball.
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mtime=@0", "--file"]).arg(&tarball).arg("--directory").arg(&above).arg(name());
    run_to_success(&mut tar)?;
    Ok(tarball)
}
