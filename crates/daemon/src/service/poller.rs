//! What the loop waits for: one epoll set, and the time of its next turn.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gpreempt_core::time::Duration;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Who wants something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// Somebody connects.
    Clients,
    /// A signal came.
    Signals,
    /// A worker of a device has something to say.
    Devices,
    /// Somebody connects who wants metrics.
    MetricsClients,
    /// That session can be read from or written to.
    Session(u64),
    /// That connection of somebody who wants metrics can be.
    Metrics(u64),
    /// That process ended.
    Process(u64),
}

impl Source {
    /// The number says more than which source it is: a kind above, its name below.
    const NAME_BITS: u32 = 56;

    const fn number(self) -> u64 {
        let (kind, name) = match self {
            Self::Clients => (0, 0),
            Self::Signals => (2, 0),
            Self::Devices => (3, 0),
            Self::MetricsClients => (4, 0),
            Self::Session(name) => (5, name),
            Self::Metrics(name) => (6, name),
            Self::Process(name) => (7, name),
        };
        (kind << Self::NAME_BITS) | name
    }

    /// Whether it can be served in a later turn: it is ready again until it is served.
    pub(super) const fn can_wait(self) -> bool {
        matches!(self, Self::Session(_) | Self::Metrics(_) | Self::Process(_))
    }

    fn from_number(number: u64) -> Option<Self> {
        let name = number & ((1 << Self::NAME_BITS) - 1);
        Some(match number >> Self::NAME_BITS {
            0 => Self::Clients,
            2 => Self::Signals,
            3 => Self::Devices,
            4 => Self::MetricsClients,
            5 => Self::Session(name),
            6 => Self::Metrics(name),
            7 => Self::Process(name),
            _ => return None,
        })
    }
}

/// The set.
pub(super) struct Poller {
    epoll: OwnedFd,
    /// Room for what the system says, kept from one turn to the next.
    ready: RefCell<Vec<epoll::Event>>,
    /// Who was ready last time and was not served.
    postponed: RefCell<Vec<Source>>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// How many sources are taken in one turn. The others come in the next.
const READY_MAX: usize = 256;

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let ready = RefCell::new(Vec::with_capacity(READY_MAX));
        Ok(Self { epoll, ready, postponed: RefCell::default() })
    }

    /// Watches a source for something to read. It is watched until its descriptor is closed.
    pub(super) fn watch(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        let data = EventData::new_u64(source.number());
        Ok(epoll::add(&self.epoll, fd, data, EventFlags::IN)?)
    }

    /// Watches a source also for room to write, or no longer.
    pub(super) fn watch_writing(&self, fd: impl AsFd, source: Source, wanted: bool) {
        let writing = if wanted { EventFlags::OUT } else { EventFlags::empty() };
        let data = EventData::new_u64(source.number());
        // It can only fail if the source is not in the set, and then there is nothing to change.
        let _ = epoll::modify(&self.epoll, fd, data, EventFlags::IN | writing);
    }

    /// A source that is ready is not served in this turn. It is ready again in the next one, and
    /// comes first, so everybody has his turn however much the others want.
    pub(super) fn postpone(&self, source: Source) {
        self.postponed.borrow_mut().push(source);
    }

    /// Waits until somebody wants something, but not longer than that, and says who.
    ///
    /// Most of the time nobody does. So the set is first waited for as a whole, for which any
    /// kernel can be told the time to the nanosecond; only who is in it costs a second call.
    pub(super) fn wait(&self, at_most: Duration) -> io::Result<Vec<Source>> {
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
        let sources = ready.iter().filter_map(|event| Source::from_number(event.data.u64()));
        let mut sources: Vec<Source> = sources.collect();
        let mut postponed = self.postponed.borrow_mut();
        if !postponed.is_empty() {
            sources.sort_by_key(|source| !postponed.contains(source));
            postponed.clear();
        }
        Ok(sources)
    }
}

/// A time on the clock of [`gpreempt_device::keeper::monotonic_ns`] until which the loop may sleep.
/// No timer of the kernel: setting one would be one more system call in every turn.
#[derive(Debug)]
pub(super) struct Alarm {
    due_ns: u64,
}

impl Alarm {
    /// One that never rings.
    pub(super) const fn new() -> Self {
        Self { due_ns: u64::MAX }
    }

    /// Rings at that time, and not before.
    pub(super) const fn set(&mut self, at_ns: u64) {
        self.due_ns = at_ns;
    }

    /// How long the loop may sleep.
    pub(super) const fn left(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.due_ns.saturating_sub(now_ns))
    }

    /// How late the loop is, if it rang.
    pub(super) fn late(&self, now_ns: u64) -> Option<Duration> {
        now_ns.checked_sub(self.due_ns).map(Duration::from_nanos)
    }
}

fn timespec(time: Duration) -> Timespec {
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
            Source::Clients,
            Source::Signals,
            Source::Devices,
            Source::MetricsClients,
            Source::Session(7),
            Source::Metrics(7),
            Source::Process(7),
        ];
        for source in all {
            assert_eq!(Source::from_number(source.number()), Some(source));
        }
        assert_eq!(Source::from_number(u64::MAX), None);
    }

    #[test]
    fn only_who_wants_something_is_ready() {
        let poller = Poller::new().unwrap();
        let (quiet, loud) = (Waker::new().unwrap(), Waker::new().unwrap());
        poller.watch(&quiet, Source::Session(1)).unwrap();
        poller.watch(&loud, Source::Session(2)).unwrap();
        assert_eq!(poller.wait(Duration::from_micros(1)).unwrap(), []);
        loud.wake();
        let long = Duration::from_millis(60_000);
        assert_eq!(poller.wait(long).unwrap(), [Source::Session(2)]);
        quiet.wake();
        drop(loud);
        assert_eq!(poller.wait(long).unwrap(), [Source::Session(1)], "closed, so not watched");
    }

    #[test]
    fn who_was_postponed_comes_first_and_once() {
        let poller = Poller::new().unwrap();
        let wakers = [1, 2, 3].map(|name| (name, Waker::new().unwrap()));
        for (name, waker) in &wakers {
            poller.watch(waker, Source::Session(*name)).unwrap();
            waker.wake();
        }
        let first = |of: usize| poller.wait(Duration::from_millis(60_000)).unwrap()[..of].to_vec();
        poller.postpone(Source::Session(3));
        assert_eq!(first(1), [Source::Session(3)]);
        poller.postpone(Source::Session(2));
        assert_eq!(first(1), [Source::Session(2)]);
        assert_eq!(first(3).len(), 3, "nobody is left out");
    }

    #[test]
    fn it_rings_when_its_time_has_come_and_says_how_long_ago_that_was() {
        let mut alarm = Alarm::new();
        assert_eq!(alarm.late(1 << 63), None);
        alarm.set(30);
        let late = [0, 29, 30, 37].map(|now_ns| alarm.late(now_ns).map(Duration::as_nanos));
        assert_eq!(late, [None, None, Some(0), Some(7)]);
        assert_eq!([0, 29, 30, 37].map(|now_ns| alarm.left(now_ns).as_nanos()), [30, 1, 0, 0]);
    }
}
