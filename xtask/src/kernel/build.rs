//! `cargo xtask kernel build`: an amdgpu.ko with the patches, for Debian's kernel.
//!
//! It is built as a module outside of the kernel, from copies of the driver's folders, because only
//! such modules are linked to the symbols of a kernel that somebody else built.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{fetch, folder, objects, tree};
use crate::process::run_to_success;

/// The driver, and those of its folders that are compiled or only read.
const DRIVER: &str = "drivers/gpu/drm/amd";
const COMPILED: &[&str] = &["amdgpu", "amdkfd", "pm", "acp"];
const READ: &[&str] = &["include", "display"];

/// Part of every module is a structure that depends on this setting, and Debian's has it. To set
/// it in the configuration would take a tool that is of no use otherwise.
pub(super) const AS_DEBIAN: &str = "KCFLAGS=-DCONFIG_DEBUG_INFO_BTF_MODULES=1";

/// Debian's kernel of the same version as the source.
pub(super) struct Debian {
    /// What it calls itself.
    pub(super) release: String,
    /// The setting that makes modules call themselves so too.
    pub(super) local: String,
}

/// Builds it and says where it is.
pub(super) fn module() -> anyhow::Result<PathBuf> {
    let source = tree::apply()?;
    let build = objects::prepare(&source)?;
    let debian = as_debian(&source, &build)?;
    let copies = copy(&source)?;
    let mut make = objects::make(&source, &build);
    make.arg(format!("M={}", copies.join("amdgpu").display()));
    run_to_success(make.args([debian.local.as_str(), AS_DEBIAN, "modules"]))?;
    let module = copies.join("amdgpu/amdgpu.ko");
    ensure!(module.is_file(), "make built no amdgpu.ko");
    println!("{} is for Linux {}", module.display(), debian.release);
    Ok(module)
}

/// Makes the build folder one for modules that Debian's kernel loads.
pub(super) fn as_debian(source: &Path, build: &Path) -> anyhow::Result<Debian> {
    let version = version(source)?;
    let headers = headers(&version)?;
    let symbols = fetch::file_in(&headers, &format!("./usr/src/{headers}/Module.symvers"))?;
    fs::write(build.join("Module.symvers"), symbols).context("cannot write Module.symvers")?;
    let release = headers.trim_start_matches("linux-headers-").to_owned();
    let local = release.strip_prefix(&version).context("a package of another version")?;
    let local = format!("LOCALVERSION={local}");
    run_to_success(objects::make(source, build).args([local.as_str(), "modules_prepare"]))?;
    Ok(Debian { release, local })
}

/// What the kernel's makefile says that it is, such as `6.12.115`.
fn version(source: &Path) -> anyhow::Result<String> {
    let makefile = fs::read_to_string(source.join("Makefile")).context("no Makefile")?;
    let part = |name: &str| {
        let start = format!("{name} = ");
        makefile.lines().find_map(|line| line.strip_prefix(&start)).map(str::trim)
    };
    let parts: Option<Vec<&str>> =
        ["VERSION", "PATCHLEVEL", "SUBLEVEL"].into_iter().map(part).collect();
    Ok(parts.context("the Makefile does not say its version")?.join("."))
}

/// The package of headers for the same version.
fn headers(version: &str) -> anyhow::Result<String> {
    let prefix = format!("linux-headers-{version}+");
    let mut names = Command::new("apt-cache");
    let output = names.args(["pkgnames", &prefix]).stderr(Stdio::null()).output();
    let names = String::from_utf8(output.context("cannot run apt-cache")?.stdout)?;
    headers_among(&names).with_context(|| format!("there is no package of headers for {version}"))
}

/// Those for clouds and for real time are others.
fn headers_among(names: &str) -> Option<String> {
    let is_plain = |name: &&str| {
        let build = name.rsplit('+').next().unwrap_or_default();
        build.ends_with("-amd64") && build.matches('-').count() == 1
    };
    names.lines().map(str::trim).filter(is_plain).max().map(str::to_owned)
}

/// The driver's folders outside of the kernel; objects of an earlier time stay.
fn copy(source: &Path) -> anyhow::Result<PathBuf> {
    let copies = folder().join("module/amd");
    fs::create_dir_all(&copies).with_context(|| copies.display().to_string())?;
    let driver = source.join(DRIVER);
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--update"]).args(COMPILED.iter().map(|name| driver.join(name)));
    run_to_success(copy.arg(&copies))?;
    for name in READ {
        let link = copies.join(name);
        if !link.exists() {
            symlink(driver.join(name), &link).with_context(|| link.display().to_string())?;
        }
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_package_of_headers_is_chosen() {
        let names = "linux-headers-6.12.115+deb12-cloud-amd64\nlinux-headers-6.12.115+deb12-amd64\n\
                     linux-headers-6.12.115+deb12-common\nlinux-headers-6.12.115+deb12-rt-amd64\n";
        assert_eq!(headers_among(names).as_deref(), Some("linux-headers-6.12.115+deb12-amd64"));
        assert_eq!(headers_among("linux-headers-6.12.115+deb12-common\n"), None);
    }
}
