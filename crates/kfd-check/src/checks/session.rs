//! Debug sessions.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::abi::trap::{QUEUE_INVALID, RuntimeState};
use gpreempt_device::amd::session::{DebugSession, Outcome, SessionError};
use gpreempt_device::amd::{KernelKfd, KfdDebugCalls};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::child::{ChildProcess, ChildUser};
use crate::outcome::{CheckResult, failed, same, says, traced, untouched};
use crate::{Machine, SessionCaller};

pub(super) fn kfd(machine: &Machine) -> Arc<KernelKfd> {
    machine.kfd.clone()
}

/// A process gets a session, is never stopped, and is not traced afterwards.
pub(super) fn attach(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let mut session = DebugSession::attach(kfd(machine), target.pid())?;
    untouched(target.pid())?;
    same("runtime", session.runtime(), RuntimeState::Enabled)?;
    let listens = if session.needs_tracer() { SessionCaller::Tracer } else { SessionCaller::Owner };
    same("accepted caller", listens, machine.expected.unwrap_or(listens))?;
    same("queues", session.queues()?.len(), 0)?;
    if !machine.has_gpu {
        same("devices", session.devices()?.len(), 0)?;
    }
    untouched(target.pid())?;
    target.does("version")?;
    session.detach()?;
    untouched(target.pid())?;
    target.does("version")?;
    // Dropping a session ends it.
    drop(DebugSession::attach(kfd(machine), target.pid())?);
    DebugSession::attach(kfd(machine), target.pid())?.detach()?;
    Ok(())
}

/// The thread that started the session may have ended.
pub(super) fn any_thread(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let (kfd, pid) = (kfd(machine), target.pid());
    let begun = thread::spawn(move || DebugSession::attach(kfd, pid)).join();
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

/// Unknown queues are marked one by one, without an error.
pub(super) fn unknown_queues(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let pid = target.pid();
    let mut session = DebugSession::attach(kfd(machine), pid)?;
    let outcomes = session.suspend(&[0, 7, 4000], 0)?;
    same("suspended", outcomes, vec![Outcome::Gone; 3])?;
    same("resumed", session.resume(&[0, 7])?, vec![Outcome::Gone; 2])?;
    let mut names = [0, 7];
    let raw = traced(&*machine.kfd, pid, || machine.kfd.suspend_queues(pid, &mut names, 0))?;
    same("the call", raw, Ok(()))?;
    same("its bits", names, [QUEUE_INVALID, 7 | QUEUE_INVALID])
}

/// Without a session every call fails, with one error for the tracer and another for other
/// processes.
pub(super) fn without_a_session(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let (kfd, pid) = (&*machine.kfd, target.pid());
    let calls = || {
        [
            kfd.suspend_queues(pid, &mut [0], 0),
            kfd.resume_queues(pid, &mut [0]),
            kfd.queues(pid, Exceptions::NONE, 4).map(drop),
            kfd.next_event(pid, Exceptions::NONE).map(drop),
            kfd.send_runtime_event(pid),
        ]
    };
    same("not its tracer", calls(), [Err(Errno::PERM); 5])?;
    same("its tracer", traced(kfd, pid, calls)?, [Err(Errno::INVAL); 5])
}

/// Without a runtime nothing can be suspended.
pub(super) fn without_a_runtime(machine: &Machine) -> CheckResult {
    let target = ChildProcess::target()?;
    let pid = target.pid();
    let mut session = DebugSession::attach(kfd(machine), pid)?;
    same("runtime", session.runtime(), RuntimeState::Disabled)?;
    match session.suspend(&[0], 0) {
        Err(error @ SessionError::NoRuntime(_)) => {
            says(&error.to_string(), &["nothing to suspend", "try again"])?;
        }
        result => return failed(format!("suspend: {result:?}")),
    }
    let kfd = &*machine.kfd;
    let raw = traced(kfd, pid, || kfd.suspend_queues(pid, &mut [0], 0))?;
    same("the call", raw, Err(Errno::PERM))
}

/// A process can have one session.
pub(super) fn twice(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let pid = target.pid();
    let mut session = DebugSession::attach(kfd(machine), pid)?;
    let (_events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let kfd = &*machine.kfd;
    let again = traced(kfd, pid, || kfd.enable(pid, Exceptions::WANTED, writer.as_fd()))?;
    same("again", again.err(), Some(Errno::ALREADY))?;
    same("queues", session.queues()?.len(), 0)?;
    session.detach()?;
    untouched(pid)
}

/// A second debugger gets a message that names the first.
pub(super) fn another_debugger(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let first = ChildProcess::debugger_of(&target)?;
    let mut second = ChildProcess::start(&["debugger"], ChildUser::Root)?;
    let answer = second.ask(&format!("attach {}", target.pid()))?;
    says(&answer, &["has a debugger already", "gpreempt", "end that one first"])?;
    drop(first);
    untouched(target.pid())?;
    // After the first has ended, a session is possible, whatever the second tried.
    DebugSession::attach(kfd(machine), target.pid())?.detach()?;
    Ok(())
}

/// The message for a traced process names its tracer.
pub(super) fn another_tracer(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let mut tracer = ChildProcess::start(&["debugger"], ChildUser::Root)?;
    tracer.does(&format!("seize {}", target.pid()))?;
    match DebugSession::attach(kfd(machine), target.pid()) {
        Err(error) => {
            let who = format!("(process {})", tracer.pid());
            says(&error.to_string(), &["has a debugger already", &who])?;
        }
        Ok(_) => return failed("a traced process was attached to"),
    }
    tracer.kill()?;
    DebugSession::attach(kfd(machine), target.pid())?.detach()?;
    Ok(())
}

/// A refused debugger changes nothing, neither while it runs nor when it ends.
pub(super) fn refused_debugger(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let pid = target.pid();
    let mut session = DebugSession::attach(kfd(machine), pid)?;
    let mut second = ChildProcess::start(&["debugger"], ChildUser::Root)?;
    second.ask(&format!("attach {pid}"))?;
    same("beside it", session.suspend(&[0], 0)?, vec![Outcome::Gone])?;
    second.kill()?;
    same("over", session.handle_events()?.is_over, false)?;
    same("after it", session.suspend(&[0], 0)?, vec![Outcome::Gone])?;
    target.does("end")?;
    session.detach()?;
    untouched(pid)
}

/// A descriptor that cannot be written is refused, and no session starts.
pub(super) fn bad_file(machine: &Machine) -> CheckResult {
    let target = ChildProcess::running_target()?;
    let (kfd, pid) = (&*machine.kfd, target.pid());
    // The kernel refuses `O_PATH` descriptors.
    let path = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let refused = traced(kfd, pid, || kfd.enable(pid, Exceptions::WANTED, path.as_fd()))?;
    same("enable", refused.err(), Some(Errno::BADF))?;
    untouched(pid)?;
    DebugSession::attach(self::kfd(machine), pid)?.detach()?;
    Ok(())
}

/// A process may debug itself.
pub(super) fn itself(_: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    target.does("debug itself")?;
    target.leave()
}

/// A process that has ended cannot be attached to.
pub(super) fn ended_process(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let pid = target.pid();
    target.kill()?;
    match DebugSession::attach(kfd(machine), pid) {
        Err(error) => says(&error.to_string(), &["there is no process", "has ended"]),
        Ok(_) => failed("a process that is gone was attached to"),
    }
}
