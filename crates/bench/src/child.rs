//! A process that was started and will be ended.

use std::fs::File;
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
}

impl Child {
    /// Starts a program in a group of its own, so that Ctrl-C reaches the runner alone.
    pub(crate) fn start(name: &str, command: &mut Command, log: PathBuf) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot start {name}: {error}");
        let out = File::create(&log).map_err(cannot)?;
        let errors = out.try_clone().map_err(cannot)?;
        let process = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .spawn()
            .map_err(cannot)?;
        Ok(Self { name: name.to_owned(), process, log })
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Everything it said so far.
    pub(crate) fn said(&self) -> String {
        read(&self.log)
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

    /// What to say if it is not there any more although nobody ended it.
    pub(crate) fn gone(&mut self) -> Option<String> {
        let status = self.status().ok().flatten()?;
        Some(self.failure(&format!("ended by itself ({status})")))
    }

    /// What went wrong, with the last thing it said.
    pub(crate) fn failure(&self, what: &str) -> String {
        let said = self.said();
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

fn read(path: &Path) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
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
