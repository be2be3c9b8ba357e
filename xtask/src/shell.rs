//! The shell scripts that people run as root: shellcheck reads them before anybody does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::SHELLCHECK;
use crate::process::{repository_root, run_to_success};
use crate::step::Outcome;

/// Where scripts are.
const FOLDERS: &[&str] = &[".ci", "deploy"];

/// Checks all of them, as a step of the tests.
pub(crate) fn check() -> Outcome {
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

/// Every file below a folder that a shell is named for in the first line.
fn scripts_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut scripts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            scripts.extend(scripts_below(&path)?);
        } else if is_script(&fs::read(&path)?) {
            scripts.push(path);
        }
    }
    scripts.sort();
    Ok(scripts)
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
