//! A debug session with one process, in which its queues can be suspended and resumed.
//!
//! ```text
//! attach: trace, ENABLE, stop tracing      the process never stops
//!   events readable -> handle_events       queues created or destroyed, runtime registered or not
//!   queues, suspend, resume                any time, from any thread
//! detach, or this program dies             the kernel resumes every queue
//! ```
//!
//! A process with a debugger blocks in the kernel when it registers and unregisters its runtime,
//! until the debugger replies, even if the debugger has died. KFD counts replies, so `attach` sends
//! many in advance: no process waits for this program, even if it is killed between request and
//! reply. (One reply is not enough: a process may ask twice before it is replaced.)
//!
//! Kernels before 6.12.103 accept calls only from the tracer of the process. `attach` tests that;
//! if so, each call runs in a thread that traces the process for its duration (`tracer`).

mod error;
mod queue_generation;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use error::{AttachError, SessionError};
use queue_generation::QueueGenerations;
pub use queue_generation::{QueueGeneration, QueueKey};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::KfdDebugCalls;
use super::abi::exception::Exceptions;
use super::abi::trap::{DeviceEntry, QUEUE_ERROR, QUEUE_INVALID, QueueEntry, RuntimeState};
pub use super::tracer::TraceTarget;
use super::tracer::{TraceError, as_tracer};

/// Room for this many queues in the first attempt to list them.
const ROOM: u32 = 64;
/// How often a list may grow during a read before the call fails.
const GROWTHS_MAX: u32 = 8;
/// ControlLimit of events per call: more than a process can have queues.
const EVENTS_MAX: u32 = 4096;

/// Replies sent in advance: more than a process uses before they are replaced. Unused ones stay
/// with the process when the session ends, because the kernel cannot take them back.
const ANSWERS: u32 = 64;
/// Replies per event: a start and an end in quick succession are one event.
const REPLACEMENTS: u32 = 2;

/// A debug session. A process can have one at a time.
pub struct DebugSession {
    kfd: Arc<dyn KfdDebugCalls>,
    pid: u32,
    target: TraceTarget,
    rights: Rights,
    runtime: RuntimeState,
    /// KFD writes a byte per event, and closes the pipe when the session ends.
    events: OwnedFd,
    generations: QueueGenerations,
    /// Events of a call that failed later; the next call reports them.
    missed: Option<SessionEvents>,
    is_over: bool,
}

/// From which caller the kernel accepts calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// The process that started the session.
    Owner,
    /// The thread that traces the process.
    Tracer,
}

impl DebugSession {
    /// Starts a session. The process keeps running. If that fails, nothing has changed.
    pub fn attach(
        kfd: Arc<dyn KfdDebugCalls>,
        target: impl Into<TraceTarget>,
    ) -> Result<Self, AttachError> {
        let target = target.into();
        let pid = target.pid();
        let (events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| AttachError::Failed(pid, errno))?;
        let begin = || {
            // The kernel refuses a second session but forgets the owner of the first: when that
            // owner dies the kernel resumes nothing, and no session can ever be started again.
            if kfd.queues(pid, Exceptions::NONE, 0).is_ok() {
                return Err(Errno::ALREADY);
            }
            let info = kfd.enable(pid, Exceptions::WANTED, writer.as_fd())?;
            // Without replies in advance the process could block, so the session is given up.
            answer(&*kfd, pid, ANSWERS).inspect_err(|_| {
                let _ = kfd.disable(pid);
            })?;
            Ok(info)
        };
        let info = match as_tracer(&*kfd, target, begin) {
            Ok(Ok(info)) => info,
            Ok(Err(errno)) => return Err(AttachError::of_enable(&*kfd, pid, errno)),
            Err(TraceError::Seize(errno)) => {
                return Err(AttachError::of_seize(&*kfd, pid, errno));
            }
            Err(TraceError::Thread(error)) => return Err(AttachError::Thread(pid, error)),
        };
        // From here on only the kernel has the write end.
        drop(writer);
        let rights = match kfd.queues(pid, Exceptions::NONE, 0) {
            Err(Errno::PERM) => Rights::Tracer,
            Ok(_) | Err(_) => Rights::Owner,
        };
        let runtime = info.runtime();
        let session = Self {
            kfd,
            pid,
            target,
            rights,
            runtime,
            events,
            generations: QueueGenerations::new(),
            missed: None,
            is_over: false,
        };
        match runtime {
            RuntimeState::Enabled | RuntimeState::Disabled => Ok(session),
            // Dropping the session detaches it.
            RuntimeState::Busy => Err(AttachError::Busy(pid)),
            RuntimeState::Failed => Err(AttachError::Failed(pid, Errno::IO)),
        }
    }

    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether queues can be suspended now.
    pub const fn runtime(&self) -> RuntimeState {
        self.runtime
    }

