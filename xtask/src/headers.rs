//! C headers: `cargo xtask header` writes `gpreempt.h` from the source of the library; the tests
//! compare the tables of the crate `kfd` with the header of a newer kernel than the installed one.
//!
//! Debian has that header in a package of kernel headers. One file of the package is fetched;
//! nothing is installed.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::package_files::{self, PackageLists};
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
const HEADER: &str = "linux/kfd_ioctl.h";

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
    let lists = PackageLists::of_this_machine()?;
    let package = match newest(&lists.names(PREFIX)?) {
        Some(package) => package,
        None => {
            // The lists may be missing; only then is fetching them worth the time.
            lists.update()?;
            newest(&lists.names(PREFIX)?).context("there is no package of such headers")?
        }
    };
    let archive = lists.download(&package, &folder())?;
    let header =
        package_files::file_in(&archive, &format!("usr/src/{package}/include/uapi/{HEADER}"))?;
    fs::remove_file(&archive).with_context(|| archive.display().to_string())?;
    fs::write(folder().join("kfd_ioctl.h"), header).context("cannot write the header")
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
