//! `cargo xtask kernel objects`: compiles everything in amdkfd with all warnings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, bail, ensure};

use super::{fetch, folder, series, tree};
use crate::process::run_to_success;

/// What is compiled; the part of the name that the driver's makefiles use.
const KFD: &str = "drivers/gpu/drm/amd/amdgpu/../amdkfd";

/// Settings that need keys, tools or time and make no difference to what is compiled here: no
/// display code, no support for the oldest devices.
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

/// Compiles, and says where the objects are; a warning in a file of ours is an error.
pub(super) fn compile() -> anyhow::Result<Vec<PathBuf>> {
    let source = tree::apply()?;
    let build = prepare(&source)?;
    compile_in(&source, &build)
}

/// The same in a folder that is configured.
pub(super) fn compile_in(source: &Path, build: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let kfd = source.join("drivers/gpu/drm/amd/amdkfd");
    let makefile = fs::read_to_string(kfd.join("Makefile")).context("amdkfd has no Makefile")?;
    let config = fs::read_to_string(build.join(".config")).context("there is no .config")?;
    let objects = objects(&makefile, &config);
    ensure!(objects.len() > 30, "amdkfd's Makefile names only {} objects", objects.len());
    let touched: Vec<String> = series::touched(&series::text()?).into_keys().collect();
    // What is up to date is not compiled, and shows no warnings.
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

/// A build folder in which the source is configured as Debian's kernel is.
pub(super) fn prepare(source: &Path) -> anyhow::Result<PathBuf> {
    let build = folder().join("build");
    if build.join("prepared").is_file() {
        return Ok(build);
    }
    fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
    fs::write(build.join(".config"), fetch::config()?).context("cannot write .config")?;
    let mut config = Command::new(source.join("scripts/config"));
    config.arg("--file").arg(build.join(".config")).args(LEFT_OUT);
    run_to_success(&mut config)?;
    for target in ["olddefconfig", "modules_prepare"] {
        run_to_success(make(source, &build).arg(target))?;
    }
    fs::write(build.join("prepared"), "").context("cannot mark the build folder")?;
    Ok(build)
}

/// Make in the source, with the results in the build folder.
pub(super) fn make(source: &Path, build: &Path) -> Command {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.arg("-C").arg(source).arg(format!("O={}", build.display())).arg(format!("-j{jobs}"));
    make.arg("--no-print-directory");
    make
}

/// The objects that amdkfd's makefile names, as far as they are configured.
fn objects(makefile: &str, config: &str) -> Vec<String> {
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

/// The object that a C file of amdkfd becomes.
fn object_of(path: &str) -> Option<String> {
    let name = path.strip_prefix("drivers/gpu/drm/amd/amdkfd/")?.strip_suffix(".c")?;
    Some(format!("{name}.o"))
}

/// How many warnings are about one of these files.
fn warnings(messages: &str, files: &[String]) -> usize {
    let names: Vec<&str> = files.iter().filter_map(|path| path.rsplit('/').next()).collect();
    let is_ours = |line: &str| names.iter().any(|name| line.contains(&format!("/{name}:")));
    messages.lines().filter(|line| line.contains(": warning:") && is_ours(line)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_out_of_the_makefile() {
        let makefile = "F := $(AMDKFD_PATH)/kfd_module.o \\\n\t\t$(AMDKFD_PATH)/kfd_queue.o\n\
                        ifneq ($(CONFIG_DEBUG_FS),)\nF += $(AMDKFD_PATH)/kfd_debugfs.o\nendif\n\
                        ifneq ($(CONFIG_HSA_AMD_SVM),)\nF += $(AMDKFD_PATH)/kfd_svm.o\nendif\n";
        let always = ["kfd_module.o", "kfd_queue.o"];
        let config = "CONFIG_DEBUG_FS=y\n# CONFIG_HSA_AMD_SVM is not set\n";
        assert_eq!(objects(makefile, ""), always);
        assert_eq!(objects(makefile, config), [always.as_slice(), &["kfd_debugfs.o"]].concat());
    }

    #[test]
    fn warnings_count_where_they_are_ours() {
        let files = ["drivers/gpu/drm/amd/amdkfd/kfd_preempt.c".to_owned()];
        let messages = "../amdkfd/kfd_preempt.c:7:2: warning: unused\n\
                        ../amdkfd/kfd_crat.c:7:2: warning: unused\n\
                        ../amdkfd/kfd_preempt.c:7:2: note: here\n";
        assert_eq!(warnings(messages, &files), 1);
        assert_eq!(object_of(&files[0]).as_deref(), Some("kfd_preempt.o"));
        assert_eq!(object_of("include/uapi/linux/kfd_ioctl.h"), None);
    }
}
