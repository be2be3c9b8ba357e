//! `cargo xtask kernel objects` compiles amdkfd with all warnings; `build` builds an amdgpu.ko with
//! the patches for Debian's kernel.
//!
//! The module is built outside the kernel's source, from copies of the driver's folders: only such
//! modules are linked against the symbols of a kernel that was built elsewhere.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use anyhow::{Context, bail, ensure};

use super::{folder, source};
use crate::package_files::{self, PackageLists};
use crate::process::run_to_success;

/// The driver, and its folders that are compiled or only read.
const DRIVER: &str = "drivers/gpu/drm/amd";
const COMPILED: &[&str] = &["amdgpu", "amdkfd", "pm", "acp"];
const READ: &[&str] = &["include", "display"];

/// The layout of a structure in every module depends on this setting, which Debian enables. Setting
/// it in the configuration would need a tool that nothing else needs.
pub(super) const AS_DEBIAN: &str = "KCFLAGS=-DCONFIG_DEBUG_INFO_BTF_MODULES=1";

/// Debian's kernel of the source's version.
pub(super) struct Debian {
    pub(super) release: String,
    /// The make setting for the same release name.
    pub(super) local: String,
}

pub(super) fn module() -> anyhow::Result<PathBuf> {
    let source = source::apply()?;
    let build = prepare(&source)?;
    let debian = as_debian(&source, &build)?;
    let copies = copy(&source)?;
    let mut make = make(&source, &build);
    make.arg(format!("M={}", copies.join("amdgpu").display()));
    run_to_success(make.args([debian.local.as_str(), AS_DEBIAN, "modules"]))?;
    let module = copies.join("amdgpu/amdgpu.ko");
    ensure!(module.is_file(), "make built no amdgpu.ko");
    println!("{} is for Linux {}", module.display(), debian.release);
    Ok(module)
}

/// Prepares the build folder for modules that Debian's kernel loads.
pub(super) fn as_debian(source: &Path, build: &Path) -> anyhow::Result<Debian> {
    let version = version(source)?;
    let headers = headers(&version)?;
    let file = format!("usr/src/{headers}/Module.symvers");
    let symbols = package_files::file_in(&source::package(&headers)?, &file)?;
    fs::write(build.join("Module.symvers"), symbols).context("cannot write Module.symvers")?;
    let release = headers.trim_start_matches("linux-headers-").to_owned();
    let local = release.strip_prefix(&version).context("a package of another version")?;
    let local = format!("LOCALVERSION={local}");
    run_to_success(make(source, build).args([local.as_str(), "modules_prepare"]))?;
    Ok(Debian { release, local })
}

/// The version in the kernel's Makefile, such as `6.12.115`.
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

/// The package of headers for that version.
fn headers(version: &str) -> anyhow::Result<String> {
    let names = PackageLists::of_this_machine()?.names(&format!("linux-headers-{version}+"))?;
    headers_among(&names).with_context(|| format!("there is no package of headers for {version}"))
}

/// The plain package, not those for clouds and real time.
fn headers_among(names: &str) -> Option<String> {
    let is_plain = |name: &&str| {
        let build = name.rsplit('+').next().unwrap_or_default();
        build.ends_with("-amd64") && build.matches('-').count() == 1
    };
    names.lines().map(str::trim).filter(is_plain).max().map(str::to_owned)
}

/// Copies the driver's folders; objects of an earlier build stay.
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

/// The prefix of objects, as the driver's makefiles write it.
const KFD: &str = "drivers/gpu/drm/amd/amdgpu/../amdkfd";

/// Settings that need keys, tools or time and do not affect amdkfd: no display code, no support for
/// the oldest devices.
const LEFT_OUT: &[&str] = &[
    "--set-str",
    "SYSTEM_TRUSTED_KEYS",
    "",
    "--set-str",
    "SYSTEM_REVOCATION_KEYS",
    "",
    "--set-str",
    "MODULE_SIG_KEY",
    "",
    "-d",
    "DEBUG_INFO_BTF",
    "-d",
    "DRM_AMD_DC",
    "-d",
    "DRM_AMDGPU_SI",
    "-d",
    "DRM_AMDGPU_CIK",
];

/// Compiles amdkfd and returns its objects. A warning in a patched file is an error.
pub(super) fn objects() -> anyhow::Result<Vec<PathBuf>> {
    let source = source::apply()?;
    let build = prepare(&source)?;
    compile_in(&source, &build)
}

