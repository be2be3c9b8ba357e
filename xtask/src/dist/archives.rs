//! The archives that are made of a filled root: a Debian package, and a tarball with a list of its
//! files and a script that installs them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::layout::{CONFIG, Layout, Needs, PackageRoot, make_folder, put};
use super::target::{GLIBC, Target};
use super::{EPOCH_VARIABLE, SUMMARY, VERSION, epoch, glibc};
use crate::process::{is_installed, remove_folder, run_to_success};

/// What dpkg runs before and after.
pub(super) const MAINTAINER_SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

pub(super) fn can_make_deb() -> bool {
    is_installed("dpkg-deb")
}

pub(super) fn make_deb(
    package_root: &PackageRoot,
    layout: &Layout,
    target: Target,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let control_folder = package_root.root.join("DEBIAN");
    for script in MAINTAINER_SCRIPTS {
        put(&layout.maintainer_scripts.join(script), &control_folder.join(script), 0o755)?;
    }
    let mut bytes = 0;
    for entry in &layout.entries {
        let path = package_root.root.join(&entry.target);
        bytes += fs::metadata(&path).with_context(|| format!("no {}", path.display()))?.len();
    }
    let needs = package_root.needs(layout)?;
    fs::write(control_folder.join("control"), control(bytes.div_ceil(1024), &needs, target))?;
    // What an administrator changed survives an upgrade.
    fs::write(control_folder.join("conffiles"), format!("/{CONFIG}\n"))?;
    let deb = out.join(format!("gpreempt_{VERSION}_{}.deb", target.debian));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "-z2", "--build"]).arg(&package_root.root).arg(&deb);
    // The same files make the same package.
    build.env(EPOCH_VARIABLE, epoch().to_string()).stdout(std::process::Stdio::null());
    run_to_success(&mut build)?;
    fs::remove_dir_all(control_folder)?;
    Ok(deb)
}

/// Writes a copy of a Debian package that says it is of an older version.
pub(crate) fn make_older(deb: &Path, older: &Path) -> anyhow::Result<()> {
    let root = older.with_extension("root");
    remove_folder(&root)?;
    run_to_success(Command::new("dpkg-deb").arg("--raw-extract").arg(deb).arg(&root))?;
    let control = root.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let version = format!("Version: {VERSION}\n");
    ensure!(text.contains(&version), "the package has another version: {text}");
    fs::write(&control, text.replace(&version, "Version: 0.0.1\n"))?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]).arg(&root).arg(older);
    run_to_success(build.stdout(std::process::Stdio::null()))?;
    remove_folder(&root)
}

fn control(installed_kib: u64, needs: &Needs, target: Target) -> String {
    let architecture = target.debian;
    let libc = needs
        .glibc
        .map_or_else(|| "libc6".to_owned(), |(major, minor)| format!("libc6 (>= {major}.{minor})"));
    let libgcc = if needs.libgcc { ", libgcc-s1" } else { "" };
    format!(
        "Package: gpreempt\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: The gpreempt authors <gpreempt@localhost>\n\
         Installed-Size: {installed_kib}\n\
         Depends: {libc}{libgcc}, passwd\n\
         Section: admin\n\
         Priority: optional\n\
         Description: {SUMMARY}\n \
         High-priority work runs immediately; everything else is suspended in the\n \
         middle of its kernels and resumes where it stopped. Programs are not changed.\n \
         With an emulated GPU for machines that have none.\n"
    )
}

/// The name of the tarball without its ending, and of the one folder in it.
pub(super) fn tarball_name(target: Target) -> String {
    format!("gpreempt-{VERSION}-{target}")
}

pub(super) fn make_tarball(
    package_root: &PackageRoot,
    layout: &Layout,
    target: Target,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let above = package_root.root.with_file_name("tarball");
    let name = tarball_name(target);
    let folder = above.join(&name);
    make_folder(&folder)?;
    let mut manifest = String::new();
    for entry in &layout.entries {
        put(&package_root.root.join(&entry.target), &folder.join(&entry.target), entry.mode)?;
        writeln!(manifest, "{:o} {}", entry.mode, entry.target)?;
    }
    fs::write(folder.join("manifest"), manifest)?;
    let glibc = package_root.needs(layout)?.glibc.unwrap_or_else(|| glibc::version(GLIBC));
    let about = format!("{VERSION} {target} {}.{}\n", glibc.0, glibc.1);
    fs::write(folder.join("about"), about)?;
    put(&layout.installer, &folder.join("install.sh"), 0o755)?;
    let tarball = out.join(format!("{name}.tar.gz"));
    run_to_success(reproducible_tar(&tarball).arg("--gzip").arg("-C").arg(&above).arg(name))?;
    Ok(tarball)
}

