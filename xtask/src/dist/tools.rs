//! Tools from the Python package index, in an environment of their own: zig, which links against an
//! old glibc and for other machines, and what makes and checks wheels.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::target::{GLIBC, Target};
use crate::process::{capture, is_installed, run_to_success};
use crate::python;

/// Fixed versions: they decide what the programs and wheels are made of.
const TOOLS: &[&str] = &[
    "ziglang==0.17.0",
    "cargo-zigbuild==0.24.0",
    "auditwheel==6.8.2",
    "build==1.6.1",
    "setuptools==84.2.1",
];
/// The last version of pip that installs on Python 3.9, the oldest that the wheel promises.
const PIP: &str = "pip==25.3";

/// The environment.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// In `folder`, where an earlier run may have installed them. The error says what is missing.
    pub(super) fn provide(folder: &Path) -> anyhow::Result<Self> {
        ensure!(python::is_there(), "Python 3.9 or newer with venv is missing");
        let tools = Self { folder: folder.to_owned() };
        let (mark, wanted) = (folder.join("installed"), TOOLS.join("\n"));
        if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
            return Ok(tools);
        }
        let mut environment = Command::new("python3");
        run_to_success(environment.args(["-m", "venv", "--clear"]).arg(folder))?;
        let mut install = tools.module("pip");
        install.args(["--disable-pip-version-check", "install", "--quiet"]).args(TOOLS);
        run_to_success(&mut install).context("pip cannot install the tools")?;
        fs::write(mark, wanted)?;
        Ok(tools)
    }

    /// A Python module of the environment as a command.
    pub(super) fn module(&self, name: &str) -> Command {
        let mut command = Command::new(self.folder.join("bin/python"));
        command.args(["-m", name]).env("PATH", in_front(&self.folder.join("bin")));
        command
    }

    /// `PATH` with a `cc` that links for `target`.
    pub(super) fn path_with_linker(&self, target: Target) -> anyhow::Result<OsString> {
        let folder = self.folder.join("linker");
        fs::create_dir_all(&folder)?;
        fs::copy(self.linker(target)?, folder.join("cc")).context("cannot make the linker")?;
        Ok(in_front(&folder))
    }

    /// A script that links for `target`, for rustc.
    pub(super) fn linker(&self, target: Target) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(format!("link-{target}"));
        let programs = self.folder.join("bin");
        let text = format!(
            "#!/bin/sh\nPATH='{}':$PATH\nexport PATH\n\
             exec cargo-zigbuild zig cc -- -g -target {target}-linux-gnu.{GLIBC} \"$@\"\n",
            programs.display()
        );
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// What auditwheel says about a wheel.
    pub(super) fn audit(&self, wheel: &Path) -> anyhow::Result<String> {
        let said = capture(self.module("auditwheel").arg("show").arg(wheel))?;
        String::from_utf8(said).context("auditwheel wrote something that is no text")
    }

    /// The file of a pip that runs without installation, also on the oldest Python.
    pub(super) fn pip_file(&self) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join("pip-file");
        if !folder.is_dir() {
            let mut download = self.module("pip");
            download.args(["download", "--quiet", "--no-deps", PIP, "--dest"]).arg(&folder);
            run_to_success(&mut download)?;
        }
        let file = fs::read_dir(&folder)?.next().context("pip downloaded nothing")??;
        Ok(file.path())
    }
}

/// `PATH` with a folder in front.
fn in_front(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// Makes the standard library of `target` available to rustc, if it is not.
pub(super) fn provide_standard_library(target: Target) -> anyhow::Result<()> {
    let mut rustc = Command::new("rustc");
    let folder = capture(rustc.args(["--print", "target-libdir", "--target", &target.triple()]))?;
    if Path::new(String::from_utf8_lossy(&folder).trim()).is_dir() {
        return Ok(());
    }
    ensure!(
        is_installed("rustup"),
        "the standard library of {} is missing; to get it: rustup target add",
        target.triple()
    );
    let mut add = Command::new("timeout");
    run_to_success(add.args(["300", "rustup", "target", "add", &target.triple()]))
}
