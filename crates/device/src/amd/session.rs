//! A debugger's session with one process: how its queues are stopped from outside.
//!
//! ```text
//! attach: trace, ENABLE, stop tracing      the process never stops
//!   events readable -> handle_events       new queues, gone queues, the runtime begins or ends
//!   queues, suspend, resume                any time, any thread, one after the other
//! detach, or we die                        the kernel resumes everything
//! ```
//!
//! A process with a debugger waits in the kernel when its runtime begins (start) and ends (exit),
//! until its debugger answers, even if that has died. Answers are counted, so many are given in
//! advance: no process waits for us, not even if we are killed between its questions and our
//! answers. (One is not enough: a process may ask twice before we have replaced it.)
//!
//! Kernels before 6.12.103 let only a tracer talk to a session. Whether this is one is tried out
//! after attaching; if so, every call is an errand of its own (`tracer`).

mod epochs;
mod error;
mod moving;
mod outcome;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::abi::exception::Exceptions;
use super::abi::trap::{DeviceEntry, RuntimeState};
use super::door::Door;
pub use super::tracer::Subject;
use super::tracer::{TraceError, as_tracer};
use epochs::Epochs;
pub use epochs::{Epoch, QueueName};
pub use error::{AttachError, SessionError};
pub use outcome::{Happened, Outcome};

/// How many queues a list has room for at first.
const ROOM: u32 = 64;
/// How often a list may grow while it is being read before we give up.
const GROWTHS_MAX: u32 = 8;
/// How many events are taken in one go: more than a process can have queues.
const EVENTS_MAX: u32 = 4096;

/// How many answers are given in advance: more questions than a process asks while we are not
/// there to replace them. What is left of them stays with the process when the session ends; the
/// kernel has no way to take them back.
const ANSWERS: u32 = 64;
/// How many replace one: a start and an end that follow at once are told of as one.
const REPLACEMENTS: u32 = 2;

/// A session. One for a process at a time, whoever's it is.
pub struct Session {
    door: Arc<dyn Door>,
    pid: u32,
    subject: Subject,
    rights: Rights,
    runtime: RuntimeState,
    /// A byte for every event, and its end when the session ends.
    events: OwnedFd,
    epochs: Epochs,
    /// What happened and nobody was told of yet, because something failed meanwhile.
    missed: Option<Happened>,
    is_over: bool,
}

/// Whom the kernel listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// The process that began the session.
    Owner,
    /// The thread that traces the process.
    Tracer,
}

impl Session {
    /// Begins a session with a process. It goes on meanwhile.
    ///
    /// # Errors
    /// If we may not, it has a debugger, or its devices cannot do it. Nothing is different then.
    pub fn attach(door: Arc<dyn Door>, subject: impl Into<Subject>) -> Result<Self, AttachError> {
        let subject = subject.into();
        let pid = subject.pid();
        let (events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| AttachError::Failed(pid, errno))?;
        let begin = || {
            // Beginning a second one is refused, but makes the kernel forget whose the first is:
            // when its owner dies nothing is resumed, and nobody can begin one ever again.
            if door.queues(pid, Exceptions::NONE, 0).is_ok() {
                return Err(Errno::ALREADY);
            }
            let info = door.enable(pid, Exceptions::WANTED, writer.as_fd())?;
            // Without answers in advance the process could wait for us, so no session then.
            answer(&*door, pid, ANSWERS).inspect_err(|_| {
                let _ = door.disable(pid);
            })?;
            Ok(info)
        };
        let info = match as_tracer(&*door, subject, begin) {
            Ok(Ok(info)) => info,
            Ok(Err(errno)) => return Err(AttachError::of_enable(&*door, pid, errno)),
            Err(TraceError::Seize(errno)) => {
                return Err(AttachError::of_seize(&*door, pid, errno));
            }
            Err(TraceError::Thread(error)) => return Err(AttachError::Thread(pid, error)),
        };
        // The kernel keeps the pipe open as long as there is a session, and then nobody does.
        drop(writer);
        let rights = match door.queues(pid, Exceptions::NONE, 0) {
            Err(Errno::PERM) => Rights::Tracer,
            Ok(_) | Err(_) => Rights::Owner,
        };
        let runtime = info.runtime();
        let session = Self {
            door,
            pid,
            subject,
            rights,
            runtime,
            events,
            epochs: Epochs::new(),
            missed: None,
            is_over: false,
        };
        match runtime {
            RuntimeState::Enabled | RuntimeState::Disabled => Ok(session),
            // What is dropped is detached.
            RuntimeState::Busy => Err(AttachError::Busy(pid)),
            RuntimeState::Failed => Err(AttachError::Failed(pid, Errno::IO)),
        }
    }

    /// The process.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether queues can be suspended now.
    pub const fn runtime(&self) -> RuntimeState {
        self.runtime
    }

    /// Whether every call needs a tracer, as on kernels before 6.12.103.
    pub fn needs_tracer(&self) -> bool {
        self.rights == Rights::Tracer
    }

    /// Whether something happened that could not be taken note of. Nobody announces it again.
    pub const fn has_missed(&self) -> bool {
        self.missed.is_some()
    }

