//! Users without rights, and the kernel's setting for tracing (Yama).

use std::fs;

use gpreempt_device::amd::session::Session;
use gpreempt_device::amd::site::SiteName;

use super::door::is_open_to_users;
use super::session::door;
use crate::actor::{Actor, Whose};
use crate::machine::Machine;
use crate::tracing::untouched;
use crate::verdict::{Verdict, failed, says, skipped};

const SETTING: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// A setting, until this is dropped.
pub(super) struct Yama {
    before: String,
}

impl Yama {
    /// Sets it, if it is not so already.
    pub(super) fn set(machine: &Machine, scope: u32) -> Verdict<Self> {
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
        // 3 stays, whatever is written.
        let _ = fs::write(SETTING, &self.before);
    }
}

/// A user without rights controls a process of their own.
pub(super) fn own_process(machine: &Machine) -> Verdict {
    is_open_to_users()?;
    let _setting = Yama::set(machine, 0)?;
    let mut target = Actor::start(&["target"], Whose::User)?;
    target.does("begin")?;
    let mut user = Actor::start(&["debugger"], Whose::User)?;
    user.does(&format!("attach {}", target.pid()))?;
    untouched(target.pid())?;
    user.does("suspend 0")?;
    target.does("end")?;
    user.does("detach")?;
    target.leave()
}

/// But not those of others.
pub(super) fn processes_of_others(machine: &Machine) -> Verdict {
    is_open_to_users()?;
    let _setting = Yama::set(machine, 0)?;
    let target = Actor::running_target()?;
    let answer = refusal_of(Whose::User, &target)?;
    says(&answer, &["may not be controlled", "only one's own processes", "as root"])
}

/// Only one's own children.
pub(super) fn yama_1(machine: &Machine) -> Verdict {
    users_sentence(machine, 1, &["only one's own children", "kernel.yama.ptrace_scope=0"])
}

/// Only for the administrator.
pub(super) fn yama_2(machine: &Machine) -> Verdict {
    users_sentence(machine, 2, &["only root may trace", "run this as root"])?;
    let _setting = Yama::set(machine, 2)?;
    let target = Actor::running_target()?;
    Session::attach(door(machine), target.pid())?.detach()?;
    Ok(())
}

/// For nobody, until the machine starts anew.
pub(super) fn yama_3(machine: &Machine) -> Verdict {
    machine.changes()?;
    let _setting = Yama::set(machine, 3)?;
    let target = Actor::target()?;
    match Session::attach(door(machine), target.pid()) {
        Err(error) => says(&error.to_string(), &["ptrace_scope is 3", "reboot"])?,
        Ok(_) => return failed("a process was traced all the same"),
    }
    untouched(target.pid())?;
    let findings = gpreempt_device::amd::probe::look(&SiteName::Kernel);
    let text = format!("{findings:?}");
    says(&text, &["no process can be traced"])
}

fn users_sentence(machine: &Machine, scope: u32, words: &[&str]) -> Verdict {
    is_open_to_users()?;
    let _setting = Yama::set(machine, scope)?;
    let target = Actor::start(&["target"], Whose::User)?;
    says(&refusal_of(Whose::User, &target)?, words)
}

/// What somebody is told who wants a session with a process.
fn refusal_of(whose: Whose, target: &Actor) -> Verdict<String> {
    let mut debugger = Actor::start(&["debugger"], whose)?;
    let answer = debugger.ask(&format!("attach {}", target.pid()))?;
    untouched(target.pid())?;
    Ok(answer)
}