/// tar as a command that writes `archive` with nothing of this machine or this hour: the same files
/// make the same archive.
pub(super) fn reproducible_tar(archive: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0"]);
    tar.args(["--numeric-owner", &format!("--mtime=@{}", epoch()), "--file"]).arg(archive);
    tar
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;
    use crate::dist::layout::LIBRARY;
    use crate::dist::target::X86_64;
    use crate::process::{PROGRAMS, repository_root};

    /// A folder with stand-ins for what takes long to build.
    fn stand_ins() -> WorkFolder {
        let folder = WorkFolder::new("dist").unwrap();
        for part in ["bin", "generated/man", "generated/completions"] {
            fs::create_dir_all(folder.path(part)).unwrap();
        }
        for (_, program) in PROGRAMS {
            fs::write(folder.path("bin").join(program), "#!/bin/sh\n# GLIBC_2.30\n").unwrap();
        }
        fs::write(folder.path("bin").join(LIBRARY.1), "GLIBC_2.30\n").unwrap();
        for shell in ["bash", "zsh", "fish"] {
            fs::write(folder.path("generated/completions").join(shell), "x\n").unwrap();
        }
        for page in ["gpreempt.1", "gpreemptd.8"] {
            fs::write(folder.path("generated/man").join(page), ".TH x\n").unwrap();
        }
        folder
    }

    fn dpkg_deb(option: &str, deb: &Path) -> String {
        let output = Command::new("dpkg-deb").arg(option).arg(deb).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_package_holds_what_it_should_and_belongs_to_root() {
        if !can_make_deb() {
            println!("SKIPPED: dpkg-deb is missing");
            return;
        }
        let folder = stand_ins();
        let layout =
            Layout::of(&repository_root(), &folder.path("bin"), &folder.path("generated")).unwrap();
        let package_root = PackageRoot::make(&folder.path("root"), &layout).unwrap();
        let deb = make_deb(&package_root, &layout, X86_64, folder.root()).unwrap();

        let listing = dpkg_deb("--contents", &deb);
        for (mode, path) in [
            ("-rwxr-xr-x", "./usr/bin/gpreempt"),
            ("-rwxr-xr-x", "./usr/bin/gpreemptd"),
            ("-rwxr-xr-x", "./usr/bin/gpreempt-keeper"),
            ("-rwxr-xr-x", "./usr/bin/gpreempt-evictor"),
            ("-rw-r--r--", "./usr/lib/systemd/system/gpreemptd.service"),
            ("-rw-r--r--", "./etc/gpreempt/config.toml"),
            ("-rw-r--r--", "./usr/share/man/man1/gpreempt.1"),
            ("-rw-r--r--", "./usr/share/man/man8/gpreemptd.8"),
            ("-rw-r--r--", "./usr/share/bash-completion/completions/gpreempt"),
            ("-rwxr-xr-x", "./usr/share/gpreempt/slurm/prolog.sh"),
            ("-rw-r--r--", "./usr/share/doc/gpreempt/copyright"),
        ] {
            let line = listing.lines().find(|line| line.ends_with(&format!(" {path}")));
            let line = line.unwrap_or_else(|| panic!("{path} in\n{listing}"));
            assert!(line.starts_with(mode) && line.contains(" root/root "), "{line}");
        }
        let control = dpkg_deb("--field", &deb);
        assert!(control.contains(&format!("Version: {VERSION}\n")), "{control}");
        assert!(control.contains("Depends: libc6 (>= 2.30), passwd\n"), "{control}");
        let info = dpkg_deb("--info", &deb);
        for part in ["conffiles", "postinst", "prerm", "postrm"] {
            assert!(info.contains(part), "{part} in\n{info}");
        }
    }
}
