//! Building the programs and the library of a package.
//!
//! Where zig can be had, they are linked against an old glibc. For this machine they are those of
//! the release build that other tests use: cargo does not see which `cc` links, so what was linked
//! against a newer glibc is removed and linked again, and nothing else is built twice.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::glibc;
use super::layout::LIBRARY;
use super::target::{GLIBC, Target};
use super::tools::{self, Tools};
use crate::process::{PROGRAMS, build_programs_with, cargo, run_to_success};

/// Builds everything for `target` and says in which folder it is. Without tools the linker of this
/// machine is used, and the programs may need a newer glibc.
pub(super) fn build(target: Target, tools: Option<&Tools>) -> anyhow::Result<PathBuf> {
    if target.is_this_machine() {
        let path = tools.map(|tools| tools.path_with_linker(target)).transpose()?;
        let change = |command: &mut Command| {
            if let Some(path) = &path {
                command.env("PATH", path);
            }
        };
        let folder = build_all(change)?;
        if tools.is_some() && remove_newer(&folder)? {
            build_all(change)?;
            ensure!(!remove_newer(&folder)?, "zig links against a glibc newer than {GLIBC}");
        }
        Ok(folder)
    } else {
        let tools = tools.context("linking for another machine needs zig")?;
        tools::provide_standard_library(target)?;
        let (linker, triple) = (tools.linker(target)?, target.triple());
        let variable = triple.to_uppercase().replace('-', "_");
        build_all(|command| {
            command.args(["--target", &triple, "--config", "profile.release.strip='debuginfo'"]);
            command.env(format!("CARGO_TARGET_{variable}_LINKER"), &linker);
        })
    }
}

fn build_all(change: impl Fn(&mut Command)) -> anyhow::Result<PathBuf> {
    // By itself, so that it has no more in it than it needs.
    let mut library = cargo(["build", "--release", "--lib", "--package", LIBRARY.0]);
    change(&mut library);
    run_to_success(&mut library)?;
    build_programs_with(change)
}

/// Removes what needs a newer glibc, so that the next build links it; whether there was any.
fn remove_newer(folder: &Path) -> anyhow::Result<bool> {
    let names = PROGRAMS.iter().map(|(_, program)| *program).chain([LIBRARY.1]);
    let mut is_any = false;
    for file in names.map(|name| folder.join(name)) {
        let content = fs::read(&file).with_context(|| file.display().to_string())?;
        if glibc::needed(&content).is_some_and(|needed| needed > glibc::version(GLIBC)) {
            remove_with_links(&file, &folder.join("deps"))?;
            is_any = true;
        }
    }
    Ok(is_any)
}

/// Removes a file, and from `folder` the name under which cargo made it.
fn remove_with_links(file: &Path, folder: &Path) -> anyhow::Result<()> {
    let inode = fs::metadata(file)?.ino();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.metadata()?.ino() == inode {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    #[test]
    fn what_needs_a_newer_glibc_is_removed_under_both_names() {
        let folder = WorkFolder::new("programs").unwrap();
        fs::create_dir(folder.path("deps")).unwrap();
        for name in PROGRAMS.iter().map(|(_, program)| *program).chain([LIBRARY.1]) {
            fs::write(folder.path(name), "GLIBC_2.31").unwrap();
        }
        assert!(!remove_newer(folder.root()).unwrap());
        let newer = folder.path("gpreemptd");
        fs::write(&newer, "GLIBC_2.32").unwrap();
        fs::hard_link(&newer, folder.path("deps/gpreemptd-0123")).unwrap();
        fs::write(folder.path("deps/other"), "").unwrap();
        assert!(remove_newer(folder.root()).unwrap());
        assert!(!newer.exists() && !folder.path("deps/gpreemptd-0123").exists());
        assert!(folder.path("deps/other").exists() && folder.path("gpreempt").exists());
    }
}
