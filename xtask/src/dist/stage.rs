//! The files as they will lie on the other machine, under a root of our own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::layout::Layout;
use crate::process::{is_installed, run_to_success};

/// A root that was filled.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) root: PathBuf,
}

impl Stage {
    /// Fills `root` with copies.
    pub(super) fn make(root: &Path, layout: &Layout) -> anyhow::Result<Self> {
        for entry in &layout.entries {
            put(&entry.source, &root.join(&entry.target), entry.mode)?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Takes the line numbers out of the programs, where there is a tool for it: they are most of
    /// their size, and function names stay.
    pub(super) fn strip_programs(&self, layout: &Layout) -> anyhow::Result<()> {
        if !is_installed("strip") {
            println!("strip is missing: the programs are larger than they need to be");
            return Ok(());
        }
        let is_program = |target: &str| target.starts_with("usr/bin/") || target.ends_with(".so");
        let programs = layout.entries.iter().filter(|entry| is_program(&entry.target));
        let paths = programs.map(|entry| self.root.join(&entry.target));
        run_to_success(Command::new("strip").arg("--strip-debug").args(paths))
    }
}

/// Copies a file and makes the folders above it, whatever this user's umask says.
pub(super) fn put(source: &Path, target: &Path, mode: u32) -> anyhow::Result<()> {
    let text = || format!("cannot copy {} to {}", source.display(), target.display());
    let folder = target.parent().with_context(text)?;
    make_folder(folder).with_context(text)?;
    fs::copy(source, target).with_context(text)?;
    fs::set_permissions(target, fs::Permissions::from_mode(mode)).with_context(text)
}

/// Makes a folder and those above it that are missing, open to everybody.
pub(super) fn make_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make_folder(above)?;
    }
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}
