//! `cargo xtask dist`: a tarball and a Debian package for other machines, and the check that their
//! contents work.

mod archives;
mod layout;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use layout::{CONFIG, LIBRARY, Layout, PackageRoot};

use crate::process::{
    PROGRAMS, build_programs, capture, cargo, files_below, remove_folder, repository_root,
    run_to_success,
};

/// The version of everything in the workspace, this package included.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes both and prints where they are; `is_checked` also tests them. Returns the Debian package,
/// where one can be made.
pub(crate) fn make(is_checked: bool) -> anyhow::Result<Option<PathBuf>> {
    let programs = build()?;
    // Where cargo builds is where people look; the target folder can be set in four places.
    let out = programs.parent().unwrap_or(&programs).join("dist");
    let work = out.join("work");
    remove_folder(&work)?;
    let generated = generate(&programs, &work.join("generated"))?;
    let layout = Layout::of(&repository_root(), &programs, &generated)?;
    let package_root = PackageRoot::make(&work.join("root"), &layout)?;
    package_root.strip_programs(&layout)?;
    let tarball = archives::make_tarball(&package_root, &layout, &out)?;
    println!("{}", tarball.display());
    let deb = if archives::can_make_deb() {
        let deb = archives::make_deb(&package_root, &layout, &out)?;
        println!("{}", deb.display());
        Some(deb)
    } else {
        println!("SKIPPED: the Debian package: dpkg-deb is missing; apt-get install dpkg-dev");
        None
    };
    if is_checked {
        check_tarball(&tarball, &work.join("check-tarball"))?;
        if let Some(deb) = &deb {
            check_deb(deb, &work.join("check-deb"))?;
        }
    }
    remove_folder(&work)?;
    Ok(deb)
}

/// Builds the programs; they end up in one folder, which is the answer.
fn build() -> anyhow::Result<PathBuf> {
    // By itself, so that it has no more in it than it needs.
    let (package, _) = LIBRARY;
    run_to_success(&mut cargo(["build", "--release", "--lib", "--package", package]))?;
    build_programs()
}

/// Has the programs write their manual pages and completions.
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
        let text = capture(Command::new(&gpreempt).args(["completions", shell]))?;
        fs::write(completions.join(shell), text)?;
    }
    Ok(folder.to_owned())
}

fn check_deb(deb: &Path, root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(root)?;
    run_to_success(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(root))?;
    programs_work(root)
}

fn check_tarball(tarball: &Path, folder: &Path) -> anyhow::Result<()> {
    let unpacked = install_and_uninstall(tarball, folder)?;
    programs_work(&unpacked)
}

/// Unpacks the tarball, installs it into a root of its own, and takes it away again. The answer is
/// the folder it was unpacked to.
fn install_and_uninstall(tarball: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let root = folder.join("root");
    fs::create_dir_all(&root)?;
    let mut tar = Command::new("tar");
    run_to_success(tar.arg("--extract").arg("--file").arg(tarball).arg("--directory").arg(folder))?;
    let unpacked = folder.join(archives::tarball_name());
    let installer = unpacked.join("install.sh");
    let install = |arguments: &[&str]| {
        run_to_success(Command::new(&installer).args(arguments).env("DESTDIR", &root))
    };
    install(&[])?;
    ensure!(root.join("usr/bin/gpreempt").is_file(), "install.sh did not install");
    // Installed again over a configuration that was changed, and taken away: it stays.
    fs::write(root.join(CONFIG), "# changed\n")?;
    install(&[])?;
    install(&["--uninstall"])?;
    let left = files_below(&root)?;
    ensure!(left == [root.join(CONFIG)], "install.sh --uninstall left {left:?}");
    ensure!(fs::read_to_string(root.join(CONFIG))? == "# changed\n", "the configuration is lost");
    Ok(unpacked)
}

const PAGES: [&str; 4] =
    ["man1/gpreempt.1", "man8/gpreemptd.8", "man1/gpreempt-emu.1", "man1/gpreempt-load.1"];

fn programs_work(root: &Path) -> anyhow::Result<()> {
    let bin = root.join("usr/bin");
    for (_, program) in PROGRAMS {
        let path = bin.join(program);
        ensure!(path.is_file(), "{program} is not there");
        // These are run by the others only and say nothing about themselves.
        if !["gpreempt-keeper", "gpreempt-evictor"].contains(program) {
            let said = capture(Command::new(&path).arg("--version"))?;
            let said = String::from_utf8_lossy(&said);
            ensure!(said.contains(VERSION), "{program} --version says `{said}`");
        }
    }
    for file in
        ["usr/lib/libgpreempt.so", "usr/include/gpreempt.h", "usr/lib/pkgconfig/gpreempt.pc"]
    {
        ensure!(root.join(file).is_file(), "{file} is not there");
    }
    for page in PAGES {
        let path = root.join("usr/share/man").join(page);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(text.contains(".SH SYNOPSIS"), "{page} is no manual page");
    }
    let config = root.join(CONFIG);
    let said =
        capture(Command::new(bin.join("gpreemptd")).arg("--check").arg("--config").arg(&config))?;
    ensure!(!said.is_empty(), "gpreemptd --check says nothing");
    println!("ok: the programs under {} work", root.display());
    Ok(())
}