    /// Whether each call needs a tracer, as on kernels before 6.12.103.
    pub fn needs_tracer(&self) -> bool {
        self.rights == Rights::Tracer
    }

    /// Whether events were read that `handle_events` has not reported yet. The pipe does not
    /// announce them again.
    pub const fn has_missed(&self) -> bool {
        self.missed.is_some()
    }

    /// Reads all events. Call it when the session is readable, and again after it failed.
    pub fn handle_events(&mut self) -> Result<SessionEvents, SessionError> {
        let mut happened = self.missed.take().unwrap_or_default();
        if self.drain() {
            self.is_over = true;
            return Ok(SessionEvents { is_over: true, ..happened });
        }
        let mut generations = self.generations.clone();
        let taken = self.call(|kfd, pid| take_events(kfd, pid, &mut happened, &mut generations));
        self.generations = generations;
        if let Some(runtime) = happened.runtime {
            self.runtime = runtime;
        }
        taken.inspect_err(|_| self.missed = Some(happened))?;
        Ok(happened)
    }

    pub fn devices(&mut self) -> Result<Vec<DeviceEntry>, SessionError> {
        self.call(|kfd, pid| all(|room| kfd.devices(pid, room)))
    }

    /// Ends the session. The kernel resumes suspended queues.
    pub fn detach(mut self) -> Result<(), SessionError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), SessionError> {
        if self.is_over || self.drain() {
            self.is_over = true;
            return Ok(());
        }
        let mut ignored = SessionEvents::default();
        let ended = self.call(|kfd, pid| {
            // Replies to a waiting process first; if that fails it still has replies in advance.
            let _ = take_events(kfd, pid, &mut ignored, &mut QueueGenerations::new());
            kfd.disable(pid)
        });
        let ended = match ended {
            Ok(()) | Err(SessionError::Over(_)) => Ok(()),
            // Another program traces the process. Kernels before 6.12.103 accept the end of a
            // session from any process, newer ones from its owner.
            Err(error) => match self.kfd.disable(self.pid) {
                Ok(()) | Err(Errno::INVAL | Errno::SRCH) => Ok(()),
                Err(_) => Err(error),
            },
        };
        self.is_over |= ended.is_ok();
        ended
    }

    /// Empties the pipe. Returns whether the kernel closed it.
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

    /// Makes calls in the thread that the kernel accepts.
    fn call<T: Send>(
        &self,
        mut calls: impl FnMut(&dyn KfdDebugCalls, u32) -> Result<T, Errno> + Send,
    ) -> Result<T, SessionError> {
        let (kfd, pid) = (&*self.kfd, self.pid);
        if self.is_over {
            return Err(SessionError::Over(pid));
        }
        let judge = |errno| SessionError::of_call(pid, self.runtime, errno);
        if self.rights == Rights::Owner {
            match calls(kfd, pid) {
                // If another process tried to start a session, the kernel takes that one for the
                // owner from then on, but still accepts the tracer.
                Err(Errno::PERM) => {}
                result => return result.map_err(judge),
            }
        }
        match as_tracer(kfd, self.target, || calls(kfd, pid)) {
            Ok(result) => result.map_err(judge),
            Err(TraceError::Seize(errno)) => Err(SessionError::of_seize(kfd, pid, errno)),
            Err(TraceError::Thread(error)) => Err(SessionError::Thread(pid, error)),
        }
    }
}

