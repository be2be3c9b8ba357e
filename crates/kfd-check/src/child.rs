//! Child processes of this program with a role: they read commands and print replies, one per line.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::outcome::{CheckResult, PATIENCE, Problem, failed};

const NOBODY_SPECIAL: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildUser {
    Root,
    User,
}

/// The child. Dropping this kills it.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl ChildProcess {
    /// Starts a child and waits for `ready`.
    pub(crate) fn start(role: &[&str], user: ChildUser) -> CheckResult<Self> {
        let mut child = Self::spawn(role, user, Stdio::piped())?;
        child.expects("ready")?;
        Ok(child)
    }

    pub(crate) fn target() -> CheckResult<Self> {
        Self::start(&["target"], ChildUser::Root)
    }

    /// A process that uses KFD and has registered its runtime.
    pub(crate) fn running_target() -> CheckResult<Self> {
        let mut target = Self::target()?;
        target.does("begin")?;
        Ok(target)
    }

    /// A process that has a debug session with a target.
    pub(crate) fn debugger_of(target: &Self) -> CheckResult<Self> {
        let mut debugger = Self::start(&["debugger"], ChildUser::Root)?;
        debugger.does(&format!("attach {}", target.pid()))?;
        Ok(debugger)
    }

    /// A child whose standard input is a file.
    pub(crate) fn with_input(role: &str, file: OwnedFd) -> CheckResult<Self> {
        Self::spawn(&[role], ChildUser::Root, Stdio::from(file))
    }

    fn spawn(role: &[&str], user: ChildUser, input: Stdio) -> CheckResult<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(role).stdin(input).stdout(Stdio::piped());
        if user == ChildUser::User {
            command.uid(NOBODY_SPECIAL).gid(NOBODY_SPECIAL);
        }
        let mut child = command.spawn()?;
        let commands = child.stdin.take();
        let output = child.stdout.take().ok_or("a child without an output")?;
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, commands, answers })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, line: &str) -> CheckResult {
        let commands = self.commands.as_mut().ok_or("its input is closed")?;
        commands.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }

    pub(crate) fn answer(&self) -> CheckResult<String> {
        let pid = self.pid();
        self.answers.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => Problem::Failed(format!("process {pid} hangs")),
            RecvTimeoutError::Disconnected => Problem::Failed(format!("process {pid} has ended")),
        })
    }

    /// Fails if the child replies within this time.
    pub(crate) fn is_silent(&self, time: Duration) -> CheckResult {
        match self.answers.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(line) => failed(format!("it should wait, and says `{line}`")),
            Err(RecvTimeoutError::Disconnected) => failed("it should wait, and has ended"),
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> CheckResult<String> {
        self.tell(line)?;
        self.answer()
    }

    /// Sends a command that must succeed.
    pub(crate) fn does(&mut self, line: &str) -> CheckResult {
        self.tell(line)?;
        self.expects("ok").map_err(|problem| match problem {
            Problem::Failed(what) => Problem::Failed(format!("{line}: {what}")),
            Problem::Skipped(why) => Problem::Skipped(why),
        })
    }

    /// Waits for a reply that begins like this.
    pub(crate) fn expects(&mut self, beginning: &str) -> CheckResult {
        let answer = self.answer()?;
        if answer.starts_with(beginning) { Ok(()) } else { failed(answer) }
    }

    pub(crate) fn kill(&mut self) -> CheckResult {
        self.child.kill()?;
        self.end().map(drop)
    }

    /// Closes the child's input and waits for its successful end.
    pub(crate) fn leave(mut self) -> CheckResult {
        self.commands = None;
        let status = self.end()?;
        if status.success() { Ok(()) } else { failed(format!("it ended with {status}")) }
    }

    fn end(&mut self) -> CheckResult<ExitStatus> {
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

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
