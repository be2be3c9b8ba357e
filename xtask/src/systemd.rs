//! `cargo xtask systemd`: the Debian package under a real systemd, in a virtual machine.
//!
//! A small Debian is put into a folder, the package is installed there, and the whole is a
//! machine's file system in memory. What is tried is in `deploy/test_systemd.sh`. What was fetched
//! stays in `target/systemd-vm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::args::Syntax;
use crate::dist;
use crate::kfd_vm;
use crate::packages::{self, Package};
use crate::process::{repository_root, run_to_success};
use crate::step::Outcome;

/// What it takes beside a kernel.
const PACKAGES: &[Package] = &[package("debootstrap", "debootstrap"), package("cpio", "cpio")];

const fn package(name: &'static str, program: &'static str) -> Package {
    Package { name, program, needed_by: "the test with a real systemd" }
}

/// The Debian in the machine.
const SUITE: &str = "bookworm";

/// The first thing that the machine does.
const TEST_UNIT: &str = "\
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStart=/test_systemd.sh
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
";

/// What only takes time there.
const MASKED: &[&str] = &[
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "getty.target",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
];

/// What is not needed there, and would take half of its memory.
const SUPERFLUOUS: &[&str] = &[
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
    "var/cache/apt",
    "var/lib/apt/lists",
];

/// Tries it and says how it went.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    Syntax::NONE.parse(args)?;
    match check() {
        Outcome::Failed(reason) => anyhow::bail!(reason),
        Outcome::Skipped(reason) => println!("SKIPPED: {reason}"),
        Outcome::Passed | Outcome::PassedAgain(_) => {}
    }
    Ok(true)
}

/// The same, as a step of the tests.
pub(crate) fn check() -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Outcome::Skipped("the machine is for x86_64, and this is another".to_owned());
    }
    for package in PACKAGES {
        if !package.is_installed() {
            packages::install_one(*package);
        }
        if !package.is_installed() {
            return Outcome::Skipped(package.is_missing());
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Outcome::Skipped("only root can put a Debian into a folder".to_owned());
    }
    let (_, kernel, _) = match kfd_vm::newest() {
        Ok(kernel) => kernel,
        Err(error) => return Outcome::Skipped(format!("there is no kernel: {error:#}")),
    };
    let folder = repository_root().join("target/systemd-vm");
    let base = match base(&folder) {
        Ok(base) => base,
        Err(error) => return Outcome::Skipped(format!("there is no Debian: {error:#}")),
    };
    match dist::debian_package() {
        Ok(Some(package)) => Outcome::of(run(&kernel.image, &base, &package, &folder)),
        Ok(None) => Outcome::Skipped("no Debian package can be made here".to_owned()),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// A Debian with nothing of ours in it. Where that does not work, nothing is known to be wrong.
fn base(folder: &Path) -> anyhow::Result<PathBuf> {
    let base = folder.join("base");
    if base.is_dir() {
        return Ok(base);
    }
    fs::create_dir_all(folder)?;
    // Only what is whole gets the name.
    let partial = folder.join("partial");
    remove(&partial)?;
    let mut debootstrap = Command::new("timeout");
    debootstrap.args(["600", "debootstrap", "--variant=minbase"]);
    debootstrap.args(["--include=systemd,systemd-sysv", SUITE]).arg(&partial);
    run_to_success(debootstrap.stdout(std::process::Stdio::null()))?;
    fs::rename(&partial, &base)?;
    Ok(base)
}

fn run(image: &Path, base: &Path, package: &Path, folder: &Path) -> anyhow::Result<()> {
    let (root, files) = (folder.join("root"), folder.join("initramfs.cpio"));
    remove(&root)?;
    run_to_success(Command::new("cp").arg("--archive").arg(base).arg(&root))?;
    furnish(&root, package)?;
    let mut pack = Command::new("sh");
    pack.args(["-c", "cd \"$0\" && find . -xdev | cpio --create --format=newc --quiet >\"$1\""]);
    run_to_success(pack.arg(&root).arg(&files))?;
    let said = kfd_vm::boot(image, &files, folder, kfd_vm::PATIENCE);
    fs::remove_file(&files)?;
    remove(&root)?;
    let said = said?;
    println!("{said}");
    ensure!(said.lines().any(|line| line == "exit 0"), "a check failed; see above");
    Ok(())
}

/// Installs the package and what tries it.
fn furnish(root: &Path, package: &Path) -> anyhow::Result<()> {
    let inside = |program: &str| {
        let mut command = Command::new("chroot");
        command.arg(root).arg(program).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    fs::copy(package, root.join("gpreempt.deb"))?;
    run_to_success(inside("dpkg").args(["--install", "/gpreempt.deb"]))?;
    fs::remove_file(root.join("gpreempt.deb"))?;
    for name in SUPERFLUOUS {
        remove(&root.join(name))?;
    }
    let script = repository_root().join("deploy/test_systemd.sh");
    fs::copy(&script, root.join("test_systemd.sh")).context("cannot copy the script")?;
    fs::write(root.join("etc/systemd/system/test.service"), TEST_UNIT)?;
    run_to_success(inside("systemctl").args(["--quiet", "enable", "test.service"]))?;
    run_to_success(inside("systemctl").args(["--quiet", "mask"]).args(MASKED))?;
    run_to_success(inside("systemctl").args(["--quiet", "set-default", "multi-user.target"]))?;
    std::os::unix::fs::symlink("/sbin/init", root.join("init"))?;
    Ok(())
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}
