//! The list of checks, and the checks of the kernel's log, of kernels without sessions and of
//! `gpreempt doctor`.

mod backend;
mod death;
mod file_access;
mod handshake;
mod permission;
mod session;

use std::fs;

use gpreempt_device::amd::abi::version::Version;
use gpreempt_device::amd::kfd_instance::KfdLocation;
use gpreempt_device::amd::probe::{Finding, KfdPaths, Privileges, look, report};
use gpreempt_device::amd::session::DebugSession;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::child::ChildProcess;
use crate::outcome::{CheckResult, failed, same, says, skipped, untouched};
use crate::{Machine, report};

#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Machine) -> CheckResult,
}

const fn check(name: &'static str, run: fn(&Machine) -> CheckResult) -> Check {
    Check { name, run }
}

/// On every kernel.
const ALWAYS: &[Check] = &[
    check("version", file_access::version),
    check("borrowed-file-is-useless", file_access::borrowed),
    check("inherited-file-is-useless", file_access::inherited),
    check("unknown-calls-are-refused", file_access::unknown_calls),
    check("pause-needs-a-tracer", file_access::pause_needs_a_tracer),
    check("pause-needs-rights", file_access::pause_needs_rights),
    check("pause-by-the-journal", file_access::pause_by_the_journal),
    check("no-queue-without-a-device", file_access::no_queue_without_a_device),
    check("findings", findings),
    check("findings-of-a-user", findings_of_a_user),
    check("debugfs-not-mounted", debugfs_not_mounted),
    check("debugfs-mounted", debugfs_mounted),
];

/// On kernels with debug sessions.
const SESSIONS: &[Check] = &[
    check("attach-without-stopping", session::attach),
    check("calls-from-any-thread", session::any_thread),
    check("unknown-queues-are-marked", session::unknown_queues),
    check("no-calls-without-a-session", session::without_a_session),
    check("no-suspending-without-a-runtime", session::without_a_runtime),
    check("one-session-at-a-time", session::twice),
    check("another-debugger-is-named", session::another_debugger),
    check("a-tracer-is-named", session::another_tracer),
    check("a-refused-debugger-does-no-harm", session::refused_debugger),
    check("bad-file-for-events", session::bad_file),
    check("a-process-debugs-itself", session::itself),
    check("an-ended-process-is-refused", session::ended_process),
    check("the-kernel-waits-for-an-answer", handshake::the_kernel_waits),
    check("start-and-exit-under-a-session", handshake::start_and_exit),
    check("restarts-under-a-session", handshake::restarts),
    check("start-beside-a-debugger-that-ignores-events", handshake::ignore_events),
    check("killed-between-question-and-answer", handshake::killed_in_between),
    check("killed-while-the-target-restarts", handshake::killed_while_restarting),
    check("the-next-debugger-frees-who-waits", handshake::next_frees),
    check("death-ends-the-session", death::of_the_debugger),
    check("death-at-any-moment", death::at_any_moment),
    check("target-dies", death::of_the_target),
    check("target-dies-mid-call", death::mid_call),
    check("target-leaves", death::target_leaves),
    check("backend-adopts-and-releases", backend::adopts),
    check("backend-sees-the-end", backend::sees_the_end),
    check("user-controls-own-process", permission::own_process),
    check("user-is-kept-from-others", permission::processes_of_others),
    check("yama-1", permission::yama_1),
    check("yama-2", permission::yama_2),
];

/// On kernels without.
const REFUSALS: &[Check] = &[
    check("attach-is-refused", attach),
    check("runtime-is-refused", runtime),
    check("backend-says-why", backend::says_why),
];

/// Last: a setting that cannot be changed back, and the log of all checks.
const LAST: &[Check] = &[check("yama-3", permission::yama_3), check("kernel-log", is_clean)];

/// The checks for this machine.
pub(crate) fn of(machine: &Machine) -> Vec<Check> {
    let middle = if machine.has_sessions() { SESSIONS } else { REFUSALS };
    [ALWAYS, middle, LAST].concat()
}

/// The log has no warnings, oopses or hung tasks.
pub(super) fn is_clean(_: &Machine) -> CheckResult {
    let bad = report::troubles(&report::read()?);
    if bad.is_empty() { Ok(()) } else { failed(bad.join("; ")) }
}

/// A session is refused with a message, and nothing changes.
pub(super) fn attach(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    match DebugSession::attach(session::kfd(machine), target.pid()) {
        Err(error) => says(&error.to_string(), &["no interface to suspend queues", "Linux 6.5"])?,
        Ok(_) => return failed("there is a session"),
    }
    untouched(target.pid())?;
    target.does("version")?;
    target.leave()
}

/// The kernel has no call to register a runtime.
pub(super) fn runtime(_: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let refused = format!("errno {}", Errno::NOTTY.raw_os_error());
    same("begin", target.ask("begin")?, refused)?;
    target.leave()
}

const DEBUGFS: &str = "/sys/kernel/debug";

/// The findings contain the version, the privileges and whether there is a GPU.
pub(super) fn findings(machine: &Machine) -> CheckResult {
    let findings = look(&KfdLocation::Kernel);
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

/// An unprivileged user gets other findings on the same kernel.
pub(super) fn findings_of_a_user(machine: &Machine) -> CheckResult {
    let privileges = Privileges { capabilities: 0, yama: 2 };
    let findings = report(&*machine.kfd, privileges, &KfdPaths::default());
    has(&findings, false, &["ptrace_scope is 2", "as root"])
}

/// Without debugfs a finding tells how to mount it.
pub(super) fn debugfs_not_mounted(_: &Machine) -> CheckResult {
    if is_mounted() {
        return skipped("debugfs is mounted here");
    }
    has(&look(&KfdLocation::Kernel), false, &["mqds is not there", "mount -t debugfs"])
}

/// With debugfs the file exists and is readable.
pub(super) fn debugfs_mounted(machine: &Machine) -> CheckResult {
    if !is_mounted() {
        machine.changes()?;
        mount("debugfs", DEBUGFS, "debugfs", MountFlags::empty(), None)?;
    }
    has(&look(&KfdLocation::Kernel), true, &["(debugfs)"])?;
    let dump = fs::read(KfdPaths::default().debugfs.join("mqds"))?;
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

/// Whether a finding with this result contains these words.
fn has(findings: &[Finding], ok: bool, words: &[&str]) -> CheckResult {
    let same_kind = findings.iter().filter(|finding| finding.ok == ok);
    if same_kind.clone().any(|finding| says(&finding.what, words).is_ok()) {
        return Ok(());
    }
    failed(format!("no finding says {words:?}: {findings:?}"))
}
