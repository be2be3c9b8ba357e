//! C headers: `cargo xtask header` writes `gpreempt.h` from the source of the library; the tests
//! compare the tables of the crate `kfd` with the header of a newer kernel than the installed one.
//!
//! Debian has that header in a package of kernel headers. One file of the package is fetched;
//! nothing is installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::process;
use crate::process::{cargo, repository_root, run_to_success};

/// Writes the header. That it is up to date is a test of the library, which this runs.
pub(crate) fn write_agent_header() -> anyhow::Result<bool> {
    let mut test = cargo(["test", "--quiet", "--package", "gpreempt-agent", "--test", "header"]);
    run_to_success(test.env("UPDATE_EXPECT", "1"))?;
    Ok(true)
}

/// What the test looks for.
pub(crate) const KFD_VARIABLE: &str = "GPREEMPT_KFD_HEADERS";

/// The packages in question are called like this, with a version in between.
const PREFIX: &str = "linux-headers-6.12.";
const SUFFIX: &str = "-common";

pub(crate) fn find_kfd() -> Option<PathBuf> {
    Some(folder().join("kfd_ioctl.h")).filter(|header| header.is_file())
}

/// Fetches it if it is not there. Says what is left out if that does not work.
pub(crate) fn fetch_kfd() {
    if find_kfd().is_some() {
        return;
    }
    if let Err(error) = try_to_fetch() {
        eprintln!("SKIPPED: comparing KFD's header of Linux 6.12: {error:#}");
    }
}

fn folder() -> PathBuf {
    repository_root().join("target/kfd-header")
}

fn try_to_fetch() -> anyhow::Result<()> {
    for program in ["apt-cache", "apt-get", "dpkg-deb", "tar"] {
        if !process::is_installed(program) {
            bail!("{program} is missing; set {KFD_VARIABLE} to a kfd_ioctl.h instead");
        }
    }
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let package = match newest(&package_names()?) {
        Some(package) => package,
        None => {
            // The lists of packages may be missing; only then is fetching them worth the time.
            run_to_success(Command::new("apt-get").arg("update"))?;
            newest(&package_names()?).context("there is no package of such headers")?
        }
    };
    let mut download = Command::new("apt-get");
    download.args(["download", &package]).current_dir(&folder).stdin(Stdio::null());
    let downloaded = download.status().context("cannot run apt-get")?;
    if !downloaded.success() {
        bail!("apt-get download {package} ended with {downloaded}");
    }
    let archive = archive_in(&folder)?;
    let result = take_out(&archive, &package);
    let removed = fs::remove_file(&archive);
    let header = result?;
    removed.with_context(|| archive.display().to_string())?;
    fs::write(folder.join("kfd_ioctl.h"), header).context("cannot write the header")
}

fn package_names() -> anyhow::Result<String> {
    let mut search = Command::new("apt-cache");
    let output = search.args(["pkgnames", PREFIX]).output().context("cannot run apt-cache")?;
    String::from_utf8(output.stdout).context("apt-cache wrote something strange")
}

/// The one with the highest number. Real-time kernels have others, which end differently.
fn newest(names: &str) -> Option<String> {
    let version = |name: &str| -> Option<u32> {
        let middle = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let digits = middle.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let known = names.lines().filter_map(|name| Some((version(name.trim())?, name.trim())));
    known.max().map(|(_, name)| name.to_owned())
}

fn archive_in(folder: &Path) -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut archives = entries.filter_map(|entry| Some(entry.ok()?.path()));
    archives.find(|path| path.extension() == Some(OsStr::new("deb"))).context("no package came")
}

fn take_out(archive: &Path, package: &str) -> anyhow::Result<Vec<u8>> {
    let inside = format!("./usr/src/{package}/include/uapi/linux/kfd_ioctl.h");
    let mut open = Command::new("dpkg-deb");
    open.arg("--fsys-tarfile").arg(archive).stdout(Stdio::piped());
    let mut opened = open.spawn().context("cannot run dpkg-deb")?;
    let contents = opened.stdout.take().context("dpkg-deb has no output")?;
    let mut extract = Command::new("tar");
    extract.args(["--extract", "--to-stdout", "--file=-", &inside]).stdin(contents);
    let output = extract.output().context("cannot run tar")?;
    opened.wait().context("cannot wait for dpkg-deb")?;
    if !output.status.success() || output.stdout.is_empty() {
        bail!("{package} has no {inside}");
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_package_is_chosen_by_its_number() {
        let names = "linux-headers-6.12.95+deb12-common\nlinux-headers-6.12.115+deb12-common\n\
                     linux-headers-6.12.120+deb12-amd64\nlinux-headers-6.12.121+deb12-common-rt\n\
                     linux-headers-6.12.113+deb12-common\nlinux-headers-6.1.0-50-common\n";
        assert_eq!(newest(names).as_deref(), Some("linux-headers-6.12.115+deb12-common"));
        assert_eq!(newest("linux-headers-6.12-amd64\n"), None);
        assert_eq!(newest(""), None);
    }
}
