//! Whether what was made works: unpacked into a root of its own and run from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::layout::{CONFIG, PROGRAMS};
use super::{VERSION, tarball};
use crate::process::run_to_success;

/// Tries the Debian package.
pub(super) fn deb(deb: &Path, root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(root)?;
    run_to_success(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(root))?;
    programs_work(root)
}

/// Tries the tarball.
pub(super) fn tarball(tarball: &Path, folder: &Path) -> anyhow::Result<()> {
    let unpacked = install_and_uninstall(tarball, folder)?;
    programs_work(&unpacked)
}

/// Unpacks the tarball, installs it into a root of its own, and takes it away again. The answer is
/// the folder it was unpacked to.
pub(super) fn install_and_uninstall(tarball: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let root = folder.join("root");
    fs::create_dir_all(&root)?;
    let mut tar = Command::new("tar");
    run_to_success(tar.arg("--extract").arg("--file").arg(tarball).arg("--directory").arg(folder))?;
    let unpacked = folder.join(tarball::name());
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
    ensure!(left == [PathBuf::from(CONFIG)], "install.sh --uninstall left {left:?}");
    ensure!(fs::read_to_string(root.join(CONFIG))? == "# changed\n", "the configuration is lost");
    Ok(unpacked)
}

/// Every file below a folder, seen from it.
fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A manual page of every program that people start.
const PAGES: [&str; 4] =
    ["man1/gpreempt.1", "man8/gpreemptd.8", "man1/gpreempt-emu.1", "man1/gpreempt-load.1"];

/// Runs the programs under `root`.
fn programs_work(root: &Path) -> anyhow::Result<()> {
    let bin = root.join("usr/bin");
    for (_, program) in PROGRAMS {
        let path = bin.join(program);
        ensure!(path.is_file(), "{program} is not there");
        // The keeper is run by the others only and says nothing about itself.
        if *program != "gpreempt-keeper" {
            let said = output(Command::new(&path).arg("--version"))?;
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
        output(Command::new(bin.join("gpreemptd")).arg("--check").arg("--config").arg(&config))?;
    ensure!(!said.is_empty(), "gpreemptd --check says nothing");
    println!("ok: the programs under {} work", root.display());
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
