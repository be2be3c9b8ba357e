//! A child of this program that plays a role: it is told lines and answers with lines.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::tracing::PATIENCE;
use crate::verdict::{Problem, Verdict, failed};

/// A user without rights.
const NOBODY_SPECIAL: u32 = 1000;

/// Whose process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The administrator's.
    Root,
    /// That of a user without rights.
    User,
}

/// The child. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Actor {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Actor {
    /// Starts one and waits until it is ready.
    pub(crate) fn start(role: &[&str], whose: Whose) -> Verdict<Self> {
        let mut actor = Self::spawn(role, whose, Stdio::piped())?;
        actor.hears("ready")?;
        Ok(actor)
    }

    /// A process that uses KFD.
    pub(crate) fn target() -> Verdict<Self> {
        Self::start(&["target"], Whose::Root)
    }

    /// A process that uses KFD and whose runtime has begun.
    pub(crate) fn running_target() -> Verdict<Self> {
        let mut target = Self::target()?;
        target.does("begin")?;
        Ok(target)
    }

    /// A process that has the session of a target.
    pub(crate) fn debugger_of(target: &Self) -> Verdict<Self> {
        let mut debugger = Self::start(&["debugger"], Whose::Root)?;
        debugger.does(&format!("attach {}", target.pid()))?;
        Ok(debugger)
    }

    /// One that has a file as its input, and is told nothing.
    pub(crate) fn with_input(role: &str, file: OwnedFd) -> Verdict<Self> {
        Self::spawn(&[role], Whose::Root, Stdio::from(file))
    }

    fn spawn(role: &[&str], whose: Whose, input: Stdio) -> Verdict<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(role).stdin(input).stdout(Stdio::piped());
        if whose == Whose::User {
            command.uid(NOBODY_SPECIAL).gid(NOBODY_SPECIAL);
        }
        let mut child = command.spawn()?;
        let orders = child.stdin.take();
        let output = child.stdout.take().ok_or("a child without an output")?;
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, orders, answers })
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it a line.
    pub(crate) fn tell(&mut self, line: &str) -> Verdict {
        let orders = self.orders.as_mut().ok_or("it is told nothing any more")?;
        orders.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }

    /// What it answers.
    pub(crate) fn answer(&self) -> Verdict<String> {
        let pid = self.pid();
        self.answers.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => Problem::Failed(format!("process {pid} hangs")),
            RecvTimeoutError::Disconnected => Problem::Failed(format!("process {pid} has ended")),
        })
    }

    /// Makes sure that it says nothing for a while.
    pub(crate) fn is_silent(&self, time: Duration) -> Verdict {
        match self.answers.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(line) => failed(format!("it should wait, and says `{line}`")),
            Err(RecvTimeoutError::Disconnected) => failed("it should wait, and has ended"),
        }
    }

    /// What it answers to a line.
    pub(crate) fn ask(&mut self, line: &str) -> Verdict<String> {
        self.tell(line)?;
        self.answer()
    }

    /// Tells it something that has to work.
    pub(crate) fn does(&mut self, line: &str) -> Verdict {
        self.tell(line)?;
        self.hears("ok").map_err(|problem| match problem {
            Problem::Failed(what) => Problem::Failed(format!("{line}: {what}")),
            Problem::Skipped(why) => Problem::Skipped(why),
        })
    }

    /// Waits for an answer that begins like this.
    pub(crate) fn hears(&mut self, beginning: &str) -> Verdict {
        let answer = self.answer()?;
        if answer.starts_with(beginning) { Ok(()) } else { failed(answer) }
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) -> Verdict {
        self.child.kill()?;
        self.end().map(drop)
    }

    /// Tells it to go, and waits for its end, which has to be a good one.
    pub(crate) fn leave(mut self) -> Verdict {
        self.orders = None;
        let status = self.end()?;
        if status.success() { Ok(()) } else { failed(format!("it ended with {status}")) }
    }

    fn end(&mut self) -> Verdict<ExitStatus> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if since.elapsed() > PATIENCE {
                return failed(format!("process {} does not end", self.pid()));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
