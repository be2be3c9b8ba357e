//! Signals as something to read.
//!
//! Each sets its flag first and then makes the socket readable, so that the reader sees the flag.
//! A service inside of a command has the same socket and flags without the handlers: the command
//! keeps its signals and asks the service to stop through a [`Stopper`].

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// Signals that arrived since the last [`Signals::take`].
#[derive(Debug)]
pub(super) struct Signals {
    stream: UnixStream,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    child: Arc<AtomicBool>,
}

/// What the signals ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// To end: SIGTERM or SIGINT.
    pub(super) stop: bool,
    /// To read the configuration again: SIGHUP.
    pub(super) reload: bool,
    /// To look after our child, the keeper: SIGCHLD.
    pub(super) child: bool,
}

/// Asks a service in another thread of this process to stop.
#[derive(Debug)]
pub(super) struct Stopper {
    sender: UnixStream,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// From now on these signals do nothing else any more.
    pub(super) fn take_over() -> io::Result<Self> {
        let (signals, sender) = Self::new()?;
        let [stop, reload] = [&signals.stop, &signals.reload];
        for (signal, flag) in [(SIGTERM, stop), (SIGINT, stop), (SIGHUP, reload)] {
            register(signal, flag, &sender)?;
        }
        register(SIGCHLD, &signals.child, &sender)?;
        Ok(signals)
    }

    /// The signals of a service inside of a command. The end of a child is noticed beside the
    /// command's own handler; the other signals are the command's alone.
    pub(super) fn of_command() -> io::Result<(Self, Stopper)> {
        let (signals, sender) = Self::new()?;
        register(SIGCHLD, &signals.child, &sender)?;
        let stop = Arc::clone(&signals.stop);
        Ok((signals, Stopper { sender, stop }))
    }

    fn new() -> io::Result<(Self, UnixStream)> {
        let (stream, sender) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let [stop, reload, child] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        Ok((Self { stream, stop, reload, child }, sender))
    }

    /// What was asked for since the last call.
    pub(super) fn take(&mut self) -> Asked {
        while matches!(self.stream.read(&mut [0; 64]), Ok(count) if count > 0) {}
        // ORDERING: the socket orders it; the handler sets the flag before it writes.
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        Asked { stop: take(&self.stop), reload: take(&self.reload), child: take(&self.child) }
    }
}

impl Stopper {
    /// Asks. The loop that reads the signals ends in good order.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // A service that has ended reads nothing, and need not.
        let _ = (&self.sender).write(&[1]);
    }
}

fn register(signal: i32, flag: &Arc<AtomicBool>, sender: &UnixStream) -> io::Result<()> {
    signal_hook::flag::register(signal, Arc::clone(flag))?;
    signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    Ok(())
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_once() {
        let mut signals = Signals::take_over().unwrap();
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::HUP).unwrap();
        let asked = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            Some(signals.take()).filter(|asked| asked.reload)
        });
        assert!(asked.is_some_and(|asked| !asked.stop));
        assert!(!signals.take().reload);
    }

    #[test]
    fn a_command_asks_without_a_signal() {
        let (mut signals, stopper) = Signals::of_command().unwrap();
        assert!(!signals.take().stop);
        stopper.stop();
        assert!(signals.take().stop);
        drop(signals);
        stopper.stop();
    }
}
