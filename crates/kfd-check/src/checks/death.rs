//! The end of a debugger or a process leaves nothing behind.

use std::thread;
use std::time::Duration;

use gpreempt_device::amd::session::{DebugSession, SessionError};

use super::session::kfd;
use crate::Machine;
use crate::child::{ChildProcess, ChildUser};
use crate::outcome::{CheckResult, failed, says, untouched, wait_until};

/// After a debugger was killed another session is possible.
pub(super) fn of_the_debugger(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let mut debugger = ChildProcess::debugger_of(&target)?;
    debugger.does("suspend 0")?;
    debugger.kill()?;
    untouched(target.pid())?;
    let mut session = DebugSession::attach(kfd(machine), target.pid())?;
    session.queues()?;
    target.does("end")?;
    session.detach()?;
    target.leave()
}

/// The debugger is killed at several moments while it starts a session.
pub(super) fn at_any_moment(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    for moment in 0..12 {
        let mut debugger = ChildProcess::start(&["debugger"], ChildUser::Root)?;
        debugger.tell(&format!("attach {}", target.pid()))?;
        thread::sleep(Duration::from_micros(400 * moment));
        debugger.kill()?;
        untouched(target.pid())?;
        DebugSession::attach(kfd(machine), target.pid())?.detach()?;
        target.does("version")?;
    }
    target.does("end")?;
    target.leave()
}

/// The session of a killed process ends.
pub(super) fn of_the_target(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let mut session = DebugSession::attach(kfd(machine), target.pid())?;
    target.kill()?;
    is_over(&mut session)
}

/// The session of a process that exits ends.
pub(super) fn target_leaves(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let mut session = DebugSession::attach(kfd(machine), target.pid())?;
    target.leave()?;
    is_over(&mut session)
}

/// A process is killed while its debugger makes calls.
pub(super) fn mid_call(_: &Machine) -> CheckResult {
    for moment in 0..4 {
        let mut target = ChildProcess::running_target()?;
        let mut debugger = ChildProcess::debugger_of(&target)?;
        debugger.does("hammer")?;
        thread::sleep(Duration::from_millis(3 * moment));
        target.kill()?;
        says(&debugger.answer()?, &["ended: ", "no longer under control"])?;
        debugger.leave()?;
    }
    Ok(())
}

fn is_over(session: &mut DebugSession) -> CheckResult {
    let cell = std::cell::RefCell::new(session);
    wait_until("the end of the session", || {
        cell.borrow_mut().handle_events().is_ok_and(|happened| happened.is_over)
    })?;
    match cell.into_inner().suspend(&[0], 0) {
        Err(SessionError::Over(_)) => Ok(()),
        result => failed(format!("suspend: {result:?}")),
    }
}
