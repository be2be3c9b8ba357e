//! The owner's side of a keeper.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};

use super::{READY, SILENCE_MAX, program};
use crate::hold_pages::HoldPages;
use crate::journal::Session;

/// How often an owner beats, at the most.
const BEAT: Duration = Duration::from_millis(100);
/// How many beats a keeper may leave unanswered. At [`BEAT`] that is two seconds in which the
/// owner ran: beats are counted, not time, so an owner that was stopped itself blames no keeper.
/// A keeper answers within one turn of its loop (20 ms), a hundredth of that. A mistake costs one
/// start of a keeper; a longer limit costs time in which no process would undo anything.
const UNANSWERED_MAX: u32 = 20;
/// How long a keeper may take to get ready: a hundred times what it takes on a busy machine.
const START_MAX: Duration = Duration::from_secs(2);
/// How long it may take to die after `SIGKILL`. Only a call inside the kernel delays that.
const END_MAX: Duration = Duration::from_secs(1);
/// How often the owner checks whether it is dead.
const END_CHECK: Duration = Duration::from_millis(2);
/// The longest line a keeper prints.
const LINE_MAX: usize = 256;

/// While this lives, the keeper waits.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    /// Closed when this is dropped, or when the owner dies.
    alive: ChildStdin,
    answers: ChildStdout,
    beaten: Option<Instant>,
    unanswered: u32,
}

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program cannot be started.
    #[error("the keeper cannot be started: {0}")]
    Spawn(#[from] io::Error),
    /// It ended, or printed something else than that it is ready.
    #[error("the keeper did not start ({0}); nothing was changed")]
    Unfit(String),
    /// It printed nothing in time.
    #[error("the keeper did not get ready within {START_MAX:?}; nothing was changed")]
    Late,
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        Self::other(error)
    }
}

impl Keeper {
    /// Starts a keeper for a session and waits until it holds it.
    ///
    /// # Errors
    /// If it cannot be started or does not get ready.
    pub fn start(session: &Session) -> Result<Self, StartError> {
        Self::start_with(session, None)
    }

    /// The same, for an owner that holds devices: the keeper can end every hold.
    ///
    /// # Errors
    /// If it cannot be started or does not get ready.
    pub fn start_with(session: &Session, holds: Option<&HoldPages>) -> Result<Self, StartError> {
        let (program, arguments) = program()?;
        let mut command = Command::new(program);
        command.args(arguments).arg(session.folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
        match holds {
            // The keeper inherits the memory itself: the owner's path to it would end with the
            // owner, perhaps before the keeper has opened it.
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
            // A keeper that reads nothing must not block its owner, nor one that answers nothing.
            ioctl_fionbio(&alive, true).map_err(io::Error::from)?;
            ioctl_fionbio(&answers, true).map_err(io::Error::from)?;
            Ok((alive, answers))
        });
        match prepared {
            Ok((alive, answers)) => Ok(Self { child, alive, answers, beaten: None, unanswered: 0 }),
            Err(error) => {
                let _ = child.kill();
                let _ = wait_for_end(&mut child);
                Err(error)
            }
        }
    }

    /// Tells the keeper that the owner not only lives but runs. From the first beat on, a keeper
    /// that hears nothing for [`SILENCE_MAX`] undoes everything and ends: an owner that is stopped,
    /// or waits for something, cannot keep processes stopped.
    pub fn beat(&mut self) {
        if self.beaten.is_some_and(|beaten| beaten.elapsed() < BEAT) {
            return;
        }
        self.beaten = Some(Instant::now());
        self.hear();
        // A keeper that is gone is noticed by `has_died`, one whose pipe is full by its silence.
        let _ = self.alive.write(&[1]);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Whether the keeper does not answer: it is stopped, or hangs in a call. Then nothing would be
    /// undone if the owner died.
    pub fn is_hung(&mut self) -> bool {
        if self.unanswered >= UNANSWERED_MAX {
            // Whatever the reason why the owner did not read before, the answers may be there.
            self.hear();
        }
        self.unanswered >= UNANSWERED_MAX
    }

    /// Kills the keeper, so that another one can take its session. False if it did not die: a call
    /// inside the kernel holds it.
    pub fn end(&mut self) -> bool {
        let _ = self.child.kill();
        wait_for_end(&mut self.child)
    }

    /// Whether the owner was silent for longer than a keeper waits: then the keeper undoes
    /// everything, or has done so. Ask before the next beat.
    pub fn was_left_alone(&self) -> bool {
        self.beaten.is_some_and(|beaten| beaten.elapsed() > SILENCE_MAX)
    }

    /// Whether it has ended by itself, which it does only after it undid everything, as opposed to
    /// having been killed.
    pub fn has_given_up(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if status.code().is_some())
    }

    /// Whether it is gone, so that no process would undo what the owner does next.
    pub fn has_died(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes in the keeper's answers.
    fn hear(&mut self) {
        let mut buffer = [0; 64];
        while let Ok(count @ 1..) = self.answers.read(&mut buffer) {
            self.unanswered = 0;
            if count < buffer.len() {
                break;
            }
        }
    }
}

/// Waits for the line that says that the keeper is ready.
fn wait_until_ready(answers: &mut ChildStdout) -> Result<(), StartError> {
    let until = Instant::now() + START_MAX;
    let mut line = Vec::new();
    while !line.contains(&b'\n') && line.len() < LINE_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StartError::Late);
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&*answers, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
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

/// Whether a process that was killed is dead, after a while.
fn wait_for_end(child: &mut Child) -> bool {
    let until = Instant::now() + END_MAX;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(END_CHECK),
            ended => return !matches!(ended, Ok(None)),
        }
    }
}
