//! Processes that the runner starts and ends, and the temporary folder for their logs and sockets.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// How often a process is checked.
const POLL: Duration = Duration::from_millis(10);
/// How long a process may take to end after a signal.
const GRACE: Duration = Duration::from_secs(20);
/// How much of a log line an error repeats.
const LAST_LINE_MAX: usize = 300;

/// A process whose output goes to a log. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: Process,
    log: PathBuf,
    /// Where the part of the log begins that counts.
    read: u64,
}

impl Child {
    /// Starts a program in a group of its own, so that Ctrl-C reaches the runner alone.
    pub(crate) fn start(name: &str, command: &mut Command, log: PathBuf) -> Result<Self, String> {
        Self::start_with_input(name, command, log, Stdio::null())
    }

    pub(crate) fn start_with_input(
        name: &str,
        command: &mut Command,
        log: PathBuf,
        input: Stdio,
    ) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot start {name}: {error}");
        let out = File::create(&log).map_err(cannot)?;
        let errors = out.try_clone().map_err(cannot)?;
        let process = command
            .process_group(0)
            .stdin(input)
            .stdout(out)
            .stderr(errors)
            .spawn()
            .map_err(cannot)?;
        Ok(Self { name: name.to_owned(), process, log, read: 0 })
    }

    /// Writes a line, with its line end, to stdin.
    pub(crate) fn send(&mut self, line: &str) -> Result<(), String> {
        let sent = self.process.stdin.as_mut().map(|input| input.write_all(line.as_bytes()));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(self.failure("has closed its stdin")),
        }
    }

    /// Closes stdin, which ends a program that reads orders.
    pub(crate) fn close_input(&mut self) {
        self.process.stdin = None;
    }

    /// Ignores the output so far.
    pub(crate) fn forget_output(&mut self) {
        self.read = std::fs::metadata(&self.log).map_or(0, |log| log.len());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The output that counts.
    pub(crate) fn output(&self) -> String {
        read(&self.log, self.read)
    }

    /// Waits for output; fails if the process ends, takes longer than `limit`, or `stop` is set.
    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        is_there: impl Fn(&str) -> bool,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            if is_there(&self.output()) {
                return Ok(());
            }
            if let Some(status) = self.status()? {
                return Err(self.failure(&format!("ended ({status}) before it was {what}")));
            }
            self.pause(begin, limit, stop, &format!("was not {what}"))?;
        }
    }

    /// Waits until it ends by itself, successfully.
    pub(crate) fn wait(&mut self, limit: Duration, stop: &AtomicBool) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            match self.status()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failure(&format!("failed ({status})"))),
                None => self.pause(begin, limit, stop, "did not end")?,
            }
        }
    }

    /// Sends a signal and kills the process if it does not end.
    pub(crate) fn end(&mut self, signal: Signal) -> Result<(), String> {
        if self.status()?.is_some() {
            return Ok(());
        }
        self.signal(signal);
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            if self.status()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        self.kill();
        Err(self.failure("did not end after a signal and was killed"))
    }

    /// The same; a failure exit code is an error.
    pub(crate) fn end_successfully(&mut self, signal: Signal) -> Result<(), String> {
        self.end(signal)?;
        match self.status()? {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.failure("failed at its end")),
        }
    }

    /// The error for a process that ended although the runner did not end it.
    pub(crate) fn gone(&mut self) -> Option<String> {
        let status = self.status().ok().flatten()?;
        Some(self.failure(&format!("ended by itself ({status})")))
    }

    /// An error with the last line of the log.
    pub(crate) fn failure(&self, what: &str) -> String {
        let log = read(&self.log, 0);
        let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let last: String = last.chars().take(LAST_LINE_MAX).collect();
        format!("{} {what}; its last output: {last}", self.name)
    }

    fn status(&mut self) -> Result<Option<ExitStatus>, String> {
        self.process.try_wait().map_err(|error| format!("cannot wait for {}: {error}", self.name))
    }

    fn pause(
        &self,
        begin: Instant,
        limit: Duration,
        stop: &AtomicBool,
        what: &str,
    ) -> Result<(), String> {
        // ORDERING: an independent flag.
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        if begin.elapsed() > limit {
            return Err(self.failure(&format!("{what} within {} s", limit.as_secs())));
        }
        std::thread::sleep(POLL);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may have ended; it was not waited for yet, so the pid is still its own.
            let _ = kill_process(pid, signal);
        }
    }

    fn kill(&mut self) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It has a process group of its own, so the processes it started end with it.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// A new folder that only its owner can enter, removed with the value. An existing folder is never
