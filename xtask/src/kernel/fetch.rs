//! Debian's kernel source and the configuration that goes with it, without installing anything.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::{folder, tools};
use crate::process::run_to_success;

/// The package with the source; the patches are made for it.
const SOURCE: &str = "linux-source-6.12";
/// The package with Debian's configurations, and the one of them that is used.
const CONFIG: &str = "linux-config-6.12";
const CONFIG_FILE: &str = "./usr/src/linux-config-6.12/config.amd64_none_amd64.xz";

/// The unpacked source, fetched if it is not there.
pub(super) fn source() -> anyhow::Result<PathBuf> {
    tools::provide()?;
    let source = folder().join(SOURCE);
    if source.join("Makefile").is_file() {
        return Ok(source);
    }
    let archive = package(SOURCE)?;
    let part = folder().join("unpacking");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).with_context(|| part.display().to_string())?;
    eprintln!("unpacking {SOURCE}");
    let inside = format!("./usr/src/{SOURCE}.tar.xz");
    let script = "dpkg-deb --fsys-tarfile \"$0\" | tar -xf - --to-stdout \"$1\" | xz -dc -T0 | tar \
                  -xf - -C \"$2\" --strip-components=1";
    let mut unpack = Command::new("bash");
    unpack.args(["-o", "pipefail", "-c", script]).arg(archive).arg(inside).arg(&part);
    run_to_success(&mut unpack).context("cannot unpack the kernel's source")?;
    // Whoever finds the folder finds all of it, also after an interruption.
    fs::rename(&part, &source).with_context(|| source.display().to_string())?;
    Ok(source)
}

/// Debian's configuration of the same version.
pub(super) fn config() -> anyhow::Result<Vec<u8>> {
    file_in(CONFIG, CONFIG_FILE)
}

/// One file of a package; one that is compressed in there is not compressed any more.
pub(super) fn file_in(name: &str, file: &str) -> anyhow::Result<Vec<u8>> {
    let archive = package(name)?;
    let undo = if file.ends_with(".xz") { "xz -dc" } else { "cat" };
    let script = format!("dpkg-deb --fsys-tarfile \"$0\" | tar -xf - --to-stdout \"$1\" | {undo}");
    let mut read = Command::new("bash");
    read.args(["-o", "pipefail", "-c", &script]).arg(archive).arg(file);
    let output = read.stderr(Stdio::inherit()).output().context("cannot run bash")?;
    if !output.status.success() || output.stdout.is_empty() {
        bail!("{name} has no {file}");
    }
    Ok(output.stdout)
}

/// A package as a file, downloaded if it is not there.
pub(super) fn package(name: &str) -> anyhow::Result<PathBuf> {
    let packages = folder().join("packages");
    fs::create_dir_all(&packages).with_context(|| packages.display().to_string())?;
    if let Some(archive) = find(&packages, name)? {
        return Ok(archive);
    }
    if download(name, &packages).is_err() {
        // The lists of packages may be missing or stale; only then is fetching them worth it.
        run_to_success(Command::new("apt-get").arg("update"))?;
        download(name, &packages)?;
    }
    find(&packages, name)?.with_context(|| format!("apt-get download {name} brought nothing"))
}

fn download(name: &str, packages: &Path) -> anyhow::Result<()> {
    eprintln!("$ apt-get download {name}");
    let mut download = Command::new("apt-get");
    download.args(["download", name]).current_dir(packages).stdin(Stdio::null());
    let status = download.status().context("cannot run apt-get; the source is Debian's")?;
    if status.success() { Ok(()) } else { bail!("apt-get download {name} ended with {status}") }
}

fn find(packages: &Path, name: &str) -> anyhow::Result<Option<PathBuf>> {
    let start = format!("{name}_");
    for entry in fs::read_dir(packages).with_context(|| packages.display().to_string())? {
        let path = entry?.path();
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if file.is_some_and(|file| file.starts_with(&start) && file.ends_with(".deb")) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