fn answer(kfd: &dyn KfdDebugCalls, pid: u32, count: u32) -> Result<(), Errno> {
    (0..count).try_for_each(|_| kfd.send_runtime_event(pid))
}

/// Reads events until there are none.
fn take_events(
    kfd: &dyn KfdDebugCalls,
    pid: u32,
    happened: &mut SessionEvents,
    generations: &mut QueueGenerations,
) -> Result<(), Errno> {
    for _ in 0..EVENTS_MAX {
        // `runtime_info` clears the runtime's event below.
        let noted = Exceptions::WANTED.without(Exceptions::RUNTIME);
        let event = match kfd.next_event(pid, noted) {
            Ok(event) => {
                generations.note_mark(event.queue_id, event.exceptions);
                event.exceptions
            }
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno),
        };
        happened.queues |= event.has(Exceptions::QUEUE_NEW | Exceptions::QUEUE_DELETE);
        if event.has(Exceptions::RUNTIME) {
            // Before the reply: the process continues after it, and its next event must not be
            // cleared together with this one.
            happened.runtime = Some(kfd.runtime_info(pid)?.runtime());
            // Replaces the replies that the process used.
            answer(kfd, pid, REPLACEMENTS)?;
        }
    }
    Ok(())
}

/// Reads a list whose length is known only afterwards.
fn all<E>(mut read: impl FnMut(u32) -> Result<(Vec<E>, u32), Errno>) -> Result<Vec<E>, Errno> {
    let mut room = ROOM;
    for _ in 0..GROWTHS_MAX {
        let (entries, count) = read(room)?;
        if count <= room {
            return Ok(entries);
        }
        // Room for entries that appear meanwhile.
        room = count.saturating_add(ROOM);
    }
    Err(Errno::AGAIN)
}

impl AsFd for DebugSession {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for DebugSession {
    fn drop(&mut self) {
        // The kernel does it at the latest when this process ends.
        let _ = self.end();
    }
}

impl fmt::Debug for DebugSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, rights, runtime, is_over, .. } = self;
        write!(f, "DebugSession({pid}, {rights:?}, {runtime:?}, over: {is_over})")
    }
}

/// How often a new queue is tried: the kernel refuses to suspend it until a snapshot has cleared
/// its mark.
const NEW_TRIES: u32 = 3;

impl DebugSession {
    /// The queues of the process. New ones can be suspended from now on.
    pub fn queues(&mut self) -> Result<Vec<QueueEntry>, SessionError> {
        self.noting(list)
    }

    /// The queue that has an id, as of the last snapshot.
    pub fn key_of(&self, id: u32) -> QueueKey {
        self.generations.key_of(id)
    }

    /// Suspends queues in one call, with a result for each. On devices with a hardware scheduler
    /// the call costs every queue of the device one switch, however many queues it names.
    pub fn suspend(&mut self, queues: &[u32], grace: u32) -> Result<Vec<Outcome>, SessionError> {
        self.suspend_if(queues, grace, |_, _| true)
    }

    /// Suspends exactly these queues, and no queue that has reused the id of one of them.
    pub fn suspend_named(
        &mut self,
        names: &[QueueKey],
        grace: u32,
    ) -> Result<Vec<Outcome>, SessionError> {
        let ids: Vec<u32> = names.iter().map(|name| name.id).collect();
        self.suspend_if(&ids, grace, |generations, at| generations.key_of(ids[at]) == names[at])
    }

