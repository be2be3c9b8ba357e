//! amdkfd as a module of its own, without the rest of amdgpu, for the virtual machine.
//!
//! All of amdgpu takes minutes to build, and without a device nothing of it is ever called. So what
//! was compiled of amdkfd is linked with `kernel/test/alone.c`, which stands for the rest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::{build, folder, objects, tree};
use crate::process::{repository_root, run_to_success};

/// Where the headers are that a made-up node needs.
const HEADERS: [&str; 11] = [
    "include/asic_reg",
    "include",
    "amdgpu",
    "pm/inc",
    "acp/include",
    "display",
    "display/include",
    "display/modules/inc",
    "display/dc",
    "display/amdgpu_dm",
    "amdkfd",
];

/// The module, and the release of the kernel it is for. It has amdgpu's name, so that everything
/// is where it would be.
pub(super) fn module() -> anyhow::Result<(PathBuf, String)> {
    let source = tree::apply()?;
    let compiled = objects::compile()?;
    let tree = objects::prepare(&source)?;
    let debian = build::as_debian(&source, &tree)?;
    let settings = [debian.local.as_str(), build::AS_DEBIAN];
    let module = link(&source, &tree, &compiled, ("alone", &settings))?;
    Ok((module, debian.release))
}

/// Links what was compiled in a build folder, in a folder of that name and with settings for make.
pub(super) fn link(
    source: &Path,
    tree: &Path,
    compiled: &[PathBuf],
    (name, settings): (&str, &[&str]),
) -> anyhow::Result<PathBuf> {
    let alone = folder().join(name);
    fs::create_dir_all(&alone).with_context(|| alone.display().to_string())?;
    let mut names = vec!["alone.o".to_owned(), "node.o".to_owned()];
    for object in compiled {
        let name = object.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // What is compiled elsewhere comes by this name, with a note of how it was made.
        let shipped = alone.join(format!("{name}_shipped"));
        fs::copy(object, shipped).with_context(|| object.display().to_string())?;
        fs::write(alone.join(format!(".{name}.cmd")), "savedcmd_elsewhere := true\n")?;
        names.push(name);
    }
    let headers = HEADERS.map(|part| format!("-I$(srctree)/drivers/gpu/drm/amd/{part}"));
    let makefile = format!(
        "obj-m := amdgpu.o\namdgpu-y := {}\nCFLAGS_node.o := {}\n",
        names.join(" "),
        headers.join(" ")
    );
    fs::write(alone.join("Makefile"), makefile)?;
    for name in ["alone.c", "node.c"] {
        let stubs = repository_root().join("kernel/test").join(name);
        fs::copy(&stubs, alone.join(name)).with_context(|| stubs.display().to_string())?;
    }
    let mut make = objects::make(source, tree);
    make.arg(format!("M={}", alone.display()));
    run_to_success(make.args(settings).arg("modules"))?;
    let module = alone.join("amdgpu.ko");
    ensure!(module.is_file(), "make built no module");
    Ok(module)
}
