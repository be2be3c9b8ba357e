//! What is tried in a virtual machine: programs that call, a script that runs them, and a look at
//! what came of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use super::folder;
use crate::kfd_vm::{Guest, Unpacked};
use crate::process::{repository_root, run_to_success};

/// What a kernel says that has found a fault in itself.
const TROUBLE: &str = "BUG:|WARNING:|Oops|protection fault|refcount_t:|UBSAN|KASAN|corruption|\
                       unreferenced object|INFO: task|Internal error";

/// Debugfs for the statistics, and the calls; then the module goes, which is a test too.
const CALLS: &str = "\
/bin/busybox mount -t debugfs debugfs /sys/kernel/debug
/bin/kfd-ioctl EXPECTED >/dev/ttyS1 2>&1
echo \"calls $?\" >/dev/ttyS1
/bin/busybox rmmod amdgpu
echo \"unload $?\" >/dev/ttyS1
";

/// With our module: once more with a node that has no hardware, for what needs queues.
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

/// The kernel's log, which must have nothing to say.
const LOG: &str = "\
/bin/busybox dmesg | /bin/busybox grep -E 'TROUBLE' >/dev/ttyS1
echo \"log $?\" >/dev/ttyS1
";

/// A line that must have been said, and what it means if it was not.
pub(super) type Wanted = (&'static str, &'static str);

/// What has to be said after the calls, and after those on the node.
pub(super) const CALLS_WANTED: &[Wanted] = &[
    ("calls 0", "calls failed"),
    ("unload 0", "cannot unload"),
    // That is how grep says that it found nothing.
    ("log 1", "the kernel's log was not clean, or not read"),
];
pub(super) const NODE_WANTED: &[Wanted] = &[
    ("attacks 0", "attacks succeeded"),
    ("queues 0", "calls about queues failed"),
    ("unload node 0", "cannot unload the node"),
];

/// The script for a module, of which it is known whether it is patched.
pub(super) fn calls(expected: &str) -> String {
    CALLS.replace("EXPECTED", expected)
}

/// One start of a machine.
pub(super) struct Trial {
    pub(super) name: &'static str,
    /// What is done; the kernel's log is read at its end.
    pub(super) script: String,
    /// What is done after that: it may make the log say something.
    pub(super) proof: &'static str,
    pub(super) wanted: Vec<Wanted>,
    pub(super) patience: Duration,
}

impl Trial {
    /// Starts the machine and judges what it said.
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

/// The lines that should not be there, and the words for those that are missing.
fn troubles<'a>(said: &'a str, wanted: &'a [Wanted]) -> impl Iterator<Item = &'a str> {
    let is_said = |wanted: &str| said.lines().any(|line| line == wanted);
    let missing = wanted.iter().filter(move |(line, _)| !is_said(line)).map(|(_, means)| *means);
    let bad = said.lines().filter(|line| {
        line.starts_with("FAILED") || TROUBLE.split('|').any(|word| line.contains(word))
    });
    bad.chain(missing)
}

/// Everything that runs in a machine, and what it is called there.
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

/// A program that calls, with the header as the patches leave it.
fn program(source: &Path, name: &str) -> anyhow::Result<PathBuf> {
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
        let good = "fuzz: 100000 calls\n120 checks, 0 failures\ncalls 0\nunload 0\nlog 1\nexit 0\n";
        assert_eq!(troubles(good, CALLS_WANTED).count(), 0);
        assert_eq!(troubles(good, NODE_WANTED).count(), 3);
        let bad = "FAILED number: 25, not 22\ncalls 1\n[ 3.1] WARNING: CPU: 1\nlog 0\nexit 0\n";
        let found: Vec<&str> = troubles(bad, CALLS_WANTED).collect();
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found.contains(&"cannot unload") && found.contains(&"calls failed"));
    }
}