    fn suspend_if(
        &mut self,
        queues: &[u32],
        grace: u32,
        is_meant: impl Fn(&QueueGenerations, usize) -> bool + Send + Sync,
    ) -> Result<Vec<Outcome>, SessionError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        self.noting(|kfd, pid, generations| {
            let mut outcomes = vec![Outcome::Gone; queues.len()];
            for attempt in 0..NEW_TRIES {
                // The kernel refuses a new queue until a snapshot has cleared its mark. Whatever
                // replaced a queue after this snapshot is refused.
                let listed = list(kfd, pid, generations)?;
                let is_there = |name: u32| listed.iter().any(|entry| entry.queue_id == name);
                let is_tried = |name: u32| attempt == 0 || is_there(name);
                let is_open = |at: &usize| {
                    outcomes[*at] == Outcome::Gone
                        && is_tried(queues[*at])
                        && is_meant(generations, *at)
                };
                let open: Vec<usize> = (0..queues.len()).filter(is_open).collect();
                if open.is_empty() {
                    break;
                }
                let names: Vec<u32> = open.iter().map(|at| queues[*at]).collect();
                let mut marked = names.clone();
                match kfd.suspend_queues(pid, &mut marked, grace) {
                    // Queues suspended by the first attempt stay suspended.
                    Err(_) if attempt > 0 => break,
                    result => result?,
                }
                for (at, outcome) in open.into_iter().zip(Outcome::of(&names, &marked)) {
                    outcomes[at] = outcome;
                }
            }
            Ok(outcomes)
        })
    }

    /// Resumes queues in one call.
    pub fn resume(&mut self, queues: &[u32]) -> Result<Vec<Outcome>, SessionError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        self.call(|kfd, pid| {
            let mut marked = queues.to_vec();
            kfd.resume_queues(pid, &mut marked)?;
            Ok(Outcome::of(queues, &marked))
        })
    }

    /// Resumes exactly these queues. A queue that has reused the id of one of them cannot be
    /// suspended yet.
    pub fn resume_named(&mut self, names: &[QueueKey]) -> Result<Vec<Outcome>, SessionError> {
        let is_known = |name: &&QueueKey| self.key_of(name.id) == **name;
        let known: Vec<u32> = names.iter().filter(is_known).map(|name| name.id).collect();
        let outcomes = self.resume(&known)?;
        let outcome_of = |name: &QueueKey| {
            let at = known.iter().position(|id| *id == name.id && self.key_of(*id) == *name);
            at.and_then(|at| outcomes.get(at).copied()).unwrap_or(Outcome::Gone)
        };
        Ok(names.iter().map(outcome_of).collect())
    }

    /// Gives queues new keys, as if they were new: earlier knowledge about them is void.
    pub fn rename(&mut self, names: &[QueueKey]) {
        for name in names {
            self.generations.rename(*name);
        }
    }

    /// Makes calls that may clear marks of new queues.
    fn noting<T, F>(&mut self, mut calls: F) -> Result<T, SessionError>
    where
        T: Send,
        F: FnMut(&dyn KfdDebugCalls, u32, &mut QueueGenerations) -> Result<T, Errno> + Send,
    {
        let mut generations = self.generations.clone();
        let result = self.call(|kfd, pid| calls(kfd, pid, &mut generations));
        // Cleared marks count even if the call failed.
        self.generations = generations;
        result
    }
}

/// Lists all queues and notes every mark, even in a list that was too short.
fn list(
    kfd: &dyn KfdDebugCalls,
    pid: u32,
    generations: &mut QueueGenerations,
) -> Result<Vec<QueueEntry>, Errno> {
    all(|room| {
        let (entries, count) = kfd.queues(pid, Exceptions::QUEUE_NEW, room)?;
        generations.note(&entries);
        Ok((entries, count))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It does not exist, was just created, or is being destroyed.
    Gone,
    /// The hardware did not do it.
    Failed,
}

impl Outcome {
    /// Reads the result bits that the kernel set in queue ids.
    pub(super) fn of(queues: &[u32], marked: &[u32]) -> Vec<Self> {
        let judge = |(queue, marked): (&u32, &u32)| match marked & !queue {
            // No queue has such an id.
            _ if queue & (QUEUE_INVALID | QUEUE_ERROR) != 0 => Self::Gone,
            bits if bits & QUEUE_INVALID != 0 => Self::Gone,
            bits if bits & QUEUE_ERROR != 0 => Self::Failed,
            _ => Self::Done,
        };
        queues.iter().zip(marked).map(judge).collect()
    }
}

/// What happened since the last call of `handle_events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionEvents {
    pub queues: bool,
    /// The process registered or unregistered its runtime and got its reply. Unregistering resumes
    /// every queue.
    pub runtime: Option<RuntimeState>,
    /// The session has ended, with the process or otherwise.
    pub is_over: bool,
}

#[cfg(test)]
mod tests;
