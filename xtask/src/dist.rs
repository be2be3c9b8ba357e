//! `cargo xtask dist`: what can be carried to another machine, a tarball and a Debian package.

mod check;
mod deb;
mod glibc;
mod layout;
mod stage;
mod tarball;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::args::Syntax;
use crate::process::{build_release, cargo, repository_root, run_to_success};
use layout::{LIBRARY, Layout, PROGRAMS};
use stage::Stage;

const SYNTAX: Syntax = Syntax { switches: &["--check"], options: &[], positionals: &[] };

/// The version of everything in the workspace, this package included.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes both and says where they are; with `--check` also tries them.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    make(SYNTAX.parse(args)?.has("--check"))?;
    Ok(true)
}

/// Makes and tries both, as a step of the tests.
pub(crate) fn make_and_check() -> anyhow::Result<()> {
    make(true).map(|_| ())
}

/// The Debian package, where one can be made.
pub(crate) fn debian_package() -> anyhow::Result<Option<PathBuf>> {
    make(false)
}

fn make(is_checked: bool) -> anyhow::Result<Option<PathBuf>> {
    let programs = build()?;
    // Where cargo builds is where people look; the target folder can be set in four places.
    let out = programs.parent().unwrap_or(&programs).join("dist");
    let work = out.join("work");
    remove(&work)?;
    let generated = generate(&programs, &work.join("generated"))?;
    let layout = Layout::of(&repository_root(), &programs, &generated)?;
    let stage = Stage::make(&work.join("root"), &layout)?;
    stage.strip_programs(&layout)?;
    let tarball = tarball::make(&stage, &layout, &out)?;
    println!("{}", tarball.display());
    let deb = if deb::is_possible() {
        let deb = deb::make(&stage, &layout, &out)?;
        println!("{}", deb.display());
        Some(deb)
    } else {
        println!("SKIPPED: the Debian package: dpkg-deb is missing; apt-get install dpkg-dev");
        None
    };
    if is_checked {
        check::tarball(&tarball, &work.join("check-tarball"))?;
        if let Some(deb) = &deb {
            check::deb(deb, &work.join("check-deb"))?;
        }
    }
    remove(&work)?;
    Ok(deb)
}

/// Builds the programs; they end up in one folder, which is the answer.
fn build() -> anyhow::Result<PathBuf> {
    let mut selection = Vec::new();
    for (package, program) in PROGRAMS {
        selection.extend(["--package", *package, "--bin", *program]);
    }
    // By itself, so that it has no more in it than it needs.
    let (package, _) = LIBRARY;
    run_to_success(&mut cargo(["build", "--release", "--lib", "--package", package]))?;
    let last = build_release(&selection)?;
    last.parent().map(Path::to_path_buf).context("cargo built a program in no folder")
}

/// Lets the programs write their manual pages and completions.
fn generate(programs: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let gpreempt = programs.join("gpreempt");
    for program in ["gpreempt", "gpreemptd", "gpreempt-emu", "gpreempt-load"] {
        let mut pages = Command::new(programs.join(program));
        run_to_success(pages.arg("man").arg(&man).stdout(std::process::Stdio::null()))?;
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(&gpreempt).args(["completions", shell]).output();
        let output = output.context("cannot run gpreempt completions")?;
        anyhow::ensure!(output.status.success(), "gpreempt completions {shell} failed");
        fs::write(completions.join(shell), output.stdout)?;
    }
    Ok(folder.to_owned())
}

/// Removes a folder if it is there.
fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}
