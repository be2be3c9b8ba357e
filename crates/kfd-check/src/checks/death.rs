//! Nobody's death leaves anything behind.

use std::thread;
use std::time::Duration;

use gpreempt_device::amd::session::{Session, SessionError};

use super::session::door;
use crate::actor::{Actor, Whose};
use crate::machine::Machine;
use crate::tracing::{untouched, wait_until};
use crate::verdict::{Verdict, failed, says};

/// A debugger is killed: its session is over, and there is a place for another.
pub(super) fn of_the_debugger(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let mut debugger = Actor::debugger_of(&target)?;
    debugger.does("suspend 0")?;
    debugger.kill()?;
    untouched(target.pid())?;
    let mut session = Session::attach(door(machine), target.pid())?;
    session.queues()?;
    target.does("end")?;
    session.detach()?;
    target.leave()
}

/// Killed while it begins a session, at several moments of that.
pub(super) fn at_any_moment(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    for moment in 0..12 {
        let mut debugger = Actor::start(&["debugger"], Whose::Root)?;
        debugger.tell(&format!("attach {}", target.pid()))?;
        thread::sleep(Duration::from_micros(400 * moment));
        debugger.kill()?;
        untouched(target.pid())?;
        Session::attach(door(machine), target.pid())?.detach()?;
        target.does("version")?;
    }
    target.does("end")?;
    target.leave()
}

/// A process is killed: its session says so.
pub(super) fn of_the_target(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let mut session = Session::attach(door(machine), target.pid())?;
    target.kill()?;
    is_over(&mut session)
}

/// It leaves by itself, without a word.
pub(super) fn target_leaves(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let mut session = Session::attach(door(machine), target.pid())?;
    target.leave()?;
    is_over(&mut session)
}

/// A process is killed while its debugger makes one call after the other.
pub(super) fn mid_call(_: &Machine) -> Verdict {
    for moment in 0..4 {
        let mut target = Actor::running_target()?;
        let mut debugger = Actor::debugger_of(&target)?;
        debugger.does("hammer")?;
        thread::sleep(Duration::from_millis(3 * moment));
        target.kill()?;
        says(&debugger.answer()?, &["ended: ", "no longer under control"])?;
        debugger.leave()?;
    }
    Ok(())
}

fn is_over(session: &mut Session) -> Verdict {
    let cell = std::cell::RefCell::new(session);
    wait_until("the end of the session", || {
        cell.borrow_mut().handle_events().is_ok_and(|happened| happened.is_over)
    })?;
    match cell.into_inner().suspend(&[0], 0) {
        Err(SessionError::Over(_)) => Ok(()),
        result => failed(format!("suspend: {result:?}")),
    }
}
