//! Build script of the programs: `GPREEMPT_VERSION` is what they print for `--version`.
//!
//! Release builds name their commit, with `-dirty` if files differed from it. Builds for tests do
//! not, so that a commit does not rebuild them. Sources without git have the version alone, unless
//! `GPREEMPT_COMMIT` names the commit.
#![expect(clippy::print_stdout, reason = "cargo reads the output of a build script")]

use std::env;
use std::path::Path;
use std::process::Command;

const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-env-changed=GPREEMPT_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = if is_release { named().or_else(found) } else { None };
    let text = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=GPREEMPT_VERSION={text}");
}

/// The commit that the caller of cargo names.
fn named() -> Option<String> {
    env::var("GPREEMPT_COMMIT").ok().filter(|commit| !commit.is_empty())
}

/// The commit of the checkout. A new commit, and another source file, makes cargo ask again.
fn found() -> Option<String> {
    // Sources without git may lie in the checkout of another project.
    let root = Path::new("../..").canonicalize().ok()?;
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // The log of HEAD gets a line for each commit; a fresh clone may have none yet.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=..");
    // Always as many digits, whatever else the repository contains.
    let commit = git(&["rev-parse", "HEAD"])?.get(..DIGITS)?.to_owned();
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", "../.."])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// The output of git, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Another git may run at the same time: this one takes no lock.
    let output = command.env("GIT_OPTIONAL_LOCKS", "0").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
