//! Signals as flags and a readable socket for the epoll set.
//!
//! A handler sets its flag first and then makes the socket readable, so that the loop sees the
//! flag. A service inside a command has the same socket and flags without the handlers: the command
//! keeps its signals and stops the service through a [`StopHandle`].

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// Signals that arrived since the last [`Signals::take`].
#[derive(Debug)]
pub(crate) struct Signals {
    stream: UnixStream,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    child: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalFlags {
    /// SIGTERM or SIGINT.
    pub(crate) stop: bool,
    /// SIGHUP.
    pub(crate) reload: bool,
    /// SIGCHLD: the keeper may have ended.
    pub(crate) child: bool,
}

/// Stops a service in another thread of this process.
#[derive(Debug)]
pub(crate) struct StopHandle {
    sender: UnixStream,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers of the daemon.
    pub(crate) fn take_over() -> io::Result<Self> {
        let (signals, sender) = Self::new()?;
        let [stop, reload] = [&signals.stop, &signals.reload];
        for (signal, flag) in [(SIGTERM, stop), (SIGINT, stop), (SIGHUP, reload)] {
            register(signal, flag, &sender)?;
        }
        register(SIGCHLD, &signals.child, &sender)?;
        Ok(signals)
    }

    /// The signals of a service inside a command: SIGCHLD beside the command's own handler, and no
    /// other.
    pub(crate) fn of_command() -> io::Result<(Self, StopHandle)> {
        let (signals, sender) = Self::new()?;
        register(SIGCHLD, &signals.child, &sender)?;
        let stop = Arc::clone(&signals.stop);
        Ok((signals, StopHandle { sender, stop }))
    }

    fn new() -> io::Result<(Self, UnixStream)> {
        let (stream, sender) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let [stop, reload, child] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        Ok((Self { stream, stop, reload, child }, sender))
    }

    /// The signals since the last call.
    pub(crate) fn take(&mut self) -> SignalFlags {
        while matches!(self.stream.read(&mut [0; 64]), Ok(count) if count > 0) {}
        // ORDERING: the socket orders it; the handler sets the flag before it writes.
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        SignalFlags { stop: take(&self.stop), reload: take(&self.reload), child: take(&self.child) }
    }
}

impl StopHandle {
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // A service that has ended does not read it.
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
    fn a_signal_is_reported_once() {
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
    fn a_command_stops_its_service_without_a_signal() {
        let (mut signals, stopper) = Signals::of_command().unwrap();
        assert!(!signals.take().stop);
        stopper.stop();
        assert!(signals.take().stop);
        drop(signals);
        stopper.stop();
    }
}
