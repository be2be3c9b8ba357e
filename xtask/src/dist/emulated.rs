//! Programs for another kind of machine, used under qemu's user emulation.
//!
//! The kernel starts qemu for them by a rule of binfmt_misc that belongs to a user namespace, so
//! nothing of this machine is changed. That needs Linux 6.7.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::clean_root::test_script;
use super::{Packages, Skipped, image};
use crate::packages::{self, Package};
use crate::process::{capture, remove_folder};

/// A static program: it is started inside of the root, which has no libraries of this machine.
const QEMU: Package = Package {
    name: "qemu-user-static",
    program: "qemu-aarch64-static",
    needed_by: "the check of packages for aarch64",
};

/// The first bytes of a program for aarch64, and which of them count.
const MAGIC: &str = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00";
const MASK: &str =
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";

/// Uses the programs of the image for another kind of machine.
pub(super) fn check(packages: &Packages, work: &Path, skipped: &mut Skipped) -> anyhow::Result<()> {
    let what = format!("the use of programs for {}", packages.target);
    let Some(archive) = &packages.image else {
        skipped.add(&what, "there is no container image for it");
        return Ok(());
    };
    let prepared = packages::provide(&[QEMU]).and_then(|()| {
        let can = capture(&mut with_rule("true")).map(drop);
        can.context("no user namespace with a rule of binfmt_misc can be made; it needs Linux 6.7")
    });
    if skipped.take(&what, prepared).is_none() {
        return Ok(());
    }
    let root = work.join(packages.target.machine);
    remove_folder(&root)?;
    image::unpack_image(archive, &work.join("layout"), &root)?;
    let script = format!("exec bash '{}' '{}'", test_script().display(), root.display());
    let output = with_rule(&script).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    ensure!(said.lines().any(|line| line == "exit 0"), "a check failed under qemu; see above");
    println!("ok: the programs for {} work under qemu", packages.target);
    Ok(())
}

/// A shell script in namespaces in which the kernel runs programs for aarch64.
fn with_rule(script: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["300", "unshare", "--user", "--map-root-user", "--mount", "--pid", "--net"]);
    command.args(["--ipc", "--fork", "--kill-child", "sh", "-c"]);
    // With `F` the kernel opens qemu now, outside of the root.
    let rule = format!(":gpreempt-aarch64:M::{MAGIC}:{MASK}:/usr/bin/qemu-aarch64-static:F");
    let folder = "/proc/sys/fs/binfmt_misc";
    command.arg(format!(
        "set -e; mount -t binfmt_misc binfmt_misc {folder}; \
         printf '%s' '{rule}' >{folder}/register; {script}"
    ));
    command
}
