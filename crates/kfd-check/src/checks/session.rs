//! A debugger's session with a process.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::abi::trap::{QUEUE_INVALID, RuntimeState};
use gpreempt_device::amd::door::{Door, KernelDoor};
use gpreempt_device::amd::session::{Outcome, Session, SessionError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::actor::{Actor, Whose};
use crate::args::Listens;
use crate::machine::Machine;
use crate::tracing::{traced, untouched};
use crate::verdict::{Verdict, failed, same, says};

/// The door, as sessions want it.
pub(super) fn door(machine: &Machine) -> Arc<KernelDoor> {
    machine.door.clone()
}

/// A process gets a session, is never stopped, is nobody's afterwards and runs on.
pub(super) fn attach(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let mut session = Session::attach(door(machine), target.pid())?;
    untouched(target.pid())?;
    same("runtime", session.runtime(), RuntimeState::Enabled)?;
    let listens = if session.needs_tracer() { Listens::Tracer } else { Listens::Owner };
    same("whom the kernel listens to", listens, machine.expected.unwrap_or(listens))?;
    same("queues", session.queues()?.len(), 0)?;
    if !machine.has_gpu {
        same("devices", session.devices()?.len(), 0)?;
    }
    untouched(target.pid())?;
    target.does("version")?;
    session.detach()?;
    untouched(target.pid())?;
    target.does("version")?;
    // Whoever drops one has ended it as well.
    drop(Session::attach(door(machine), target.pid())?);
    Session::attach(door(machine), target.pid())?.detach()?;
    Ok(())
}

/// The thread that began it may be gone.
pub(super) fn any_thread(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let (door, pid) = (door(machine), target.pid());
    let begun = thread::spawn(move || Session::attach(door, pid)).join();
    let mut session = begun.map_err(|_| "a thread failed")??;
    for _ in 0..3 {
        let used = thread::spawn(move || {
            let listed = session.queues().and_then(|_| session.suspend(&[0], 0));
            (session, listed)
        });
        let (back, listed) = used.join().map_err(|_| "a thread failed")?;
        session = back;
        same("outcomes", listed?, vec![Outcome::Gone])?;
        untouched(pid)?;
    }
    session.detach()?;
    Ok(())
}

/// Queues that are not there are marked, one by one, and that is no error.
pub(super) fn unknown_queues(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let pid = target.pid();
    let mut session = Session::attach(door(machine), pid)?;
    let outcomes = session.suspend(&[0, 7, 4000], 0)?;
    same("suspended", outcomes, vec![Outcome::Gone; 3])?;
    same("resumed", session.resume(&[0, 7])?, vec![Outcome::Gone; 2])?;
    let mut names = [0, 7];
    let raw = traced(&*machine.door, pid, || machine.door.suspend_queues(pid, &mut names, 0))?;
    same("the call", raw, Ok(()))?;
    same("its bits", names, [QUEUE_INVALID, 7 | QUEUE_INVALID])
}

/// Without a session nothing works, and the two reasons have two numbers.
pub(super) fn without_a_session(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let (door, pid) = (&*machine.door, target.pid());
    let calls = || {
        [
            door.suspend_queues(pid, &mut [0], 0),
            door.resume_queues(pid, &mut [0]),
            door.queues(pid, Exceptions::NONE, 4).map(drop),
            door.next_event(pid, Exceptions::NONE).map(drop),
            door.send_runtime_event(pid),
        ]
    };
    same("not its tracer", calls(), [Err(Errno::PERM); 5])?;
    same("its tracer", traced(door, pid, calls)?, [Err(Errno::INVAL); 5])
}

/// Without a runtime there is nothing to suspend.
pub(super) fn without_a_runtime(machine: &Machine) -> Verdict {
    let target = Actor::target()?;
    let pid = target.pid();
    let mut session = Session::attach(door(machine), pid)?;
    same("runtime", session.runtime(), RuntimeState::Disabled)?;
    match session.suspend(&[0], 0) {
        Err(error @ SessionError::NoRuntime(_)) => {
            says(&error.to_string(), &["nothing to suspend", "try again"])?;
        }
        result => return failed(format!("suspend: {result:?}")),
    }
    let door = &*machine.door;
    let raw = traced(door, pid, || door.suspend_queues(pid, &mut [0], 0))?;
    same("the call", raw, Err(Errno::PERM))
}

/// The kernel knows one session for a process.
pub(super) fn twice(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let pid = target.pid();
    let mut session = Session::attach(door(machine), pid)?;
    let (_events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let door = &*machine.door;
    let again = traced(door, pid, || door.enable(pid, Exceptions::WANTED, writer.as_fd()))?;
    same("again", again.err(), Some(Errno::ALREADY))?;
    same("queues", session.queues()?.len(), 0)?;
    session.detach()?;
    untouched(pid)
}

/// A second debugger is told who is the first.
pub(super) fn another_debugger(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let first = Actor::debugger_of(&target)?;
    let mut second = Actor::start(&["debugger"], Whose::Root)?;
    let answer = second.ask(&format!("attach {}", target.pid()))?;
    says(&answer, &["has a debugger already", "gpreempt", "end that one first"])?;
    drop(first);
    untouched(target.pid())?;
    // Once the first is gone there is a place, whatever the second tried.
    Session::attach(door(machine), target.pid())?.detach()?;
    Ok(())
}

/// So is whoever finds a process that is traced.
pub(super) fn another_tracer(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let mut tracer = Actor::start(&["debugger"], Whose::Root)?;
    tracer.does(&format!("seize {}", target.pid()))?;
    match Session::attach(door(machine), target.pid()) {
        Err(error) => {
            let who = format!("(process {})", tracer.pid());
            says(&error.to_string(), &["has a debugger already", &who])?;
        }
        Ok(_) => return failed("a traced process was attached to"),
    }
    tracer.kill()?;
    Session::attach(door(machine), target.pid())?.detach()?;
    Ok(())
}

/// Whoever was refused changes nothing: not while they are there, and not when they are gone.
pub(super) fn refused_debugger(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let pid = target.pid();
    let mut session = Session::attach(door(machine), pid)?;
    let mut second = Actor::start(&["debugger"], Whose::Root)?;
    second.ask(&format!("attach {pid}"))?;
    same("beside it", session.suspend(&[0], 0)?, vec![Outcome::Gone])?;
    second.kill()?;
    same("over", session.handle_events()?.is_over, false)?;
    same("after it", session.suspend(&[0], 0)?, vec![Outcome::Gone])?;
    target.does("end")?;
    session.detach()?;
    untouched(pid)
}

/// A file that cannot be written to is refused, and nothing begins.
pub(super) fn bad_file(machine: &Machine) -> Verdict {
    let target = Actor::running_target()?;
    let (door, pid) = (&*machine.door, target.pid());
    // One that only stands for a place is none to the kernel.
    let path = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let refused = traced(door, pid, || door.enable(pid, Exceptions::WANTED, path.as_fd()))?;
    same("enable", refused.err(), Some(Errno::BADF))?;
    untouched(pid)?;
    Session::attach(self::door(machine), pid)?.detach()?;
    Ok(())
}

/// A process may be its own debugger.
pub(super) fn itself(_: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    target.does("debug itself")?;
    target.leave()
}

/// Nobody is there, or no longer.
pub(super) fn nobody(machine: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let pid = target.pid();
    target.kill()?;
    match Session::attach(door(machine), pid) {
        Err(error) => says(&error.to_string(), &["there is no process", "has ended"]),
        Ok(_) => failed("a process that is gone was attached to"),
    }
}
