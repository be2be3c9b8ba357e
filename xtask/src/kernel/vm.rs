//! `cargo xtask kernel vm`: Debian's kernel with the patched module, in a virtual machine.
//!
//! There is no GPU in it, so there are no queues: what can be tried is everything up to them, and
//! with a node that has no hardware (`kernel/test/node.c`) what the patches do with queues. Our
//! module is amdkfd alone, because nothing else of amdgpu would ever be called.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::{alone, folder, tree};
use crate::kfd_vm::{self, Guest, Unpacked};
use crate::process::{repository_root, run_to_success};

/// What a kernel says that has found a fault in itself.
const TROUBLE: &str = "BUG:|WARNING:|Oops|protection fault|refcount_t:|UBSAN|KASAN|corruption";

/// Debugfs for the statistics, the calls, and the kernel's log; at the end the module goes, which
/// is a test too.
const CALLS: &str = "\
/bin/busybox mount -t debugfs debugfs /sys/kernel/debug
/bin/kfd-ioctl EXPECTED >/dev/ttyS1 2>&1
echo \"calls $?\" >/dev/ttyS1
/bin/busybox rmmod amdgpu
echo \"unload $?\" >/dev/ttyS1
NODE/bin/busybox dmesg | /bin/busybox grep -E 'TROUBLE' >/dev/ttyS1
echo \"exit 0\" >/dev/ttyS1
";

/// With our module: once more with a node that has no hardware, for what needs queues.
const NODE: &str = "\
/bin/busybox insmod /modules/*-amdgpu.ko node=1
/bin/kfd-queues >/dev/ttyS1 2>&1
echo \"queues $?\" >/dev/ttyS1
/bin/busybox rmmod amdgpu
echo \"unload node $?\" >/dev/ttyS1
";

/// What must have been said, and what it means if it was not.
const STOCK: &[(&str, &str)] = &[("calls 0", "calls failed"), ("unload 0", "cannot unload")];
/// The same of our module.
const PATCHED: &[(&str, &str)] = &[
    ("calls 0", "calls failed"),
    ("unload 0", "cannot unload"),
    ("queues 0", "calls about queues failed"),
    ("unload node 0", "cannot unload the node"),
];

/// Builds everything and tries it: the module as Debian has it first, then ours.
pub(super) fn run() -> anyhow::Result<()> {
    let (module, built_for) = alone::module()?;
    let source = tree::apply()?;
    let [program, queues] = ["ioctl", "queues"].map(|name| calls(&source, name));
    let (program, queues) = (program?, queues?);
    let (release, unpacked, busybox) = kfd_vm::newest()?;
    ensure!(built_for == release, "the module is for Linux {built_for}, to start is {release}");
    let programs = [
        ("busybox", busybox.as_path()),
        ("kfd-ioctl", program.as_path()),
        ("kfd-queues", queues.as_path()),
    ];
    check(&programs, &unpacked, ("stock", STOCK))?;
    check(&programs, &with_module(&unpacked, &module)?, ("patched", PATCHED))
}

/// Starts a machine and judges what it said.
fn check(
    programs: &[(&str, &Path)],
    unpacked: &Unpacked,
    (expected, wanted): (&str, &[(&str, &'static str)]),
) -> anyhow::Result<()> {
    let folder = folder().join("vm").join(expected);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let node = if expected == "patched" { NODE } else { "" };
    let script = CALLS.replace("EXPECTED", expected).replace("TROUBLE", TROUBLE);
    let script = script.replace("NODE", node);
    let guest = Guest { unpacked, script: &script, programs, folder: &folder };
    let said = guest.run()?;
    println!("== {expected} module\n{}", said.trim());
    let troubles: Vec<&str> = troubles(&said, wanted).collect();
    if !troubles.is_empty() {
        bail!("the {expected} module: {}", troubles.join("; "));
    }
    Ok(())
}

/// The lines that should not be there, and the words for those that are missing.
fn troubles<'a>(
    said: &'a str,
    wanted: &'a [(&'a str, &'static str)],
) -> impl Iterator<Item = &'a str> {
    let is_said = |wanted: &str| said.lines().any(|line| line == wanted);
    let missing = wanted.iter().filter(move |(line, _)| !is_said(line)).map(|(_, means)| *means);
    let bad = said.lines().filter(|line| {
        line.starts_with("FAILED") || TROUBLE.split('|').any(|word| line.contains(word))
    });
    bad.chain(missing)
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
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "-o"]).arg(&modules[place]).arg(module);
    run_to_success(&mut strip)?;
    Ok(Unpacked { image: unpacked.image.clone(), modules })
}

/// A program that calls, with the header as the patches leave it.
fn calls(source: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let include = folder().join("vm/include");
    for part in ["linux", "drm"] {
        fs::create_dir_all(include.join(part)).with_context(|| include.display().to_string())?;
    }
    let header = "linux/kfd_ioctl.h";
    fs::copy(source.join("include/uapi").join(header), include.join(header)).context(header)?;
    // All that the header wants of it are types.
    fs::write(include.join("drm/drm.h"), "#include <linux/types.h>\n").context("drm.h")?;
    let program = folder().join(format!("vm/kfd-{name}"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]);
    cc.arg("-I").arg(&include).arg("-o").arg(&program);
    run_to_success(cc.arg(repository_root().join(format!("kernel/test/{name}.c"))))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_what_failed_and_what_is_missing() {
        let good = "fuzz: 100000 calls\n120 checks, 0 failures\ncalls 0\nunload 0\nexit 0\n";
        assert_eq!(troubles(good, STOCK).count(), 0);
        assert_eq!(troubles(good, PATCHED).count(), 2);
        let bad = "FAILED number: 25, not 22\ncalls 1\n[ 3.1] WARNING: CPU: 1\nexit 0\n";
        let found: Vec<&str> = troubles(bad, STOCK).collect();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.contains(&"cannot unload") && found.contains(&"calls failed"));
    }
}
