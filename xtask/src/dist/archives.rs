//! The archives that are made of a filled root: a Debian package, and a tarball with a list of its
//! files and a script that installs them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::VERSION;
use super::layout::{CONFIG, Layout, PackageRoot, make_folder, put};
use crate::process::{is_installed, run_to_success};

/// What dpkg runs before and after.
pub(super) const MAINTAINER_SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

pub(super) fn can_make_deb() -> bool {
    is_installed("dpkg-deb")
}

pub(super) fn make_deb(
    package_root: &PackageRoot,
    layout: &Layout,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let control_folder = package_root.root.join("DEBIAN");
    for script in MAINTAINER_SCRIPTS {
        put(&layout.maintainer_scripts.join(script), &control_folder.join(script), 0o755)?;
    }
    let (mut bytes, mut libc) = (0, None);
    for entry in &layout.entries {
        let path = package_root.root.join(&entry.target);
        let content = fs::read(&path).with_context(|| format!("no {}", path.display()))?;
        bytes += content.len();
        if entry.target.starts_with("usr/bin/") {
            libc = libc.max(needed_glibc(&content).as_deref().map(version_key));
        }
    }
    let libc = libc.map(|(major, minor)| format!("{major}.{minor}"));
    fs::write(control_folder.join("control"), control(bytes.div_ceil(1024), libc.as_deref()))?;
    // What an administrator changed survives an upgrade.
    fs::write(control_folder.join("conffiles"), format!("/{CONFIG}\n"))?;
    let deb = out.join(format!("gpreempt_{VERSION}_amd64.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(&package_root.root).arg(&deb);
    // The same files make the same package.
    run_to_success(build.env("SOURCE_DATE_EPOCH", "0").stdout(std::process::Stdio::null()))?;
    Ok(deb)
}

/// 2.9 comes before 2.34.
fn version_key(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn control(installed_kib: usize, libc: Option<&str>) -> String {
    let libc = libc.map_or_else(|| "libc6".to_owned(), |version| format!("libc6 (>= {version})"));
    format!(
        "Package: gpreempt\n\
         Version: {VERSION}\n\
         Architecture: amd64\n\
         Maintainer: The gpreempt authors <gpreempt@localhost>\n\
         Installed-Size: {installed_kib}\n\
         Depends: {libc}, libgcc-s1, passwd\n\
         Section: admin\n\
         Priority: optional\n\
         Description: priorities for GPU work that the hardware obeys\n \
         The important process runs now; the others run in the gaps and lose nothing.\n \
         No change to programs, no driver patch, no restart. With an emulated GPU for\n \
         machines that have none.\n"
    )
}

/// The newest `GLIBC_2.N` that a program asks for, as `2.N`.
pub(super) fn needed_glibc(program: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"GLIBC_2.";
    let starts = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let minors = starts.filter_map(|(at, _)| {
        let rest = &program[at + MARK.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse::<u32>().ok()
    });
    minors.max().map(|minor| format!("2.{minor}"))
}

/// The name of the tarball without its ending, and of the one folder in it.
pub(super) fn tarball_name() -> String {
    format!("gpreempt-{VERSION}-x86_64")
}

pub(super) fn make_tarball(
    package_root: &PackageRoot,
    layout: &Layout,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let above = package_root.root.with_file_name("tarball");
    let folder = above.join(tarball_name());
    make_folder(&folder)?;
    let mut manifest = String::new();
    for entry in &layout.entries {
        put(&package_root.root.join(&entry.target), &folder.join(&entry.target), entry.mode)?;
        writeln!(manifest, "{:o} {}", entry.mode, entry.target)?;
    }
    fs::write(folder.join("manifest"), manifest)?;
    put(&layout.installer, &folder.join("install.sh"), 0o755)?;
    let tarball = out.join(format!("{}.tar.gz", tarball_name()));
    let mut tar = Command::new("tar");
    // Nothing of this machine or this hour: the same files make the same tarball.
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mtime=@0", "--file"])
        .arg(&tarball)
        .arg("--directory")
        .arg(&above)
        .arg(tarball_name());
    run_to_success(&mut tar)?;
    Ok(tarball)
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;
    use crate::dist::layout::LIBRARY;
    use crate::process::{PROGRAMS, repository_root};

    /// A folder with stand-ins for what takes long to build.
    fn stand_ins() -> WorkFolder {
        let folder = WorkFolder::new("dist").unwrap();
        for part in ["bin", "generated/man", "generated/completions"] {
            fs::create_dir_all(folder.path(part)).unwrap();
        }
        for (_, program) in PROGRAMS {
            fs::write(folder.path("bin").join(program), "#!/bin/sh\n# GLIBC_2.34\n").unwrap();
        }
        fs::write(folder.path("bin").join(LIBRARY.1), "GLIBC_2.34\n").unwrap();
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
        let deb = make_deb(&package_root, &layout, folder.root()).unwrap();

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
        assert!(control.contains("Depends: libc6 (>= 2.34), libgcc-s1, passwd\n"), "{control}");
        let info = dpkg_deb("--info", &deb);
        for part in ["conffiles", "postinst", "prerm", "postrm"] {
            assert!(info.contains(part), "{part} in\n{info}");
        }
        let tarball = make_tarball(&package_root, &layout, folder.root()).unwrap();
        crate::dist::install_and_uninstall(&tarball, &folder.path("check")).unwrap();
    }

    #[test]
    fn versions_are_ordered_as_numbers() {
        assert!(version_key("2.9") < version_key("2.34"));
    }

    #[test]
    fn the_newest_version_counts() {
        assert_eq!(
            needed_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"),
            Some("2.34".to_owned())
        );
        assert_eq!(needed_glibc(b"GLIBC_2."), None);
        assert_eq!(needed_glibc(b"static"), None);
    }

    #[test]
    fn this_program_needs_one() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needed_glibc(&own).is_some());
    }
}
