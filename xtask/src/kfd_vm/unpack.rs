//! A kernel out of its package: the kernel itself, and the modules that amdgpu needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::archive::Archive;
use super::kernel::Kernel;
use super::module;
use crate::process::run_to_success;

/// What a virtual machine starts from.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The kernel, not compressed.
    pub(crate) image: PathBuf,
    /// Modules, each after those it needs.
    pub(crate) modules: Vec<PathBuf>,
}

/// How a kernel may be compressed in its file, and who can undo that.
const COMPRESSIONS: &[(&[u8], &[&str])] = &[
    (&[0x28, 0xb5, 0x2f, 0xfd], &["zstd", "--decompress", "--stdout", "--quiet"]),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], &["xz", "--decompress", "--stdout", "--single-stream"]),
];

/// Takes everything out of the package, once: the next time it is there.
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
    // What has this name is whole.
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

/// Takes the kernel out of its file, which would cost an emulated processor much longer.
fn extract_image(file: &Path, folder: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    let rest = folder.join("compressed");
    for (magic, command) in COMPRESSIONS {
        let starts = bytes.windows(magic.len()).enumerate().filter(|(_, window)| window == magic);
        for (start, _) in starts {
            fs::write(&rest, &bytes[start..])?;
            let mut program = Command::new(command[0]);
            program.args(&command[1..]).stdin(fs::File::open(&rest)?);
            // What follows the kernel in its file is not compressed, which they complain about.
            let output = program.output().with_context(|| format!("cannot run {}", command[0]))?;
            if output.stdout.starts_with(b"\x7fELF") {
                fs::remove_file(&rest)?;
                return Ok(fs::write(folder.join("vmlinux"), output.stdout)?);
            }
        }
    }
    bail!("{} is compressed in a way that nobody here knows", file.display())
}
