//! The epoll set of the loop, and the time of its next iteration.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gpreempt_core::time::Duration;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A descriptor in the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PollSource {
    /// The socket for clients.
    Clients,
    /// The socket for root's clients.
    RootClients,
    Signals,
    /// A thread of a controller woke the loop.
    Devices,
    /// The metrics server wants a page.
    MetricsPage,
    Session(u64),
    /// The end of a process.
    Process(u64),
}

impl PollSource {
    /// A number in the epoll set has the kind in its upper bits and the name below.
    const NAME_BITS: u32 = 56;

    const fn number(self) -> u64 {
        let (kind, name) = match self {
            Self::Clients => (0, 0),
            Self::RootClients => (1, 0),
            Self::Signals => (2, 0),
            Self::Devices => (3, 0),
            Self::MetricsPage => (4, 0),
            Self::Session(name) => (5, name),
            Self::Process(name) => (7, name),
        };
        (kind << Self::NAME_BITS) | name
    }

    /// Whether it can be served in a later iteration: it stays ready until it is served. Sessions
    /// have an order of their own.
    pub(crate) const fn can_wait(self) -> bool {
        matches!(self, Self::MetricsPage | Self::Process(_))
    }

    fn from_number(number: u64) -> Option<Self> {
        let name = number & ((1 << Self::NAME_BITS) - 1);
        Some(match number >> Self::NAME_BITS {
            0 => Self::Clients,
            1 => Self::RootClients,
            2 => Self::Signals,
            3 => Self::Devices,
            4 => Self::MetricsPage,
            5 => Self::Session(name),
            7 => Self::Process(name),
            _ => return None,
        })
    }
}

pub(crate) struct Poller {
    epoll: OwnedFd,
    /// Buffer of the system call, reused by every iteration.
    ready: RefCell<Vec<epoll::Event>>,
    /// Sources that were ready in the last iteration and were not served.
    postponed: RefCell<Vec<PollSource>>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// Sources taken in one iteration: all sessions at once, so that users are served in turn. Others
/// that have no room are taken in the next iteration.
const READY_MAX: usize = 1_024;

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let ready = RefCell::new(Vec::with_capacity(READY_MAX));
        Ok(Self { epoll, ready, postponed: RefCell::default() })
    }

    /// Watches a source for input until its descriptor is closed, or until it is forgotten.
    pub(crate) fn watch(&self, fd: impl AsFd, source: PollSource) -> io::Result<()> {
        let data = EventData::new_u64(source.number());
        Ok(epoll::add(&self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Watches a source for room to write as well, or no longer.
    pub(crate) fn watch_writing(&self, fd: impl AsFd, source: PollSource, wanted: bool) {
        let writing = if wanted { EventFlags::OUT } else { EventFlags::empty() };
        let data = EventData::new_u64(source.number());
        // It fails only for a source that is not in the set.
        let _ = epoll::modify(&self.epoll, fd, data, EventFlags::IN | writing);
    }

    /// Watches a source no longer. Without interest in any event the kernel would still report the
    /// end of its connection, again and again.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        // It fails only for a source that is not in the set.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Serves a ready source in the next iteration instead, before all others, so that every source
    /// is served however busy the others are.
    pub(crate) fn postpone(&self, source: PollSource) {
        self.postponed.borrow_mut().push(source);
    }

    /// Waits until a source is ready, but not longer than `at_most`.
    ///
    /// Most waits time out. So `ppoll` waits for the whole set, with a time in nanoseconds on every
    /// kernel; only if a source is ready a second call asks which.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<Vec<PollSource>> {
        let timeout = timespec(at_most);
        let mut set = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut set, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = self.ready.borrow_mut();
        ready.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let sources = ready.iter().filter_map(|event| PollSource::from_number(event.data.u64()));
        let mut sources: Vec<PollSource> = sources.collect();
        let mut postponed = self.postponed.borrow_mut();
        if !postponed.is_empty() {
            sources.sort_by_key(|source| !postponed.contains(source));
            postponed.clear();
        }
        Ok(sources)
    }
}

/// The time until which the loop may sleep, on the clock of
/// [`gpreempt_device::keeper::monotonic_ns`]. A kernel timer would cost a system call in every
/// iteration.
#[derive(Debug)]
pub(crate) struct Wakeup {
    due_ns: u64,
}

impl Wakeup {
    pub(crate) const fn new() -> Self {
        Self { due_ns: u64::MAX }
    }

    pub(crate) const fn set(&mut self, at_ns: u64) {
        self.due_ns = at_ns;
    }

    pub(crate) const fn left(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.due_ns.saturating_sub(now_ns))
    }

    /// How late the loop is, if the time has come.
    pub(crate) fn late(&self, now_ns: u64) -> Option<Duration> {
        now_ns.checked_sub(self.due_ns).map(Duration::from_nanos)
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    let time = std::time::Duration::from_nanos(time.as_nanos());
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::controller::Waker;

    #[test]
    fn sources_are_told_apart() {
        let all = [
            PollSource::Clients,
            PollSource::RootClients,
            PollSource::Signals,
            PollSource::Devices,
            PollSource::MetricsPage,
            PollSource::Session(7),
            PollSource::Process(7),
        ];
        for source in all {
            assert_eq!(PollSource::from_number(source.number()), Some(source));
        }
        assert_eq!(PollSource::from_number(u64::MAX), None);
    }

    #[test]
    fn only_sources_with_input_are_ready() {
        let poller = Poller::new().unwrap();
        let (quiet, loud) = (Waker::new().unwrap(), Waker::new().unwrap());
        poller.watch(&quiet, PollSource::Session(1)).unwrap();
        poller.watch(&loud, PollSource::Session(2)).unwrap();
        assert_eq!(poller.wait(Duration::from_micros(1)).unwrap(), []);
        loud.wake();
        let long = Duration::from_millis(60_000);
        assert_eq!(poller.wait(long).unwrap(), [PollSource::Session(2)]);
        quiet.wake();
        drop(loud);
        assert_eq!(poller.wait(long).unwrap(), [PollSource::Session(1)], "closed, so not watched");
        poller.forget(&quiet);
        assert_eq!(poller.wait(Duration::from_micros(1)).unwrap(), []);
    }

    #[test]
    fn a_postponed_source_comes_first_and_once() {
        let poller = Poller::new().unwrap();
        let wakers = [1, 2, 3].map(|name| (name, Waker::new().unwrap()));
        for (name, waker) in &wakers {
            poller.watch(waker, PollSource::Session(*name)).unwrap();
            waker.wake();
        }
        let first = |of: usize| poller.wait(Duration::from_millis(60_000)).unwrap()[..of].to_vec();
        poller.postpone(PollSource::Session(3));
        assert_eq!(first(1), [PollSource::Session(3)]);
        poller.postpone(PollSource::Session(2));
        assert_eq!(first(1), [PollSource::Session(2)]);
        assert_eq!(first(3).len(), 3);
    }

    #[test]
    fn a_wakeup_tells_how_much_time_is_left_and_how_late_it_is() {
        let mut wakeup = Wakeup::new();
        assert_eq!(wakeup.late(1 << 63), None);
        wakeup.set(30);
        let late = [0, 29, 30, 37].map(|now_ns| wakeup.late(now_ns).map(Duration::as_nanos));
        assert_eq!(late, [None, None, Some(0), Some(7)]);
        assert_eq!([0, 29, 30, 37].map(|now_ns| wakeup.left(now_ns).as_nanos()), [30, 1, 0, 0]);
    }
}
