//! Debian's packages of kernels: which there are, and one of them on disk. Nothing is installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::kernel::{Kernel, Kind};
use crate::process;

/// Whom the lists of our own are trusted from.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where the kernels are that we want.
const SUITES: &[(&str, &str)] = &[
    ("http://deb.debian.org/debian", "bookworm"),
    ("http://deb.debian.org/debian-security", "bookworm-security"),
    ("http://deb.debian.org/debian", "bookworm-backports"),
];

/// A source of packages: this machine's, or lists of our own beside it.
#[derive(Debug)]
pub(super) struct Archive {
    /// A file that tells apt where everything is; none for this machine's own.
    settings: Option<PathBuf>,
    names: String,
}

impl Archive {
    /// The first source that has every kind of kernel, or else the one that was looked at last.
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        for program in ["apt-cache", "apt-get", "dpkg-deb"] {
            if !process::is_installed(program) {
                bail!("{program} is missing: kernels come from Debian's packages");
            }
        }
        let own = Self::with(None)?;
        if own.has_all() {
            return Ok(own);
        }
        match Self::private(root) {
            Ok(private) => Ok(private),
            // Some kernels are better than none.
            Err(error) => {
                eprintln!("no lists of packages beside this machine's: {error:#}");
                Ok(own)
            }
        }
    }

    /// The newest kernel of a kind.
    pub(super) fn newest(&self, kind: Kind) -> Option<Kernel> {
        Kernel::newest(&self.names, kind)
    }

    /// Downloads the package of a kernel into an empty folder.
    pub(super) fn download(&self, kernel: &Kernel, folder: &Path) -> anyhow::Result<PathBuf> {
        let package = kernel.package();
        eprintln!("$ apt-get download {package}");
        let mut command = self.apt("apt-get");
        command.args(["download", "--quiet", &package]).current_dir(folder);
        let output = command.output().context("cannot run apt-get")?;
        if !output.status.success() {
            bail!("apt-get: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut archives = entries.filter_map(|entry| Some(entry.ok()?.path()));
        archives.find(|path| path.extension() == Some(OsStr::new("deb"))).context("no package came")
    }

    fn with(settings: Option<PathBuf>) -> anyhow::Result<Self> {
        let mut archive = Self { settings, names: String::new() };
        let mut names = archive.apt("apt-cache");
        let output = names.args(["pkgnames", "linux-image-"]).output();
        let output = output.context("cannot run apt-cache")?;
        archive.names = String::from_utf8(output.stdout).context("apt-cache wrote nonsense")?;
        Ok(archive)
    }

    /// Lists in a folder of ours, of suites that have what we want.
    fn private(root: &Path) -> anyhow::Result<Self> {
        if !Path::new(KEYRING).is_file() {
            bail!("{KEYRING} is missing; to get it: apt-get install debian-archive-keyring");
        }
        let folder = root.join("apt");
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).with_context(|| folder.display().to_string())?;
        }
        let line = |(address, suite): &(&str, &str)| {
            format!("deb [arch=amd64 signed-by={KEYRING}] {address} {suite} main\n")
        };
        fs::write(folder.join("sources.list"), SUITES.iter().map(line).collect::<String>())?;
        let place = folder.display();
        let settings = format!(
            "Dir::Etc::SourceList \"{place}/sources.list\";\nDir::Etc::SourceParts \"-\";\n\
             Dir::State::Lists \"{place}/lists\";\nDir::Cache \"{place}/cache\";\n\
             APT::Architecture \"amd64\";\nAPT::Sandbox::User \"\";\n"
        );
        let file = folder.join("apt.conf");
        fs::write(&file, settings)?;
        let archive = Self { settings: Some(file.clone()), names: String::new() };
        let mut update = archive.apt("apt-get");
        eprintln!("$ apt-get update (lists of our own)");
        let output = update.args(["update", "--quiet"]).output().context("cannot run apt-get")?;
        if !output.status.success() {
            bail!("apt-get update: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::with(Some(file))
    }

    fn has_all(&self) -> bool {
        Kind::ALL.into_iter().all(|kind| self.newest(kind).is_some())
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
