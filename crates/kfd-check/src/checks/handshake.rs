//! A process with a debugger waits for its reply when it registers and unregisters its runtime.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use gpreempt_device::amd::KfdDebugCalls;
use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::session::DebugSession;
use rustix::pipe::{PipeFlags, pipe_with};

use super::session::kfd;
use crate::Machine;
use crate::child::{ChildProcess, ChildUser};
use crate::outcome::{CheckResult, same, traced, untouched, wait_until};

/// How long a waiting process is observed.
const WATCHED: Duration = Duration::from_millis(300);

/// Without a reply the process waits, both times, so the replies of a debug session are necessary.
pub(super) fn the_kernel_waits(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let (kfd, pid) = (&*machine.kfd, target.pid());
    let (events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    traced(kfd, pid, || kfd.enable(pid, Exceptions::WANTED, writer.as_fd()))??;
    for question in ["begin", "end"] {
        target.tell(question)?;
        wait_until("the question", || rustix::io::read(&events, &mut [0; 8]).is_ok())?;
        target.is_silent(WATCHED)?;
        let answered = traced(kfd, pid, || {
            let info = kfd.runtime_info(pid)?;
            kfd.send_runtime_event(pid)?;
            Ok::<_, rustix::io::Errno>(info)
        })??;
        target.expects("ok")?;
        same(question, answered.state, u32::from(question == "begin"))?;
    }
    traced(kfd, pid, || kfd.disable(pid))??;
    target.does("begin")
}

/// A process starts and ends in a session whose events are handled.
pub(super) fn start_and_exit(_: &Machine) -> CheckResult {
    for has_end in [true, false] {
        let mut target = ChildProcess::target()?;
        let debugger = ChildProcess::debugger_of(&target)?;
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

/// A process registers and unregisters its runtime as fast as it can.
pub(super) fn restarts(_: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let mut debugger = ChildProcess::debugger_of(&target)?;
    for _ in 0..5 {
        target.does("restart")?;
    }
    debugger.does("suspend 0")?;
    debugger.does("detach")?;
    target.does("restart")?;
    target.leave()
}

/// A debugger that ignores events has sent replies in advance.
pub(super) fn ignore_events(_: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let mut debugger = ChildProcess::start(&["debugger", "--ignore-events"], ChildUser::Root)?;
    debugger.does(&format!("attach {}", target.pid()))?;
    target.does("begin")?;
    target.does("end")?;
    target.does("begin")?;
    debugger.does("detach")?;
    target.does("end")
}

/// The debugger is killed between a request and its reply.
pub(super) fn killed_in_between(_: &Machine) -> CheckResult {
    for questions in [&["begin"][..], &["begin", "end"]] {
        let mut target = ChildProcess::target()?;
        let mut debugger = ChildProcess::start(&["debugger", "--ignore-events"], ChildUser::Root)?;
        debugger.does(&format!("attach {}", target.pid()))?;
        for question in questions {
            target.tell(question)?;
        }
        // Long enough for the last request.
        thread::sleep(WATCHED);
        debugger.kill()?;
        for _ in questions {
            target.expects("ok")?;
        }
        untouched(target.pid())?;
        target.does(if questions.len() == 1 { "end" } else { "begin" })?;
        target.leave()?;
    }
    Ok(())
}

/// The debugger is killed at several moments while the process sends requests.
pub(super) fn killed_while_restarting(_: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    for moment in 0..12 {
        let mut debugger = ChildProcess::debugger_of(&target)?;
        target.tell("restart")?;
        thread::sleep(Duration::from_micros(700 * moment));
        debugger.kill()?;
        target.expects("ok")?;
        untouched(target.pid())?;
    }
    target.leave()
}

/// A process that waits for a debugger of another kind that has ended is released by the next
/// session.
pub(super) fn next_frees(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let mut rude = ChildProcess::start(&["debugger", "--ignore-events"], ChildUser::Root)?;
    rude.does(&format!("debug {}", target.pid()))?;
    target.tell("begin")?;
    target.is_silent(WATCHED)?;
    rude.kill()?;
    target.is_silent(WATCHED)?;
    untouched(target.pid())?;
    let session = DebugSession::attach(kfd(machine), target.pid())?;
    target.expects("ok")?;
    session.detach()?;
    target.does("end")?;
    target.leave()
}
