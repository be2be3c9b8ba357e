//! `cargo xtask ci`: what the build server checks before it runs the tests; and shellcheck for the
//! scripts that administrators run as root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::SHELLCHECK;
use crate::process::{cargo, files_below, repository_root, run_to_success};
use crate::step::{Outcome, Step};
use crate::{step, tidy, walls};

pub(crate) fn main() -> anyhow::Result<bool> {
    let summary = step::run(vec![
        Step::new("fmt", || passes(&mut cargo(["fmt", "--all", "--check"]))),
        Step::new("clippy", || {
            let mut clippy = cargo(["clippy", "--workspace", "--all-targets"]);
            passes(clippy.args(["--", "-D", "warnings"]))
        }),
        Step::new("docs", || {
            let mut doc = cargo(["doc", "--workspace", "--no-deps", "--document-private-items"]);
            passes(doc.env("RUSTDOCFLAGS", "-Dwarnings"))
        }),
        Step::new("tidy", || Outcome::of(tidy::check_repository())),
        Step::new("walls", || Outcome::of(walls::check_repository())),
    ]);
    println!("{summary}");
    Ok(summary.is_good())
}

fn passes(command: &mut Command) -> Outcome {
    Outcome::of(run_to_success(command))
}

const FOLDERS: &[&str] = &[".ci", "deploy", "examples"];

/// Checks all of them, as a step of the tests.
pub(crate) fn check_scripts() -> Outcome {
    if !SHELLCHECK.is_installed() {
        return Outcome::Skipped(SHELLCHECK.is_missing());
    }
    let root = repository_root();
    let scripts = FOLDERS.iter().map(|folder| scripts_below(&root.join(folder)));
    match scripts.collect::<std::io::Result<Vec<_>>>() {
        Ok(scripts) => {
            let mut shellcheck = Command::new("shellcheck");
            Outcome::of(run_to_success(shellcheck.args(scripts.concat())))
        }
        Err(error) => Outcome::Failed(format!("cannot look for scripts: {error}")),
    }
}

/// Every file below a folder whose first line names a shell.
fn scripts_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = files_below(folder)?;
    files.retain(|path| fs::read(path).is_ok_and(|bytes| is_script(&bytes)));
    Ok(files)
}

fn is_script(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.starts_with(b"#!") && line.ends_with(b"sh")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_told_by_their_first_line() {
        assert!(is_script(b"#!/bin/sh\n") && is_script(b"#!/usr/bin/env bash\nx"));
        assert!(!is_script(b"#!/usr/bin/python3\n") && !is_script(b"# a\n") && !is_script(b""));
    }

    #[test]
    fn the_scripts_are_found() {
        let scripts = scripts_below(&repository_root().join("deploy")).unwrap();
        for name in ["slurm/prolog.sh", "debian/postinst", "install.sh"] {
            assert!(scripts.iter().any(|path| path.ends_with(name)), "{name}: {scripts:?}");
        }
    }
}
