//! The kernels to check: one of each kind, the newest in Debian's packages, which are unpacked and
//! not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::module;
use crate::package_files::PackageLists;
use crate::process::{remove_folder, run_to_success};

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

/// The lists of packages that have the kernels, and the names of all kernels in them.
#[derive(Debug)]
pub(super) struct Archive {
    lists: PackageLists,
    names: String,
}

impl Archive {
    /// This machine's lists if they have every kind of kernel, otherwise private ones.
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        let own = Self::new(PackageLists::of_this_machine()?)?;
        if Kind::ALL.into_iter().all(|kind| own.newest(kind).is_some()) {
            return Ok(own);
        }
        match PackageLists::private(&root.join("apt"), "amd64").and_then(Self::new) {
            Ok(private) => Ok(private),
            // Some kernels are better than none.
            Err(error) => {
                eprintln!("no lists of packages beside this machine's: {error:#}");
                Ok(own)
            }
        }
    }

    fn new(lists: PackageLists) -> anyhow::Result<Self> {
        let names = lists.names(PREFIX)?;
        Ok(Self { lists, names })
    }

    pub(super) fn newest(&self, kind: Kind) -> Option<Kernel> {
        Kernel::newest(&self.names, kind)
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
    remove_folder(&fresh)?;
    fs::create_dir_all(fresh.join("package"))?;
    let package = archive.lists.download(&format!("{PREFIX}{}", kernel.release), &fresh)?;
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
