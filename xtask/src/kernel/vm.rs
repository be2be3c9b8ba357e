//! `cargo xtask kernel vm`: Debian's kernel with the patched module, in a virtual machine.
//!
//! There is no GPU in it, so there are no queues: what can be tried is everything up to them, and
//! with a node that has no hardware (`kernel/test/node.c`) what the patches do with queues. Our
//! module is amdkfd alone, because nothing else of amdgpu would ever be called.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::trial::{self, Trial};
use super::{alone, folder, tree};
use crate::kfd_vm::{self, PATIENCE, Unpacked};
use crate::process::run_to_success;

/// Builds everything and tries it: the module as Debian has it first, then ours.
pub(super) fn run() -> anyhow::Result<()> {
    let (module, built_for) = alone::module()?;
    let (release, unpacked, busybox) = kfd_vm::newest()?;
    ensure!(built_for == release, "the module is for Linux {built_for}, to start is {release}");
    let programs = trial::programs(&tree::apply()?, &busybox)?;
    let stock = Trial {
        name: "stock",
        script: trial::calls("stock"),
        proof: "",
        wanted: trial::CALLS_WANTED.to_vec(),
        patience: PATIENCE,
    };
    stock.run(&programs, &unpacked)?;
    let patched = Trial {
        name: "patched",
        script: trial::calls("patched") + trial::NODE,
        proof: "",
        wanted: [trial::CALLS_WANTED, trial::NODE_WANTED].concat(),
        patience: 2 * PATIENCE,
    };
    patched.run(&programs, &with_module(&unpacked, &module)?)
}

/// The same modules with ours for Debian's.
fn with_module(unpacked: &Unpacked, module: &Path) -> anyhow::Result<Unpacked> {
    let folder = folder().join("vm/modules");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let is_amdgpu = |path: &PathBuf| path.to_string_lossy().ends_with("-amdgpu.ko");
    let place = unpacked.modules.iter().position(is_amdgpu).context("there is no amdgpu.ko")?;
    let mut modules = unpacked.modules.clone();
    // By the name of the one it replaces: the order is in the names.
    modules[place] = folder.join(modules[place].file_name().unwrap_or_default());
    strip(module, &modules[place])?;
    Ok(Unpacked { image: unpacked.image.clone(), modules })
}

/// A module without what only debuggers need.
pub(super) fn strip(module: &Path, to: &Path) -> anyhow::Result<()> {
    let mut strip = Command::new("strip");
    run_to_success(strip.args(["--strip-debug", "-o"]).arg(to).arg(module))
}
