//! The kernels to check: one of each kind, the newest in Debian's packages, which are unpacked and
//! not installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::module;
use crate::process;
use crate::process::run_to_success;

/// Which caller the kernel accepts in a debug session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Owner,
    Tracer,
    NoSessions,
}

const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-amd64";
/// The first 6.12 that accepts the owner of a session.
const FIRST_FOR_OWNERS: u32 = 103;

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Owner, Self::Tracer, Self::NoSessions];

    /// The value for `gpreempt-kfd-check --expect`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Tracer => "tracer",
            Self::NoSessions => "nobody",
        }
    }

    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Owner => "Linux 6.12.103 or newer",
            Self::Tracer => "Linux 6.12 before 6.12.103",
            Self::NoSessions => "Linux 6.1",
        }
    }

    fn has(self, series: &str, number: u32) -> bool {
        match self {
            Self::Owner => series == "6.12" && number >= FIRST_FOR_OWNERS,
            Self::Tracer => series == "6.12" && number < FIRST_FOR_OWNERS,
            Self::NoSessions => series == "6.1",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) release: String,
    pub(super) kind: Kind,
}

impl Kernel {
    /// The newest kernel of a kind in a list of packages.
    pub(super) fn newest(packages: &str, kind: Kind) -> Option<Self> {
        let known = packages.lines().filter_map(|package| {
            let release = package.trim().strip_prefix(PREFIX)?;
            let (series, number) = parse(release)?;
            kind.has(series, number).then_some((number, release))
        });
        known.max().map(|(_, release)| Self { release: release.to_owned(), kind })
    }

    pub(super) fn package(&self) -> String {
        format!("{PREFIX}{}", self.release)
    }

    pub(super) fn folder(&self, root: &Path) -> PathBuf {
        root.join(&self.release)
    }
}

/// The series of a release and the number in it. None for real-time and cloud kernels.
fn parse(release: &str) -> Option<(&str, u32)> {
    let version = release.strip_suffix(SUFFIX)?;
    if let Some(number) = version.strip_prefix("6.1.0-") {
        return Some(("6.1", number.parse().ok()?));
    }
    let (number, build) = version.strip_prefix("6.12.")?.split_once('+')?;
    let is_plain = build.strip_prefix("deb").is_some_and(|rest| rest.parse::<u32>().is_ok());
    Some(("6.12", number.parse().ok()?)).filter(|_| is_plain)
}

/// The keys for the private package lists.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The suites that have these kernels.
const SUITES: &[(&str, &str)] = &[
    ("http://deb.debian.org/debian", "bookworm"),
    ("http://deb.debian.org/debian-security", "bookworm-security"),
    ("http://deb.debian.org/debian", "bookworm-backports"),
];

/// A source of packages: this machine's, or private lists.
#[derive(Debug)]
pub(super) struct Archive {
    /// The configuration file of apt; None for this machine's.
    settings: Option<PathBuf>,
    names: String,
}

impl Archive {
    /// This machine's lists if they have every kind of kernel, otherwise private ones.
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

    /// Creates private lists of the suites above.
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
        eprintln!("$ apt-get update (private lists)");
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

/// The files that a virtual machine starts from.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) image: PathBuf,
    /// Modules in the order in which they are loaded.
    pub(crate) modules: Vec<PathBuf>,
}

/// Magic numbers of compressed kernels, and the programs that decompress them.
const COMPRESSIONS: &[(&[u8], &[&str])] = &[
    (&[0x28, 0xb5, 0x2f, 0xfd], &["zstd", "--decompress", "--stdout", "--quiet"]),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], &["xz", "--decompress", "--stdout", "--single-stream"]),
];

/// Unpacks a kernel, unless an earlier run did.
pub(super) fn unpack(archive: &Archive, kernel: &Kernel, root: &Path) -> anyhow::Result<Unpacked> {
    let folder = kernel.folder(root);
    if let Some(unpacked) = found(&folder)? {
        return Ok(unpacked);
    }
    let fresh = root.join(format!("{}.new", kernel.release));
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    fs::create_dir_all(fresh.join("package"))?;
    let package = archive.download(kernel, &fresh)?;
    let files = fresh.join("package");
    run_to_success(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&files))?;
    extract_image(&files.join(format!("boot/vmlinuz-{}", kernel.release)), &fresh)?;
    let tree = ["lib/modules", "usr/lib/modules"].map(|place| files.join(place));
    let tree = tree.iter().find(|tree| tree.is_dir()).context("the package has no modules")?;
    fs::create_dir_all(fresh.join("modules"))?;
    for (index, (name, bytes)) in module::with_needed(tree, "amdgpu")?.into_iter().enumerate() {
        fs::write(fresh.join(format!("modules/{index:02}-{name}.ko")), bytes)?;
    }
    fs::remove_dir_all(&files)?;
    fs::remove_file(package)?;
    // Renamed last, so that a folder of this name is complete.
    fs::rename(&fresh, &folder)?;
    found(&folder)?.context("a kernel vanished")
}

fn found(folder: &Path) -> anyhow::Result<Option<Unpacked>> {
    let image = folder.join("vmlinux");
    if !image.is_file() {
        return Ok(None);
    }
    let entries = fs::read_dir(folder.join("modules"))?;
    let mut modules: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    modules.sort();
    Ok(Some(Unpacked { image, modules }))
}

/// Decompresses the kernel, which the emulated machine would take much longer for.
fn extract_image(file: &Path, folder: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    let rest = folder.join("compressed");
    for (magic, command) in COMPRESSIONS {
        let starts = bytes.windows(magic.len()).enumerate().filter(|(_, window)| window == magic);
        for (start, _) in starts {
            fs::write(&rest, &bytes[start..])?;
            let mut program = Command::new(command[0]);
            program.args(&command[1..]).stdin(fs::File::open(&rest)?);
            // Data after the kernel makes them return an error.
            let output = program.output().with_context(|| format!("cannot run {}", command[0]))?;
            if output.stdout.starts_with(b"\x7fELF") {
                fs::remove_file(&rest)?;
                return Ok(fs::write(folder.join("vmlinux"), output.stdout)?);
            }
        }
    }
    bail!("{} is compressed with an unknown method", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_kind_is_chosen() {
        let packages = "linux-image-6.12.95+deb12-amd64\nlinux-image-6.12.101+deb12-amd64\n\
                        linux-image-6.12.115+deb12-amd64\nlinux-image-6.12.116+deb12-rt-amd64\n\
                        linux-image-6.12.107+deb12-amd64\nlinux-image-6.12.120+deb12-cloud-amd64\n\
                        linux-image-6.1.0-9-amd64\nlinux-image-6.1.0-54-amd64\n\
                        linux-image-6.12.119+deb12-amd64-dbg\nlinux-image-6.12-amd64\n\
                        linux-image-6.1.0-55-amd64-unsigned\n";
        let newest = |kind| Kernel::newest(packages, kind).map(|kernel| kernel.release);
        assert_eq!(newest(Kind::Owner).as_deref(), Some("6.12.115+deb12-amd64"));
        assert_eq!(newest(Kind::Tracer).as_deref(), Some("6.12.101+deb12-amd64"));
        assert_eq!(newest(Kind::NoSessions).as_deref(), Some("6.1.0-54-amd64"));
        assert_eq!(Kernel::newest("linux-image-amd64\n", Kind::Owner), None);
    }
}
