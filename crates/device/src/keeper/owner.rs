//! The owner's side of a keeper: starts it, sends heartbeats, detects when it hangs.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio};

use super::{READY, SILENCE_MAX, program};
use crate::hold_pages::HoldPages;
use crate::journal::OwnerJournal;
use crate::worker_thread::timespec;

/// The shortest time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// How many heartbeats a keeper may leave unanswered. At [`HEARTBEAT`] that is two seconds in which
/// the owner ran: heartbeats are counted, not time, so an owner that was stopped itself blames no
/// keeper. A keeper answers within one iteration of its loop (20 ms), a hundredth of that. A
/// mistake costs one start of a keeper; a longer limit costs time in which no process would revert
/// anything.
const UNANSWERED_MAX: u32 = 20;
/// How long a keeper may take to start: a hundred times what it takes on a busy machine.
const START_MAX: Duration = Duration::from_secs(2);
/// How long it may take to end after `SIGKILL`. Only a call inside the kernel delays that.
const END_MAX: Duration = Duration::from_secs(1);
const END_CHECK: Duration = Duration::from_millis(2);
/// The longest line a keeper prints.
const LINE_MAX: usize = 256;

/// A running keeper. It begins to revert changes when this is dropped.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    /// Closed when this is dropped, or when the owner dies.
    alive: ChildStdin,
    answers: ChildStdout,
    last_heartbeat: Option<Instant>,
    unanswered: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the keeper cannot be started: {0}")]
    Spawn(#[from] io::Error),
    /// It ended, or printed another line than `READY`.
    #[error("the keeper did not start ({0}); nothing was changed")]
    Unfit(String),
    #[error("the keeper did not start within {START_MAX:?}; nothing was changed")]
    Late,
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        Self::other(error)
    }
}

impl Keeper {
    /// Starts a keeper for a journal and waits until it has the lock.
    pub fn start(session: &OwnerJournal) -> Result<Self, StartError> {
        Self::start_with(session, None)
    }

    /// The same, for an owner that places holds: the keeper can end every hold.
    pub fn start_with(
        session: &OwnerJournal,
        holds: Option<&HoldPages>,
    ) -> Result<Self, StartError> {
        let (program, arguments) = program()?;
        let mut command = Command::new(program);
        command.args(arguments).arg(session.folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
        match holds {
            // The keeper inherits the memory itself: the owner's path to it ends with the owner,
            // perhaps before the keeper has opened it.
            Some(holds) => {
                command.arg(HoldPages::INHERITED).stderr(holds.as_fd().try_clone_to_owned()?)
            }
            None => command.stderr(Stdio::null()),
        };
        let mut child = command.spawn()?;
        let (alive, answers) = (child.stdin.take(), child.stdout.take());
        let ready = match (alive, answers) {
            (Some(alive), Some(mut answers)) => {
                wait_until_ready(&mut answers).map(|()| (alive, answers))
            }
            _ => Err(StartError::Unfit("it has no pipes".to_owned())),
        };
        let prepared = ready.and_then(|(alive, answers)| {
            // A keeper that does not read or answer must not block its owner.
            ioctl_fionbio(&alive, true).map_err(io::Error::from)?;
            ioctl_fionbio(&answers, true).map_err(io::Error::from)?;
            Ok((alive, answers))
        });
        match prepared {
            Ok((alive, answers)) => {
                Ok(Self { child, alive, answers, last_heartbeat: None, unanswered: 0 })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = wait_for_end(&mut child);
                Err(error)
            }
        }
    }

    /// Sends a heartbeat: the owner not only lives but runs. From the first one on, a keeper that
    /// receives none for [`SILENCE_MAX`] reverts all changes and exits: an owner that is stopped or
    /// blocked cannot keep processes stopped.
    pub fn beat(&mut self) {
        if self.last_heartbeat.is_some_and(|at| at.elapsed() < HEARTBEAT) {
            return;
        }
        self.last_heartbeat = Some(Instant::now());
        self.read_answers();
        // `has_died` notices a dead keeper, and missing answers one whose pipe is full.
        let _ = self.alive.write(&[1]);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Whether the keeper does not answer: it is stopped, or hangs in a call. Then it would not
    /// revert anything if the owner died.
    pub fn is_hung(&mut self) -> bool {
        if self.unanswered >= UNANSWERED_MAX {
            // The answers may have arrived since the last read.
            self.read_answers();
        }
        self.unanswered >= UNANSWERED_MAX
    }

    /// Kills the keeper, so that another one can take its journal. False if it did not end: a call
    /// inside the kernel blocks it.
    pub fn end(&mut self) -> bool {
        let _ = self.child.kill();
        wait_for_end(&mut self.child)
    }

    /// Whether the owner sent no heartbeat for longer than a keeper waits: then the keeper reverts
    /// all changes, or has done so. Ask before the next heartbeat.
    pub fn missed_deadline(&self) -> bool {
        self.last_heartbeat.is_some_and(|at| at.elapsed() > SILENCE_MAX)
    }

    /// Whether it has exited by itself, which it does only after it reverted all changes.
    pub fn has_finished(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if status.code().is_some())
    }

    /// Whether it has ended, so that no process would revert the owner's next changes.
    pub fn has_died(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn read_answers(&mut self) {
        let mut buffer = [0; 64];
        while let Ok(count @ 1..) = self.answers.read(&mut buffer) {
            self.unanswered = 0;
            if count < buffer.len() {
                break;
            }
        }
    }
}

/// Waits for the line [`READY`].
fn wait_until_ready(answers: &mut ChildStdout) -> Result<(), StartError> {
    let until = Instant::now() + START_MAX;
    let mut line = Vec::new();
    while !line.contains(&b'\n') && line.len() < LINE_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StartError::Late);
        }
        let mut fds = [PollFd::new(&*answers, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let mut buffer = [0; LINE_MAX];
        match answers.read(&mut buffer)? {
            0 => break,
            count => line.extend_from_slice(&buffer[..count]),
        }
    }
    match String::from_utf8_lossy(&line).trim() {
        READY => Ok(()),
        "" => Err(StartError::Unfit("it ended at once".to_owned())),
        said => Err(StartError::Unfit(said.to_owned())),
    }
}

/// Waits for the end of a killed process. False if it has not ended in time.
fn wait_for_end(child: &mut Child) -> bool {
    let until = Instant::now() + END_MAX;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(END_CHECK),
            ended => return !matches!(ended, Ok(None)),
        }
    }
}
