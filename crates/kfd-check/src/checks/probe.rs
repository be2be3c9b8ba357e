//! What `gpreempt doctor` says about this kernel.

use std::fs;

use gpreempt_device::amd::abi::version::Version;
use gpreempt_device::amd::probe::{Finding, Places, Powers, look, report};
use gpreempt_device::amd::site::SiteName;
use rustix::mount::{MountFlags, mount};

use crate::machine::Machine;
use crate::verdict::{Verdict, failed, same, says, skipped};

/// Where debugfs belongs.
const DEBUGFS: &str = "/sys/kernel/debug";

/// The findings say what the version can do, that we may, and whether there is a GPU.
pub(super) fn findings(machine: &Machine) -> Verdict {
    let findings = look(&SiteName::Kernel);
    let version = format!("KFD {}", machine.version);
    let can = machine.version >= Version::DEBUG;
    let words = if can { "can suspend single queues" } else { "cannot suspend single queues" };
    has(&findings, can, &[&version, words])?;
    has(&findings, true, &["processes of all users can be traced"])?;
    if !can {
        has(&findings, true, &["whole processes can be paused"])?;
    }
    if !machine.has_gpu {
        has(&findings, false, &["KFD runs but has no GPU", "dmesg"])?;
    }
    Ok(())
}

/// Somebody without rights is told so, by the same kernel.
pub(super) fn findings_of_a_user(machine: &Machine) -> Verdict {
    let powers = Powers { capabilities: 0, yama: 2 };
    let findings = report(&*machine.door, powers, &Places::default());
    has(&findings, false, &["ptrace_scope is 2", "as root"])
}

/// Without debugfs something is not shown, and it says how to get it.
pub(super) fn debugfs_not_mounted(_: &Machine) -> Verdict {
    if is_mounted() {
        return skipped("debugfs is mounted here");
    }
    has(&look(&SiteName::Kernel), false, &["mqds is not there", "mount -t debugfs"])
}

/// With it, the file is there and readable.
pub(super) fn debugfs_mounted(machine: &Machine) -> Verdict {
    if !is_mounted() {
        machine.changes()?;
        mount("debugfs", DEBUGFS, "debugfs", MountFlags::empty(), None)?;
    }
    has(&look(&SiteName::Kernel), true, &["(debugfs)"])?;
    let dump = fs::read(Places::default().debugfs.join("mqds"))?;
    let queues = gpreempt_device::amd::queue::Dump::parse(&dump);
    if machine.has_gpu {
        return Ok(());
    }
    same("processes with queues", queues.processes.iter().any(|one| !one.queues.is_empty()), false)
}

fn is_mounted() -> bool {
    fs::read_to_string("/proc/mounts")
        .is_ok_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(1) == Some(DEBUGFS)))
}

/// Whether one of the findings is as good as expected and has these words.
fn has(findings: &[Finding], ok: bool, words: &[&str]) -> Verdict {
    let same_kind = findings.iter().filter(|finding| finding.ok == ok);
    if same_kind.clone().any(|finding| says(&finding.what, words).is_ok()) {
        return Ok(());
    }
    failed(format!("no finding says {words:?}: {findings:?}"))
}
