//! A process that was started and will be ended.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long a process has after it was asked to end.
const GRACE: Duration = Duration::from_secs(20);
/// The most of a log that an error repeats.
const SAID_MAX: usize = 300;

/// A process with a log of what it says. It is killed when this goes away.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: Process,
    log: PathBuf,
    /// How much of the log does not count any more.
    read: u64,
}

impl Child {
    /// Starts a program in a group of its own, so that Ctrl-C reaches the runner alone.
    pub(crate) fn start(name: &str, command: &mut Command, log: PathBuf) -> Result<Self, String> {
        Self::start_with(name, command, log, Stdio::null())
    }

    /// The same for a program that is told things while it runs.
    pub(crate) fn start_told(
        name: &str,
        command: &mut Command,
        log: PathBuf,
    ) -> Result<Self, String> {
        Self::start_with(name, command, log, Stdio::piped())
    }

    fn start_with(
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

    /// Writes a line to its input; the line has its end.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        let told = self.process.stdin.as_mut().map(|input| input.write_all(line.as_bytes()));
        match told {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(self.failure("does not listen any more")),
        }
    }

    /// Ends its input, which tells a program that listens to leave.
    pub(crate) fn hang_up(&mut self) {
        self.process.stdin = None;
    }

    /// What it said so far does not count any more.
    pub(crate) fn forget(&mut self) {
        self.read = std::fs::metadata(&self.log).map_or(0, |log| log.len());
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Everything it said so far that counts.
    pub(crate) fn said(&self) -> String {
        read(&self.log, self.read)
    }

    /// Waits until it said something; fails if it ends, takes too long, or somebody asks to stop.
    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        is_said: impl Fn(&str) -> bool,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            if is_said(&self.said()) {
                return Ok(());
            }
            if let Some(status) = self.status()? {
                return Err(self.failure(&format!("ended ({status}) before it was {what}")));
            }
            self.pause(begin, limit, stop, &format!("was not {what}"))?;
        }
    }

    /// Waits until it ends by itself, and well.
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

    /// Asks it to end, waits a while, and kills it if it does not.
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
            std::thread::sleep(LOOK);
        }
        self.kill();
        Err(self.failure("did not end when asked to, and was killed"))
    }

    /// The same, and it must say that all went well.
    pub(crate) fn end_well(&mut self, signal: Signal) -> Result<(), String> {
        self.end(signal)?;
        match self.status()? {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.failure("did not end well")),
        }
    }

    /// What to say if it is not there any more although nobody ended it.
    pub(crate) fn gone(&mut self) -> Option<String> {
        let status = self.status().ok().flatten()?;
        Some(self.failure(&format!("ended by itself ({status})")))
    }

    /// What went wrong, with the last thing it said.
    pub(crate) fn failure(&self, what: &str) -> String {
        let said = read(&self.log, 0);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let last: String = last.chars().take(SAID_MAX).collect();
        format!("{} {what}; it said last: {last}", self.name)
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
        // ORDERING: the flag stands for itself.
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        if begin.elapsed() > limit {
            return Err(self.failure(&format!("{what} within {} s", limit.as_secs())));
        }
        std::thread::sleep(LOOK);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may have ended meanwhile; it is not waited for before this, so the number is its.
            let _ = kill_process(pid, signal);
        }
    }

    fn kill(&mut self) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // Its group is its own: what it started goes with it.
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

    fn start(script: &str) -> Child {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpreempt-child-{}-{number}", std::process::id());
        let log = std::env::temp_dir().join(name);
        Child::start("it", Command::new("sh").args(["-c", script]), log).unwrap()
    }

    fn done(child: Child) {
        let log = child.log.clone();
        drop(child);
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_process_that_says_what_was_wished_goes_on() {
        let mut child = start("echo hello; sleep 100");
        let stop = AtomicBool::new(false);
        child.wait_for("ready", |said| said.contains("hello"), LIMIT, &stop).unwrap();
        child.end(Signal::TERM).unwrap();
        done(child);
    }

    #[test]
    fn a_process_that_ends_early_is_a_failure_with_its_last_words() {
        let mut child = start("echo no device >&2; exit 3");
        let stop = AtomicBool::new(false);
        let error = child.wait_for("ready", |_| false, LIMIT, &stop).unwrap_err();
        assert!(error.contains("before it was ready; it said last: no device"), "{error}");
        assert!(child.wait(LIMIT, &stop).is_err());
        done(child);
    }

    #[test]
    fn a_program_is_told_things_and_answers_to_the_last_one() {
        let script = "while read line; do echo heard $line; done";
        let log = std::env::temp_dir().join(format!("gpreempt-told-{}", std::process::id()));
        let mut child =
            Child::start_told("it", Command::new("sh").args(["-c", script]), log).unwrap();
        let stop = AtomicBool::new(false);
        for word in ["one", "two"] {
            child.forget();
            child.tell(&format!("{word}\n")).unwrap();
            child.wait_for("heard", |said| said.contains(word), LIMIT, &stop).unwrap();
        }
        assert_eq!(child.said(), "heard two\n");
        child.hang_up();
        child.wait(LIMIT, &stop).unwrap();
        assert!(child.tell("three\n").unwrap_err().contains("does not listen"));
        done(child);
    }

    #[test]
    fn how_a_process_ended_counts_where_it_matters() {
        let mut child = start("trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done");
        let stop = AtomicBool::new(false);
        child.wait_for("up", |said| said.contains("up"), LIMIT, &stop).unwrap();
        let error = child.end_well(Signal::TERM).unwrap_err();
        assert!(error.contains("did not end well"), "{error}");
        done(child);
    }

    #[test]
    fn waiting_ends_when_somebody_asks_to_stop() {
        let mut child = start("sleep 100");
        let error = child.wait(LIMIT, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error, "stopped");
        done(child);
    }

    #[test]
    fn what_a_process_started_goes_with_it() {
        let child = start("sleep 1000 & echo $!; wait");
        let begin = Instant::now();
        while child.said().lines().next().is_none() && begin.elapsed() < LIMIT {
            std::thread::sleep(LOOK);
        }
        let other: i32 = child.said().trim().parse().unwrap();
        done(child);
        let is_there = || {
            let stat = std::fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| !rest.trim().is_empty() && !rest.contains(" Z "))
        };
        while is_there() && begin.elapsed() < LIMIT {
            std::thread::sleep(LOOK);
        }
        assert!(!is_there());
    }
}
