//! `cargo xtask kernel vm`: Debian's kernel with the patched module, in a virtual machine; and the
//! test programs, scripts and checks that `kasan` shares.
//!
//! The machine has no GPU and so no queues: the programs test every call up to that point, and on a
//! node without hardware (`kernel/test/node.c`) what the patches do with queues. The module is
//! amdkfd alone, because nothing else of amdgpu would be called.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::{folder, source, standalone_module};
use crate::kfd_vm::{self, Guest, PATIENCE, Unpacked};
use crate::process::{repository_root, run_to_success};

/// Messages of a kernel that has detected a fault in itself.
const TROUBLE: &str = "BUG:|WARNING:|Oops|protection fault|refcount_t:|UBSAN|KASAN|corruption|\
                       unreferenced object|INFO: task|Internal error";

/// Mounts debugfs for the statistics, makes the calls and unloads the module.
const CALLS: &str = "\
/bin/busybox mount -t debugfs debugfs /sys/kernel/debug
/bin/kfd-ioctl EXPECTED >/dev/ttyS1 2>&1
echo \"calls $?\" >/dev/ttyS1
/bin/busybox rmmod amdgpu
echo \"unload $?\" >/dev/ttyS1
";

/// With the patched module: again with a node without hardware, for tests with queues.
pub(super) const NODE: &str = "\
/bin/busybox insmod /modules/*amdgpu.ko node=1
/bin/kfd-attacks >/dev/ttyS1 2>&1
echo \"attacks $?\" >/dev/ttyS1
/bin/busybox rmmod amdgpu
/bin/busybox insmod /modules/*amdgpu.ko node=1
/bin/kfd-queues >/dev/ttyS1 2>&1
echo \"queues $?\" >/dev/ttyS1
/bin/busybox rmmod amdgpu
echo \"unload node $?\" >/dev/ttyS1
";

/// Fault messages in the kernel's log.
const LOG: &str = "\
/bin/busybox dmesg | /bin/busybox grep -E 'TROUBLE' >/dev/ttyS1
echo \"log $?\" >/dev/ttyS1
";

/// A line that must be printed, and the failure if it is not.
pub(super) type Wanted = (&'static str, &'static str);

/// The lines after the calls, and after those on the node.
pub(super) const CALLS_WANTED: &[Wanted] = &[
    ("calls 0", "calls failed"),
    ("unload 0", "cannot unload"),
    // grep found no match.
    ("log 1", "the kernel's log was not clean, or not read"),
];
pub(super) const NODE_WANTED: &[Wanted] = &[
    ("attacks 0", "attacks succeeded"),
    ("queues 0", "calls about queues failed"),
    ("unload node 0", "cannot unload the node"),
];

/// The script for a stock or a patched module.
pub(super) fn calls(expected: &str) -> String {
    CALLS.replace("EXPECTED", expected)
}

pub(super) struct VmTest {
    pub(super) name: &'static str,
    /// The kernel's log is examined after it.
    pub(super) script: String,
    /// Runs after that: it may write to the log.
    pub(super) proof: &'static str,
    pub(super) wanted: Vec<Wanted>,
    pub(super) patience: Duration,
}

impl VmTest {
    /// Starts the machine and checks its output.
    pub(super) fn run(
        &self,
        programs: &[(&'static str, PathBuf)],
        unpacked: &Unpacked,
    ) -> anyhow::Result<()> {
        let name = self.name;
        let folder = folder().join("vm").join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let programs: Vec<(&str, &Path)> =
            programs.iter().map(|(name, path)| (*name, path.as_path())).collect();
        let script = format!("{}{LOG}{}echo \"exit 0\" >/dev/ttyS1\n", self.script, self.proof);
        let script = script.replace("TROUBLE", TROUBLE);
        let guest = Guest {
            unpacked,
            script: &script,
            programs: &programs,
            folder: &folder,
            patience: self.patience,
        };
        let said = guest.run()?;
        println!("== {name}\n{}", said.trim());
        let troubles: Vec<&str> = troubles(&said, &self.wanted).collect();
        if !troubles.is_empty() {
            bail!("{name}: {}", troubles.join("; "));
        }
        Ok(())
    }
}

/// Lines with faults, and the failures of missing lines.
fn troubles<'a>(said: &'a str, wanted: &'a [Wanted]) -> impl Iterator<Item = &'a str> {
    let is_said = |wanted: &str| said.lines().any(|line| line == wanted);
    let missing = wanted.iter().filter(move |(line, _)| !is_said(line)).map(|(_, means)| *means);
    let bad = said.lines().filter(|line| {
        line.starts_with("FAILED") || TROUBLE.split('|').any(|word| line.contains(word))
    });
    bad.chain(missing)
}

/// The programs in the machine and their names.
pub(super) fn programs(
    source: &Path,
    busybox: &Path,
) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    Ok(vec![
        ("busybox", busybox.to_owned()),
        ("kfd-ioctl", program(source, "ioctl")?),
        ("kfd-queues", program(source, "queues")?),
        ("kfd-attacks", program(source, "attacks")?),
    ])
}

/// A test program, compiled with the header of the patches.
fn program(source: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let include = folder().join("vm/include");
    for part in ["linux", "drm"] {
        fs::create_dir_all(include.join(part)).with_context(|| include.display().to_string())?;
    }
    let header = "linux/kfd_ioctl.h";
    fs::copy(source.join("include/uapi").join(header), include.join(header)).context(header)?;
    // The header needs only types from it.
    fs::write(include.join("drm/drm.h"), "#include <linux/types.h>\n").context("drm.h")?;
    let program = folder().join(format!("vm/kfd-{name}"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]);
    cc.arg("-I").arg(&include).arg("-o").arg(&program);
    run_to_success(cc.arg(repository_root().join(format!("kernel/test/{name}.c"))))?;
    Ok(program)
}

/// Tests Debian's module, then the patched one.
pub(super) fn run() -> anyhow::Result<()> {
    let (module, built_for) = standalone_module::module()?;
    let (release, unpacked, busybox) = kfd_vm::newest()?;
    ensure!(built_for == release, "the module is for Linux {built_for}, to start is {release}");
    let programs = programs(&source::apply()?, &busybox)?;
    let stock = VmTest {
        name: "stock",
        script: calls("stock"),
        proof: "",
        wanted: CALLS_WANTED.to_vec(),
        patience: PATIENCE,
    };
    stock.run(&programs, &unpacked)?;
    let patched = VmTest {
        name: "patched",
        script: calls("patched") + NODE,
        proof: "",
        wanted: [CALLS_WANTED, NODE_WANTED].concat(),
        patience: 2 * PATIENCE,
    };
    patched.run(&programs, &with_module(&unpacked, &module)?)
}

/// The modules with the patched amdgpu instead of Debian's.
fn with_module(unpacked: &Unpacked, module: &Path) -> anyhow::Result<Unpacked> {
    let folder = folder().join("vm/modules");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let is_amdgpu = |path: &PathBuf| path.to_string_lossy().ends_with("-amdgpu.ko");
    let place = unpacked.modules.iter().position(is_amdgpu).context("there is no amdgpu.ko")?;
    let mut modules = unpacked.modules.clone();
    // Under the name of the replaced one: names determine the order.
    modules[place] = folder.join(modules[place].file_name().unwrap_or_default());
    strip(module, &modules[place])?;
    Ok(Unpacked { image: unpacked.image.clone(), modules })
}

pub(super) fn strip(module: &Path, to: &Path) -> anyhow::Result<()> {
    let mut strip = Command::new("strip");
    run_to_success(strip.args(["--strip-debug", "-o"]).arg(to).arg(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_failed_and_missing_lines() {
        let good = "fuzz: 100000 calls\n120 checks, 0 failures\ncalls 0\nunload 0\nlog 1\nexit 0\n";
        assert_eq!(troubles(good, CALLS_WANTED).count(), 0);
        assert_eq!(troubles(good, NODE_WANTED).count(), 3);
        let bad = "FAILED number: 25, not 22\ncalls 1\n[ 3.1] WARNING: CPU: 1\nlog 0\nexit 0\n";
        let found: Vec<&str> = troubles(bad, CALLS_WANTED).collect();
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found.contains(&"cannot unload") && found.contains(&"calls failed"));
    }
}
