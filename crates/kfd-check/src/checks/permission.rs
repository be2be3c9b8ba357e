//! Unprivileged users, and the kernel's setting for tracing (Yama).

use std::fs;

use gpreempt_device::amd::kfd_instance::KfdLocation;
use gpreempt_device::amd::session::DebugSession;

use super::file_access::is_open_to_users;
use super::session::kfd;
use crate::Machine;
use crate::child::{ChildProcess, ChildUser};
use crate::outcome::{CheckResult, failed, says, skipped, untouched};

const SETTING: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Restores the setting when dropped.
pub(super) struct Yama {
    before: String,
}

impl Yama {
    pub(super) fn set(machine: &Machine, scope: u32) -> CheckResult<Self> {
        let Ok(before) = fs::read_to_string(SETTING) else {
            return skipped("this kernel has no Yama");
        };
        if before.trim() != scope.to_string() {
            machine.changes()?;
            fs::write(SETTING, scope.to_string())?;
        }
        Ok(Self { before })
    }
}

impl Drop for Yama {
    fn drop(&mut self) {
        // 3 cannot be changed back.
        let _ = fs::write(SETTING, &self.before);
    }
}

/// An unprivileged user controls a process of their own.
pub(super) fn own_process(machine: &Machine) -> CheckResult {
    is_open_to_users()?;
    let _setting = Yama::set(machine, 0)?;
    let mut target = ChildProcess::start(&["target"], ChildUser::User)?;
    target.does("begin")?;
    let mut user = ChildProcess::start(&["debugger"], ChildUser::User)?;
    user.does(&format!("attach {}", target.pid()))?;
    untouched(target.pid())?;
    user.does("suspend 0")?;
    target.does("end")?;
    user.does("detach")?;
    target.leave()
}

/// An unprivileged user cannot control processes of other users.
pub(super) fn processes_of_others(machine: &Machine) -> CheckResult {
    is_open_to_users()?;
    let _setting = Yama::set(machine, 0)?;
    let target = ChildProcess::running_target()?;
    let answer = refusal_of(ChildUser::User, &target)?;
    says(&answer, &["may not be controlled", "only one's own processes", "as root"])
}

/// Only a process's own children may be traced.
pub(super) fn yama_1(machine: &Machine) -> CheckResult {
    users_sentence(machine, 1, &["only one's own children", "kernel.yama.ptrace_scope=0"])
}

/// Only root may trace.
pub(super) fn yama_2(machine: &Machine) -> CheckResult {
    users_sentence(machine, 2, &["only root may trace", "run this as root"])?;
    let _setting = Yama::set(machine, 2)?;
    let target = ChildProcess::running_target()?;
    DebugSession::attach(kfd(machine), target.pid())?.detach()?;
    Ok(())
}

/// No process may be traced until a reboot.
pub(super) fn yama_3(machine: &Machine) -> CheckResult {
    machine.changes()?;
    let _setting = Yama::set(machine, 3)?;
    let target = ChildProcess::target()?;
    match DebugSession::attach(kfd(machine), target.pid()) {
        Err(error) => says(&error.to_string(), &["ptrace_scope is 3", "reboot"])?,
        Ok(_) => return failed("a process was traced all the same"),
    }
    untouched(target.pid())?;
    let findings = gpreempt_device::amd::probe::look(&KfdLocation::Kernel);
    let text = format!("{findings:?}");
    says(&text, &["no process can be traced"])
}

fn users_sentence(machine: &Machine, scope: u32, words: &[&str]) -> CheckResult {
    is_open_to_users()?;
    let _setting = Yama::set(machine, scope)?;
    let target = ChildProcess::start(&["target"], ChildUser::User)?;
    says(&refusal_of(ChildUser::User, &target)?, words)
}

fn refusal_of(user: ChildUser, target: &ChildProcess) -> CheckResult<String> {
    let mut debugger = ChildProcess::start(&["debugger"], user)?;
    let answer = debugger.ask(&format!("attach {}", target.pid()))?;
    untouched(target.pid())?;
    Ok(answer)
}
