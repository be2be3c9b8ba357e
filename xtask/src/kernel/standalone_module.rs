//! amdkfd as a module of its own, without the rest of amdgpu, for the virtual machine.
//!
//! All of amdgpu takes minutes to build, and without a device none of it is called. So the objects
//! of amdkfd are linked with `kernel/test/alone.c`, which replaces the rest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::{build, folder, source};
use crate::process::{repository_root, run_to_success};

/// Header folders for the node without hardware.
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

/// The module and the release of its kernel. It has amdgpu's name, so that its parameters have
/// their usual path.
pub(super) fn module() -> anyhow::Result<(PathBuf, String)> {
    let source = source::apply()?;
    let compiled = build::objects()?;
    let tree = build::prepare(&source)?;
    let debian = build::as_debian(&source, &tree)?;
    let settings = [debian.local.as_str(), build::AS_DEBIAN];
    let module = link(&source, &tree, &compiled, ("alone", &settings))?;
    Ok((module, debian.release))
}

/// Links compiled objects, in a folder of this name and with these settings for make.
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
        // kbuild takes prebuilt objects under this name, with a record of how they were built.
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
    let mut make = build::make(source, tree);
    make.arg(format!("M={}", alone.display()));
    run_to_success(make.args(settings).arg("modules"))?;
    let module = alone.join("amdgpu.ko");
    ensure!(module.is_file(), "make built no module");
    Ok(module)
}
