//! The evictor program as its owner sees it: started, given orders, read line by line.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::order::{LINE_MAX, Line, Order, Outcome};
use crate::user_child::close_other_descriptors;
use crate::worker_thread::timespec;

/// The name of the program, which is installed beside the keeper.
pub(crate) const PROGRAM: &str = "gpreempt-evictor";
/// How long a program without orders may take to end before a thread waits for it.
const END_WAIT: Duration = Duration::from_millis(200);
/// Where the loader finds libcuda in containers. Nothing else of the environment is passed on.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// A running evictor program. Without it, the program ends before its next call.
#[derive(Debug)]
pub(crate) struct EvictorChild {
    child: Option<Child>,
    orders: Option<ChildStdin>,
    answers: ChildStdout,
    unread: Vec<u8>,
}

/// The program beside this one.
pub(crate) fn program() -> io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    if beside.is_file() {
        return Ok(beside);
    }
    Err(io::Error::other(format!(
        "{} is missing, without which no memory is evicted or restored; install gpreempt again",
        beside.display()
    )))
}

impl EvictorChild {
    pub(crate) fn start(program: &PathBuf) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(path) = std::env::var_os(LIBRARY_PATH) {
            command.env(LIBRARY_PATH, path);
        }
        close_other_descriptors(&mut command);
        let mut child = command.spawn()?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or_else(|| io::Error::other("the evictor has no pipes"))?;
        Ok(Self { child: Some(child), orders, answers, unread: Vec::new() })
    }

    pub(crate) fn send(&mut self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(&line)
    }

    /// The next line; none if there was none in time.
    ///
    /// # Errors
    /// If the program has ended.
    pub(crate) fn next_line(&mut self, within: Duration) -> io::Result<Option<Line>> {
        let until = Instant::now() + within;
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.unread.len() > LINE_MAX {
                return Err(io::Error::other("the evictor printed a line that is too long"));
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.answers, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(0) => return Ok(None),
                Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut buffer = [0; 4096];
            match self.answers.read(&mut buffer)? {
                0 => return Err(io::Error::other("the evictor was killed")),
                count => self.unread.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Reads lines until the order has ended, or until `is_over`.
    pub(crate) fn read_to_end(
        &mut self,
        mut take: impl FnMut(Line),
        is_over: impl Fn() -> bool,
    ) -> io::Result<Outcome> {
        const LOOK: Duration = Duration::from_millis(100);
        loop {
            match self.next_line(LOOK)? {
                Some(Line::End { outcome }) => return Ok(outcome),
                Some(line) => take(line),
                None if is_over() => return Err(io::Error::other("gpreempt ends")),
                None => {}
            }
        }
    }
}

impl Drop for EvictorChild {
    /// It is never killed: a call in flight completes, and its lock with it.
    fn drop(&mut self) {
        self.orders = None;
        let Some(mut child) = self.child.take() else { return };
        let until = Instant::now() + END_WAIT;
        while Instant::now() < until {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let reaper = std::thread::Builder::new().name("gpreempt-reaper".to_owned());
        let _ = reaper.spawn(move || child.wait());
    }
}

/// Gives an order to a program of its own and waits until it has ended.
pub(crate) fn run_to_end(order: &Order) -> io::Result<Outcome> {
    run_with_lines(order, drop)
}

/// The same, with the lines that it prints before its end.
pub(crate) fn run_with_lines(order: &Order, take: impl FnMut(Line)) -> io::Result<Outcome> {
    let mut child = EvictorChild::start(&program()?)?;
    child.send(order)?;
    child.read_to_end(take, || false)
}
