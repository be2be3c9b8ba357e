//! Signals as something to read.
//!
//! Each sets its flag first and then makes the socket readable, so whoever reads sees the flag.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// Signals that came and that nobody has taken note of.
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

impl Signals {
    /// From now on these signals do nothing else any more.
    pub(super) fn take_over() -> io::Result<Self> {
        let (stream, sender) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let flags = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let [stop, reload, child] = &flags;
        for (signal, flag) in [(SIGTERM, stop), (SIGINT, stop), (SIGHUP, reload), (SIGCHLD, child)]
        {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        let [stop, reload, child] = flags;
        Ok(Self { stream, stop, reload, child })
    }

    /// What was asked for since the last call.
    pub(super) fn take(&mut self) -> Asked {
        while matches!(self.stream.read(&mut [0; 64]), Ok(count) if count > 0) {}
        // ORDERING: the socket orders it; the handler sets the flag before it writes.
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        Asked { stop: take(&self.stop), reload: take(&self.reload), child: take(&self.child) }
    }
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
}
