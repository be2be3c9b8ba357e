//! Where the programs are.
//!
//! One mechanism for every test: the folder that `GPREEMPT_BIN` names; else what cargo says it
//! built for this test (`CARGO_BIN_EXE_NAME`, which it sets for programs of the test's own
//! package); else the folder of the test's own build, after cargo has brought the program there up
//! to date. The programs of other packages are built with one selection of packages, so that all
//! tests share what they are made of.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::error::StageError;

/// The packages whose features are resolved together, whichever program is built.
const PACKAGES: &[&str] = &["gpreempt-bench", "gpreempt-daemon", "gpreempt-device", "gpreempt-emu"];
/// The package of the command-line program, which few tests need and which takes long to build.
const CLI: (&str, &str) = ("gpreempt", "gpreempt-cli");

/// A program of this repository, by name. It is brought up to date once for each process.
pub fn program(name: &str) -> Result<PathBuf, StageError> {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    if let Some(folder) = std::env::var_os("GPREEMPT_BIN") {
        return Ok(PathBuf::from(folder).join(name));
    }
    if let Some(path) = std::env::var_os(format!("CARGO_BIN_EXE_{name}")) {
        return Ok(path.into());
    }
    // Held while cargo builds: other threads need the same program.
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = found.get(name) {
        return Ok(path.clone());
    }
    let path = build(name)?;
    found.insert(name.to_owned(), path.clone());
    Ok(path)
}

fn build(name: &str) -> Result<PathBuf, StageError> {
    let failed = |problem: String| StageError::Build { program: name.to_owned(), problem };
    // TARGET/debug/deps/test-0123 runs; programs are in TARGET/debug.
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let folder = own.parent().filter(|folder| folder.ends_with("deps")).and_then(Path::parent);
    let (Some(folder), Some(target)) = (folder, folder.and_then(Path::parent)) else {
        return Err(failed(format!("{} is not in a target folder of cargo", own.display())));
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(cargo);
    cargo.args(["build", "--quiet", "--bin", name]).arg("--target-dir").arg(target);
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    if name == CLI.0 {
        cargo.args(["--package", CLI.1]);
    }
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    match cargo.status() {
        Ok(status) if status.success() => Ok(folder.join(name)),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}