pub(super) fn compile_in(source: &Path, build: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let kfd = source.join("drivers/gpu/drm/amd/amdkfd");
    let makefile = fs::read_to_string(kfd.join("Makefile")).context("amdkfd has no Makefile")?;
    let config = fs::read_to_string(build.join(".config")).context("there is no .config")?;
    let objects = objects_in(&makefile, &config);
    ensure!(objects.len() > 30, "amdkfd's Makefile names only {} objects", objects.len());
    let touched: Vec<String> = source::touched(&source::text()?).into_keys().collect();
    // Objects that are up to date would show no warnings.
    for name in touched.iter().filter_map(|path| object_of(path)) {
        let _ = fs::remove_file(build.join(KFD).join(name));
    }
    let mut make = make(source, build);
    make.arg("W=1").args(objects.iter().map(|name| format!("{KFD}/{name}")));
    let output = make.stdout(Stdio::inherit()).stderr(Stdio::piped()).output();
    let output = output.context("cannot run make")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    eprint!("{messages}");
    ensure!(output.status.success(), "make ended with {}", output.status);
    match warnings(&messages, &touched) {
        0 => println!("{} objects compiled; no warning in the patched files", objects.len()),
        count => bail!("{count} warnings in the patched files"),
    }
    Ok(objects.iter().map(|name| build.join("drivers/gpu/drm/amd/amdkfd").join(name)).collect())
}

/// A build folder with Debian's configuration.
pub(super) fn prepare(source: &Path) -> anyhow::Result<PathBuf> {
    let build = folder().join("build");
    if build.join("prepared").is_file() {
        return Ok(build);
    }
    fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
    fs::write(build.join(".config"), source::config()?).context("cannot write .config")?;
    let mut config = Command::new(source.join("scripts/config"));
    config.arg("--file").arg(build.join(".config")).args(LEFT_OUT);
    run_to_success(&mut config)?;
    for target in ["olddefconfig", "modules_prepare"] {
        run_to_success(make(source, &build).arg(target))?;
    }
    fs::write(build.join("prepared"), "").context("cannot mark the build folder")?;
    Ok(build)
}

pub(super) fn make(source: &Path, build: &Path) -> Command {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.arg("-C").arg(source).arg(format!("O={}", build.display())).arg(format!("-j{jobs}"));
    make.arg("--no-print-directory");
    make
}

/// The objects in amdkfd's Makefile that the configuration enables.
fn objects_in(makefile: &str, config: &str) -> Vec<String> {
    let mut objects = Vec::new();
    let mut is_wanted = true;
    for line in makefile.lines() {
        if let Some(rest) = line.strip_prefix("ifneq ($(") {
            let setting = rest.split(')').next().unwrap_or_default();
            is_wanted = config.lines().any(|line| line == format!("{setting}=y"));
        } else if line == "endif" {
            is_wanted = true;
        }
        let names = line.split_whitespace().filter_map(|word| word.strip_prefix("$(AMDKFD_PATH)/"));
        objects.extend(names.filter(|name| is_wanted && name.ends_with(".o")).map(str::to_owned));
    }
    objects
}

fn object_of(path: &str) -> Option<String> {
    let name = path.strip_prefix("drivers/gpu/drm/amd/amdkfd/")?.strip_suffix(".c")?;
    Some(format!("{name}.o"))
}

/// The number of warnings in these files.
fn warnings(messages: &str, files: &[String]) -> usize {
    let names: Vec<&str> = files.iter().filter_map(|path| path.rsplit('/').next()).collect();
    let is_ours = |line: &str| names.iter().any(|name| line.contains(&format!("/{name}:")));
    messages.lines().filter(|line| line.contains(": warning:") && is_ours(line)).count()
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

    #[test]
    fn objects_are_read_from_the_makefile() {
        let makefile = "F := $(AMDKFD_PATH)/kfd_module.o \\\n\t\t$(AMDKFD_PATH)/kfd_queue.o\n\
                        ifneq ($(CONFIG_DEBUG_FS),)\nF += $(AMDKFD_PATH)/kfd_debugfs.o\nendif\n\
                        ifneq ($(CONFIG_HSA_AMD_SVM),)\nF += $(AMDKFD_PATH)/kfd_svm.o\nendif\n";
        let always = ["kfd_module.o", "kfd_queue.o"];
        let config = "CONFIG_DEBUG_FS=y\n# CONFIG_HSA_AMD_SVM is not set\n";
        assert_eq!(objects_in(makefile, ""), always);
        assert_eq!(objects_in(makefile, config), [always.as_slice(), &["kfd_debugfs.o"]].concat());
    }

    #[test]
    fn warnings_count_in_patched_files() {
        let files = ["drivers/gpu/drm/amd/amdkfd/kfd_preempt.c".to_owned()];
        let messages = "../amdkfd/kfd_preempt.c:7:2: warning: unused\n\
                        ../amdkfd/kfd_crat.c:7:2: warning: unused\n\
                        ../amdkfd/kfd_preempt.c:7:2: note: here\n";
        assert_eq!(warnings(messages, &files), 1);
        assert_eq!(object_of(&files[0]).as_deref(), Some("kfd_preempt.o"));
        assert_eq!(object_of("include/uapi/linux/kfd_ioctl.h"), None);
    }
}
