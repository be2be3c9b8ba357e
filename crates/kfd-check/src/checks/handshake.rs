//! A process with a debugger waits for it when its runtime begins and ends.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::door::Door;
use gpreempt_device::amd::session::Session;
use rustix::pipe::{PipeFlags, pipe_with};

use super::session::door;
use crate::actor::{Actor, Whose};
use crate::machine::Machine;
use crate::tracing::{traced, untouched, wait_until};
use crate::verdict::{Verdict, same};

/// How long a process that waits is watched waiting.
const WATCHED: Duration = Duration::from_millis(300);

/// Without an answer it waits, at both ends; so what our sessions do about it is needed.
pub(super) fn the_kernel_waits(machine: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let (door, pid) = (&*machine.door, target.pid());
    let (events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    traced(door, pid, || door.enable(pid, Exceptions::WANTED, writer.as_fd()))??;
    for question in ["begin", "end"] {
        target.tell(question)?;
        wait_until("the question", || rustix::io::read(&events, &mut [0; 8]).is_ok())?;
        target.is_silent(WATCHED)?;
        let answered = traced(door, pid, || {
            let info = door.runtime_info(pid)?;
            door.send_runtime_event(pid)?;
            Ok::<_, rustix::io::Errno>(info)
        })??;
        target.hears("ok")?;
        same(question, answered.state, u32::from(question == "begin"))?;
    }
    traced(door, pid, || door.disable(pid))??;
    target.does("begin")
}

/// A process starts and ends under a session that is looked after.
pub(super) fn start_and_exit(_: &Machine) -> Verdict {
    for has_end in [true, false] {
        let mut target = Actor::target()?;
        let debugger = Actor::debugger_of(&target)?;
        target.does("begin")?;
        if has_end {
            target.does("end")?;
        }
        untouched(target.pid())?;
        target.leave()?;
        debugger.leave()?;
    }
    Ok(())
}

/// Any number of starts and ends, as fast as a process can.
pub(super) fn restarts(_: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let mut debugger = Actor::debugger_of(&target)?;
    for _ in 0..5 {
        target.does("restart")?;
    }
    debugger.does("suspend 0")?;
    debugger.does("detach")?;
    target.does("restart")?;
    target.leave()
}

/// A debugger that answers nothing has answered in advance.
pub(super) fn deaf(_: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let mut debugger = Actor::start(&["debugger", "--deaf"], Whose::Root)?;
    debugger.does(&format!("attach {}", target.pid()))?;
    target.does("begin")?;
    target.does("end")?;
    target.does("begin")?;
    debugger.does("detach")?;
    target.does("end")
}

/// It is killed when a question has been asked that it has not answered.
pub(super) fn killed_in_between(_: &Machine) -> Verdict {
    for questions in [&["begin"][..], &["begin", "end"]] {
        let mut target = Actor::target()?;
        let mut debugger = Actor::start(&["debugger", "--deaf"], Whose::Root)?;
        debugger.does(&format!("attach {}", target.pid()))?;
        for question in questions {
            target.tell(question)?;
        }
        // Long enough for the last question to be asked.
        thread::sleep(WATCHED);
        debugger.kill()?;
        for _ in questions {
            target.hears("ok")?;
        }
        untouched(target.pid())?;
        target.does(if questions.len() == 1 { "end" } else { "begin" })?;
        target.leave()?;
    }
    Ok(())
}

/// It is killed at several moments while a process asks one question after the other.
pub(super) fn killed_while_restarting(_: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    for moment in 0..12 {
        let mut debugger = Actor::debugger_of(&target)?;
        target.tell("restart")?;
        thread::sleep(Duration::from_micros(700 * moment));
        debugger.kill()?;
        target.hears("ok")?;
        untouched(target.pid())?;
    }
    target.leave()
}

/// Who waits for a debugger that is gone, and was not one of ours, is freed by ours.
pub(super) fn next_frees(machine: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let mut rude = Actor::start(&["debugger", "--deaf"], Whose::Root)?;
    rude.does(&format!("debug {}", target.pid()))?;
    target.tell("begin")?;
    target.is_silent(WATCHED)?;
    rude.kill()?;
    target.is_silent(WATCHED)?;
    untouched(target.pid())?;
    let session = Session::attach(door(machine), target.pid())?;
    target.hears("ok")?;
    session.detach()?;
    target.does("end")?;
    target.leave()
}