    /// Takes note of everything that happened. Call it when the session is readable, and again some
    /// time after it failed: what it had found by then is told when it works.
    ///
    /// # Errors
    /// If the session cannot be talked to.
    pub fn handle_events(&mut self) -> Result<Happened, SessionError> {
        let mut happened = self.missed.take().unwrap_or_default();
        if self.drain() {
            self.is_over = true;
            return Ok(Happened { is_over: true, ..happened });
        }
        let mut epochs = self.epochs.clone();
        let taken = self.call(|door, pid| take_events(door, pid, &mut happened, &mut epochs));
        self.epochs = epochs;
        if let Some(runtime) = happened.runtime {
            self.runtime = runtime;
        }
        taken.inspect_err(|_| self.missed = Some(happened))?;
        Ok(happened)
    }

    /// The devices the process uses.
    ///
    /// # Errors
    /// If the session is over, or the kernel refuses.
    pub fn devices(&mut self) -> Result<Vec<DeviceEntry>, SessionError> {
        self.call(|door, pid| all(|room| door.devices(pid, room)))
    }

    /// Ends the session. The kernel resumes what is suspended.
    ///
    /// # Errors
    /// If the kernel refuses, and there still is a session.
    pub fn detach(mut self) -> Result<(), SessionError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), SessionError> {
        if self.is_over || self.drain() {
            self.is_over = true;
            return Ok(());
        }
        let mut ignored = Happened::default();
        let ended = self.call(|door, pid| {
            // Whoever waits is answered first; if that does not work it still has some in advance.
            let _ = take_events(door, pid, &mut ignored, &mut Epochs::new());
            door.disable(pid)
        });
        let ended = match ended {
            Ok(()) | Err(SessionError::Over(_)) => Ok(()),
            // Somebody traces the process, so we cannot. Kernels before 6.12.103 let anybody end
            // a session, and newer ones its owner.
            Err(error) => match self.door.disable(self.pid) {
                Ok(()) | Err(Errno::INVAL | Errno::SRCH) => Ok(()),
                Err(_) => Err(error),
            },
        };
        self.is_over |= ended.is_ok();
        ended
    }

    /// Takes the bytes out of the pipe. Says whether it has ended.
    fn drain(&self) -> bool {
        let mut bytes = [0_u8; 256];
        loop {
            match rustix::io::read(&self.events, &mut bytes) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Makes calls with the rights that they need.
    fn call<T: Send>(
        &self,
        mut calls: impl FnMut(&dyn Door, u32) -> Result<T, Errno> + Send,
    ) -> Result<T, SessionError> {
        let (door, pid) = (&*self.door, self.pid);
        if self.is_over {
            return Err(SessionError::Over(pid));
        }
        let judge = |errno| SessionError::of_call(pid, self.runtime, errno);
        if self.rights == Rights::Owner {
            match calls(door, pid) {
                // Whoever else tries to begin a session is not given it, but the kernel takes them
                // for the owner from then on. It still listens to a tracer.
                Err(Errno::PERM) => {}
                result => return result.map_err(judge),
            }
        }
        match as_tracer(door, self.subject, || calls(door, pid)) {
            Ok(result) => result.map_err(judge),
            Err(TraceError::Seize(errno)) => Err(SessionError::of_seize(door, pid, errno)),
            Err(TraceError::Thread(error)) => Err(SessionError::Thread(pid, error)),
        }
    }
}

/// Answers that many questions, asked or not.
fn answer(door: &dyn Door, pid: u32, count: u32) -> Result<(), Errno> {
    (0..count).try_for_each(|_| door.send_runtime_event(pid))
}

/// Takes events until there are none.
fn take_events(
    door: &dyn Door,
    pid: u32,
    happened: &mut Happened,
    epochs: &mut Epochs,
) -> Result<(), Errno> {
    for _ in 0..EVENTS_MAX {
        // The runtime's event is taken note of when it is looked into, after this.
        let noted = Exceptions::WANTED.without(Exceptions::RUNTIME);
        let event = match door.next_event(pid, noted) {
            Ok(event) => {
                epochs.note_mark(event.queue_id, event.exceptions);
                event.exceptions
            }
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno),
        };
        happened.queues |= event.has(Exceptions::QUEUE_NEW | Exceptions::QUEUE_DELETE);
        if event.has(Exceptions::RUNTIME) {
            // First: the process goes on when it is answered, and what it asks then must not be
            // taken note of together with this.
            happened.runtime = Some(door.runtime_info(pid)?.runtime());
            // In place of those in advance that the process has used up.
            answer(door, pid, REPLACEMENTS)?;
        }
    }
    Ok(())
}

/// A whole list, whose length is known only afterwards.
fn all<E>(mut read: impl FnMut(u32) -> Result<(Vec<E>, u32), Errno>) -> Result<Vec<E>, Errno> {
    let mut room = ROOM;
    for _ in 0..GROWTHS_MAX {
        let (entries, count) = read(room)?;
        if count <= room {
            return Ok(entries);
        }
        // Some more, for those that come meanwhile.
        room = count.saturating_add(ROOM);
    }
    Err(Errno::AGAIN)
}

impl AsFd for Session {
    /// Readable when something happened.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The kernel does it when we end, at the latest.
        let _ = self.end();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, rights, runtime, is_over, .. } = self;
        write!(f, "Session({pid}, {rights:?}, {runtime:?}, over: {is_over})")
    }
}

#[cfg(test)]
mod tests;