/// used: the runner may be root, and another user could have put links into it.
pub(crate) fn temp_folder(purpose: &str) -> Result<TempDir, String> {
    let folder = std::env::temp_dir();
    let prefix = format!("gpreempt-{purpose}-");
    tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&folder)
        .map_err(|error| format!("cannot create a folder in {}: {error}", folder.display()))
}

fn read(path: &Path, from: u64) -> String {
    let bytes = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Runs a script, with its log in a folder that is removed with the second value.
    fn start(script: &str, input: Stdio) -> (Child, TempDir) {
        let folder = temp_folder("child").unwrap();
        let (mut command, log) = (Command::new("sh"), folder.path().join("log"));
        command.args(["-c", script]);
        (Child::start_with_input("it", &mut command, log, input).unwrap(), folder)
    }

    #[test]
    fn a_wait_ends_when_the_output_is_there() {
        let (mut child, _folder) = start("echo hello; sleep 100", Stdio::null());
        let stop = AtomicBool::new(false);
        child.wait_for("ready", |output| output.contains("hello"), LIMIT, &stop).unwrap();
        child.end(Signal::TERM).unwrap();
    }

    #[test]
    fn a_process_that_ends_early_is_an_error_with_its_last_output() {
        let (mut child, _folder) = start("echo no device >&2; exit 3", Stdio::null());
        let stop = AtomicBool::new(false);
        let error = child.wait_for("ready", |_| false, LIMIT, &stop).unwrap_err();
        assert!(error.contains("before it was ready; its last output: no device"), "{error}");
        assert!(child.wait(LIMIT, &stop).is_err());
    }

    #[test]
    fn a_program_reads_lines_and_only_its_answer_to_the_last_one_counts() {
        let script = "while read line; do echo heard $line; done";
        let (mut child, _folder) = start(script, Stdio::piped());
        let stop = AtomicBool::new(false);
        for word in ["one", "two"] {
            child.forget_output();
            child.send(&format!("{word}\n")).unwrap();
            child.wait_for("heard", |output| output.contains(word), LIMIT, &stop).unwrap();
        }
        assert_eq!(child.output(), "heard two\n");
        child.close_input();
        child.wait(LIMIT, &stop).unwrap();
        assert!(child.send("three\n").unwrap_err().contains("has closed its stdin"));
    }

    #[test]
    fn a_failure_exit_code_is_an_error_where_success_is_required() {
        let (mut child, _folder) =
            start("trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done", Stdio::null());
        let stop = AtomicBool::new(false);
        child.wait_for("up", |output| output.contains("up"), LIMIT, &stop).unwrap();
        let error = child.end_successfully(Signal::TERM).unwrap_err();
        assert!(error.contains("failed at its end"), "{error}");
    }

    #[test]
    fn a_wait_ends_when_stop_is_set() {
        let (mut child, _folder) = start("sleep 100", Stdio::null());
        let error = child.wait(LIMIT, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error, "stopped");
    }

    #[test]
    fn processes_that_a_process_started_are_killed_with_it() {
        let (child, _folder) = start("sleep 1000 & echo $!; wait", Stdio::null());
        let begin = Instant::now();
        while child.output().lines().next().is_none() && begin.elapsed() < LIMIT {
            std::thread::sleep(POLL);
        }
        let other: i32 = child.output().trim().parse().unwrap();
        drop(child);
        let is_there = || {
            let stat = std::fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| !rest.trim().is_empty() && !rest.contains(" Z "))
        };
        while is_there() && begin.elapsed() < LIMIT {
            std::thread::sleep(POLL);
        }
        assert!(!is_there());
    }

    #[test]
    fn a_temporary_folder_is_its_owners_and_is_removed_with_its_files() {
        let (one, other) = (temp_folder("twice").unwrap(), temp_folder("twice").unwrap());
        assert_ne!(one.path(), other.path());
        let mode = one.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.path().to_owned();
        std::fs::write(path.join("log"), "words").unwrap();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }
}
