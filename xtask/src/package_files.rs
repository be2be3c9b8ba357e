//! Debian's packages as files: their names, downloads and contents. Nothing is installed;
//! [`crate::packages`] does that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::process::{self, capture};

/// The keys for private lists.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The suites of private lists.
const SUITES: &[(&str, &str)] = &[
    ("http://deb.debian.org/debian", "bookworm"),
    ("http://deb.debian.org/debian-security", "bookworm-security"),
    ("http://deb.debian.org/debian", "bookworm-backports"),
];

/// Lists of packages: this machine's, or private ones.
#[derive(Debug)]
pub(crate) struct PackageLists {
    /// The configuration file of apt; None for this machine's.
    settings: Option<PathBuf>,
}

impl PackageLists {
    pub(crate) fn of_this_machine() -> anyhow::Result<Self> {
        for program in ["apt-cache", "apt-get", "dpkg-deb", "tar"] {
            ensure!(
                process::is_installed(program),
                "{program} is missing: kernels and their headers come from Debian's packages"
            );
        }
        Ok(Self { settings: None })
    }

    /// Creates lists of the suites above for machines that Debian calls `architecture`, with
    /// everything that belongs to them in `folder`.
    pub(crate) fn private(folder: &Path, architecture: &str) -> anyhow::Result<Self> {
        if !Path::new(KEYRING).is_file() {
            bail!("{KEYRING} is missing; to get it: apt-get install debian-archive-keyring");
        }
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).with_context(|| folder.display().to_string())?;
        }
        let line = |(address, suite): &(&str, &str)| {
            format!("deb [arch={architecture} signed-by={KEYRING}] {address} {suite} main\n")
        };
        fs::write(folder.join("sources.list"), SUITES.iter().map(line).collect::<String>())?;
        let place = folder.display();
        let settings = format!(
            "Dir::Etc::SourceList \"{place}/sources.list\";\nDir::Etc::SourceParts \"-\";\n\
             Dir::State::Lists \"{place}/lists\";\nDir::Cache \"{place}/cache\";\n\
             APT::Architecture \"{architecture}\";\n\
             APT::Architectures \"{architecture}\";\nAPT::Sandbox::User \"\";\n"
        );
        let file = folder.join("apt.conf");
        fs::write(&file, settings)?;
        let lists = Self { settings: Some(file) };
        lists.update()?;
        Ok(lists)
    }

    /// The names of all packages that begin like this, one in each line.
    pub(crate) fn names(&self, start: &str) -> anyhow::Result<String> {
        let names = capture(self.apt("apt-cache").args(["pkgnames", start]))?;
        String::from_utf8(names).context("apt-cache wrote something that is no text")
    }

    /// The file of a package in `folder`, downloaded if necessary.
    pub(crate) fn download(&self, package: &str, folder: &Path) -> anyhow::Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        if let Some(file) = find(package, folder)? {
            return Ok(file);
        }
        let download = || {
            capture(self.apt("apt-get").args(["download", "--quiet", package]).current_dir(folder))
        };
        // The lists may be missing or out of date; only then is fetching them worth the time.
        if download().is_err() {
            self.update()?;
            download()?;
        }
        find(package, folder)?.with_context(|| format!("apt-get download {package} left no file"))
    }

    pub(crate) fn update(&self) -> anyhow::Result<()> {
        capture(self.apt("apt-get").args(["update", "--quiet"])).map(drop)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        if let Some(settings) = &self.settings {
            command.env("APT_CONFIG", settings);
        }
        command
    }
}

/// The file of a package that was downloaded before.
pub(crate) fn find(package: &str, folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let start = format!("{package}_");
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&start) && name.ends_with(".deb") {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// A command that writes a file inside a package to its output. `filter` is the rest of the pipe,
/// such as `cat`; its arguments are `$2` and so on.
pub(crate) fn extract(archive: &Path, file: &str, filter: &str) -> Command {
    let script =
        format!("dpkg-deb --fsys-tarfile \"$0\" | tar -xf - --to-stdout \"./$1\" | {filter}");
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", &script]).arg(archive).arg(file);
    command
}

/// Unpacks the files of a package into a folder.
pub(crate) fn unpack(archive: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut unpack = Command::new("dpkg-deb");
    process::run_to_success(unpack.arg("--extract").arg(archive).arg(folder))
}

/// A file inside a package, decompressed.
pub(crate) fn file_in(archive: &Path, file: &str) -> anyhow::Result<Vec<u8>> {
    let contents =
        capture(&mut extract(archive, file, if file.ends_with(".xz") { "xz -dc" } else { "cat" }))?;
    ensure!(!contents.is_empty(), "{} has no {file}", archive.display());
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    #[test]
    fn a_downloaded_package_is_found_by_its_whole_name() {
        let folder = WorkFolder::new("package-files").unwrap();
        fs::write(folder.path("linux-source-6.12_6.12.115-2_all.deb"), "").unwrap();
        fs::write(folder.path("linux-source_1_all.part"), "").unwrap();
        let find = |name| find(name, folder.root()).unwrap();
        assert_eq!(
            find("linux-source-6.12"),
            Some(folder.path("linux-source-6.12_6.12.115-2_all.deb"))
        );
        assert_eq!(find("linux-source"), None);
        assert_eq!(find("linux"), None);
    }

    #[test]
    fn a_file_is_read_out_of_a_package() {
        if !process::is_installed("dpkg-deb") {
            println!("SKIPPED: dpkg-deb is missing");
            return;
        }
        let folder = WorkFolder::new("package-files").unwrap();
        fs::create_dir_all(folder.path("root/DEBIAN")).unwrap();
        let control = "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n";
        fs::write(folder.path("root/DEBIAN/control"), control).unwrap();
        fs::write(folder.path("root/note"), "contents").unwrap();
        let (root, archive) = (folder.path("root"), folder.path("x_1_all.deb"));
        capture(Command::new("dpkg-deb").arg("--build").arg(root).arg(&archive)).unwrap();
        assert_eq!(file_in(&archive, "note").unwrap(), b"contents");
        let error = file_in(&archive, "other").unwrap_err().to_string();
        assert!(error.starts_with("bash ended with"), "{error}");
    }
}
