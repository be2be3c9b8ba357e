//! Results on stdout.

use std::io::Write;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::failure::Failure;

/// Prints text.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a value as JSON, for people and programs alike.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::run)?;
    text.push('\n');
    print(&text)
}

/// Fails if the reader of the output has closed it. A command that waits and prints nothing would
/// not notice it otherwise.
pub(crate) fn check_reader() -> Result<(), Failure> {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let is_gone = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP);
    if polled.is_ok() && is_gone { Err(Failure::ReaderGone) } else { Ok(()) }
}

/// Whether a line can be printed without waiting for its reader.
pub(crate) fn is_writable() -> bool {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::OUT)];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    // A reader that is gone is noticed by the attempt.
    !matches!(polled, Ok(0))
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(ns: u64) -> f64 {
    // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
    ns as f64 / 1000.0
}
