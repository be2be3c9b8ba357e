//! One process, from its start to its end.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::StageError;
use crate::error::wait_for;
use crate::stage::Stage;

/// A process of a stage. It is killed when this is dropped.
///
/// What it prints goes into two files: a reader for each of thousands of processes would cost more
/// than they do. The files are removed with this.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
    since: Instant,
    was_killed: bool,
    stage: Stage,
}

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether it was killed through its [`Process`].
    pub was_killed: bool,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Process {
    pub(crate) fn start(
        stage: &Stage,
        name: &str,
        mut command: Command,
        files: &str,
    ) -> Result<Self, StageError> {
        let folder = stage.path("printed");
        fs::create_dir_all(&folder).map_err(StageError::file(&folder))?;
        let (out, err) = (folder.join(format!("{files}.out")), folder.join(format!("{files}.err")));
        let create = |path: &PathBuf| File::create(path).map_err(StageError::file(path));
        command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
        let child = command.spawn();
        let child = child
            .map_err(|source| StageError::Start { command: format!("{command:?}"), source })?;
        let (name, since, was_killed) = (name.to_owned(), Instant::now(), false);
        Ok(Self { name, child, out, err, since, was_killed, stage: stage.clone() })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The stage that it belongs to.
    #[must_use]
    pub const fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Whether [`Self::kill`] killed it.
    #[must_use]
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// How long ago it was started.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Sends it SIGKILL, without waiting for its end. False if it had ended already.
    pub fn kill(&mut self) -> bool {
        if self.was_killed || !matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        self.was_killed = self.child.kill().is_ok();
        self.was_killed
    }

    /// Sends it SIGKILL and waits for its end.
    pub fn kill_and_wait(&mut self) -> Result<(), StageError> {
        if !self.kill() {
            let status = self.wait_status()?;
            let (name, said) = (self.name.clone(), self.err());
            return Err(StageError::Ended { name, status, said });
        }
        self.wait_status().map(drop)
    }

    /// Sends it a signal. It may have ended; then nothing happens.
    pub fn signal(&self, signal: Signal) {
        crate::process::signal(self.pid(), signal);
    }

    /// How it ended, once it has.
    pub fn end(&mut self) -> Result<Option<Ended>, StageError> {
        let pid = self.pid();
        let status = self.child.try_wait();
        let status = status.map_err(|source| StageError::Process { pid, source })?;
        let was_killed = self.was_killed;
        Ok(status.map(|status| Ended { status, was_killed, out: self.out(), err: self.err() }))
    }

    pub fn wait(&mut self, limit: Duration) -> Result<Ended, StageError> {
        let (what, err) = (format!("{} ends", self.name), self.err.clone());
        wait_for(&what, limit, || read(&err), || self.end())
    }

    /// Waits until it has printed something, and returns what `find` made of its output.
    pub fn wait_for_output<T>(
        &mut self,
        what: &str,
        limit: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, StageError> {
        let (what, err) = (format!("{} prints {what}", self.name), self.err.clone());
        wait_for(
            &what,
            limit,
            || read(&err),
            || {
                let ended = self.end()?;
                match (find(&self.out()), ended) {
                    (Some(found), _) => Ok(Some(found)),
                    (None, None) => Ok(None),
                    (None, Some(Ended { status, err, .. })) => {
                        Err(StageError::Ended { name: self.name.clone(), status, said: err })
                    }
                }
            },
        )
    }

    /// What it has printed on its standard output.
    #[must_use]
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// What it has printed on its standard error.
    #[must_use]
    pub fn err(&self) -> String {
        read(&self.err)
    }

    pub(crate) fn err_file(&self) -> &Path {
        &self.err
    }

    fn wait_status(&mut self) -> Result<ExitStatus, StageError> {
        let pid = self.pid();
        self.child.wait().map_err(|source| StageError::Process { pid, source })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in [&self.out, &self.err] {
            let _ = fs::remove_file(file);
        }
    }
}

pub(crate) fn read(file: &Path) -> String {
    fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Sends a signal to a process. It may have ended; then nothing happens.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process runs: it exists and is no zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_ok_and(|state| state != b'Z' && state != b'X')
}

/// The children of a process that run, whichever of its threads started them.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let mut children = all_children(pid);
    children.retain(|pid| is_alive(*pid));
    children
}

/// The children of a process, zombies included.
#[must_use]
pub fn all_children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.filter_map(Result::ok).map(|thread| thread.path().join("children"));
    let lists: Vec<String> = lists.filter_map(|list| fs::read_to_string(list).ok()).collect();
    let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The letter that the kernel gives the state of a process.
fn state(pid: u32) -> io::Result<u8> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    // The name comes before the state, in parentheses, and may contain any byte.
    let after_name = stat.iter().rposition(|byte| *byte == b')').map(|at| at + 2);
    let state = after_name.and_then(|at| stat.get(at)).copied();
    state.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(stage: &Stage, script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        stage.start("shell", command).unwrap()
    }

    #[test]
    fn what_a_process_printed_and_how_it_ended_is_known() {
        let stage = Stage::new("process").unwrap();
        let mut process = shell(&stage, "echo first; echo wrong >&2; exit 7");
        let ended = process.wait(Duration::from_secs(60)).unwrap();
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("first\n", "wrong\n"));
        assert_eq!((ended.status.code(), ended.was_killed), (Some(7), false));
        assert!(!process.kill() && !is_alive(process.pid()));
        drop(process);
        assert_eq!(fs::read_dir(stage.path("printed")).unwrap().count(), 0);
    }

    #[test]
    fn a_process_ends_with_its_value_and_its_children_are_found() {
        let stage = Stage::new("process").unwrap();
        let mut process = shell(&stage, "sleep 60 & echo ready; wait");
        let ready = |out: &str| out.contains("ready").then_some(());
        process.wait_for_output("ready", Duration::from_secs(60), ready).unwrap();
        let pid = process.pid();
        let sleeps = children(pid);
        assert_eq!(sleeps.len(), 1);
        assert!(is_alive(pid) && children(std::process::id()).contains(&pid));
        signal(sleeps[0], Signal::KILL);
        drop(process);
        assert!(!is_alive(pid));
        let early =
            shell(&stage, "exit 3").wait_for_output("x", Duration::from_secs(60), |_| None::<()>);
        assert!(early.unwrap_err().to_string().contains("ended with exit status: 3"));
    }
}
