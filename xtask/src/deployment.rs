//! `cargo xtask slurm` and `cargo xtask systemd`: the programs where they are deployed.
//!
//! Slurm: a real cluster of one node whose jobs compete for an emulated GPU. systemd: a small
//! Debian in a folder, with the package installed, is the file system of a virtual machine; the
//! checks are in `deploy/test_systemd.sh`, and downloads stay in `target/systemd-vm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::packages::{self, Package};
use crate::process::{build_programs, remove_folder, repository_root, run, run_to_success};
use crate::step::Outcome;
use crate::{dist, kfd_vm};

/// What the script ends with when it could not run; it has said why.
const SKIPPED: i32 = 77;

pub(crate) fn check_slurm() -> Outcome {
    match cluster() {
        Ok(Some(0)) => Outcome::Passed,
        Ok(Some(SKIPPED)) => Outcome::Skipped("Slurm is missing; see above".to_owned()),
        Ok(Some(code)) => Outcome::Failed(format!("test_cluster.sh ended with {code}")),
        Ok(None) => Outcome::Failed("test_cluster.sh was killed".to_owned()),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Builds the programs and runs the script. The answer is its exit code.
fn cluster() -> anyhow::Result<Option<i32>> {
    let folder = build_programs()?;
    // The script bounds every wait; this bounds the script.
    let mut command = Command::new("timeout");
    command.args(["400", "deploy/slurm/test_cluster.sh"]).arg(folder);
    Ok(run(&mut command)?.code())
}

/// The packages that are needed beside a kernel.
const PACKAGES: &[Package] = &[package("debootstrap", "debootstrap"), package("cpio", "cpio")];

const fn package(name: &'static str, program: &'static str) -> Package {
    Package { name, program, needed_by: "the test with a real systemd" }
}

const SUITE: &str = "bookworm";

/// The unit that runs the test in the machine.
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

/// Units that only take time in the machine.
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

/// Folders that the machine does not need, and that would take half of its memory.
const SUPERFLUOUS: &[&str] = &[
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
    "var/cache/apt",
    "var/lib/apt/lists",
];

pub(crate) fn check_systemd() -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Outcome::Skipped("the machine is for x86_64, and this is another".to_owned());
    }
    if let Err(missing) = packages::provide(PACKAGES) {
        return Outcome::Skipped(missing.to_string());
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
        Ok(Some(package)) => Outcome::of(run_machine(&kernel.image, &base, &package, &folder)),
        Ok(None) => Outcome::Skipped("no Debian package can be made here".to_owned()),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// A Debian without gpreempt. If it cannot be made, the test is skipped.
fn base(folder: &Path) -> anyhow::Result<PathBuf> {
    let base = folder.join("base");
    if base.is_dir() {
        return Ok(base);
    }
    fs::create_dir_all(folder)?;
    // Only what is whole gets the name.
    let partial = folder.join("partial");
    remove_folder(&partial)?;
    let mut debootstrap = Command::new("timeout");
    debootstrap.args(["600", "debootstrap", "--variant=minbase"]);
    debootstrap.args(["--include=systemd,systemd-sysv", SUITE]).arg(&partial);
    run_to_success(debootstrap.stdout(std::process::Stdio::null()))?;
    fs::rename(&partial, &base)?;
    Ok(base)
}

fn run_machine(image: &Path, base: &Path, package: &Path, folder: &Path) -> anyhow::Result<()> {
    let (root, files) = (folder.join("root"), folder.join("initramfs.cpio"));
    remove_folder(&root)?;
    run_to_success(Command::new("cp").arg("--archive").arg(base).arg(&root))?;
    furnish(&root, package)?;
    let mut pack = Command::new("sh");
    pack.args(["-c", "cd \"$0\" && find . -xdev | cpio --create --format=newc --quiet >\"$1\""]);
    run_to_success(pack.arg(&root).arg(&files))?;
    let said = kfd_vm::boot(image, &files, folder, kfd_vm::PATIENCE);
    fs::remove_file(&files)?;
    remove_folder(&root)?;
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
    dist::make_older(package, &root.join("older.deb"))?;
    run_to_success(inside("dpkg").args(["--install", "/gpreempt.deb"]))?;
    for name in SUPERFLUOUS {
        remove_folder(&root.join(name))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION_PRIORITY: &str = "2";

    /// What the prolog notes for a job with that comment. It runs in a folder with a file that a
    /// pattern would find.
    fn noted(comment: &str, job: &str) -> Option<String> {
        let folder = gpreempt_stage::WorkFolder::new("prolog").unwrap();
        let path = |name: &str| folder.path(name);
        fs::create_dir(path("here")).unwrap();
        fs::write(path("here/gpreempt=9"), "").unwrap();
        fs::write(path("partitions"), format!("batch {PARTITION_PRIORITY}\n")).unwrap();
        let mut command = Command::new("timeout");
        command
            .args(["20", "sh"])
            .arg(repository_root().join("deploy/slurm/prolog.sh"))
            .current_dir(path("here"))
            .env("GPREEMPT_SLURM_NOTES", path("notes"))
            .env("GPREEMPT_SLURM_PARTITIONS", path("partitions"))
            .env("SLURM_JOB_PARTITION", "batch")
            .env("SLURM_JOB_COMMENT", comment)
            .env("SLURM_JOB_ID", job);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{comment}: {output:?}");
        let note = fs::read_to_string(path("notes").join(job)).ok()?;
        Some(note.trim_end().to_owned())
    }

    #[test]
    fn the_prolog_reads_a_comment_and_expands_no_pattern_of_it() {
        assert_eq!(noted("nightly gpreempt=4", "7").as_deref(), Some("4"));
        let long = format!("{} gpreempt=4", "x ".repeat(3000));
        for comment in ["*", "gpreempt=*", "gpre*", "/*/*/*/*/*/*/*", "gpreempt=$(id)", &long] {
            assert_eq!(noted(comment, "7").as_deref(), Some(PARTITION_PRIORITY), "{comment}");
        }
        assert_eq!(noted("/*/*/*/*/*/*/* gpreempt=4", "7").as_deref(), Some("4"));
    }

    #[test]
    fn the_prolog_refuses_a_job_number_that_is_a_path() {
        for job in ["", "../evil", "7x"] {
            assert_eq!(noted("gpreempt=4", job), None, "{job}");
        }
    }
}
