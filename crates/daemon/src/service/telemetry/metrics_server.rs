//! The thread that serves `/metrics` and the [live page](crate::live), so that connections cost the
//! loop of the service nothing.
//!
//! The loop only makes pages: the thread asks for one when a complete request waits, and every
//! request is answered with a page that was begun after it arrived. Whatever clients do, this is
//! bounded:
//!
//! | what | bound |
//! |---|---|
//! | connections | [`EXCHANGES_MAX`]; a further one replaces one that waits for its client |
//! | viewers of the page, beside these | [`VIEWERS_MAX`]; further ones are refused |
//! | memory of a connection | its head, and socket buffers of [`SOCKET_BYTES`] |
//! | pages | one for all waiting requests; [`PAGE_SHARE`] of the loop's time |
//! | processor time of the thread | one part in [`WORK_SHARE`] of a core |

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use crate::config::MetricsConfig;
use crate::live::feed::{self, Viewers};
use crate::live::update::Update;
use crate::metrics::exchange::{Exchange, Waits};
use crate::metrics::http::{HostNames, Status};
use crate::service::poller::{PollSource, Poller, timespec};

/// Open connections.
const EXCHANGES_MAX: usize = 64;
/// Viewers of the live page.
const VIEWERS_MAX: usize = 128;
/// Connections that the kernel keeps until the thread accepts them.
const BACKLOG: i32 = 1024;
/// Connections that one turn accepts.
const ACCEPTS_MAX: usize = 32;
/// Bytes of each socket buffer, of which the kernel reserves twice as much. Clients that never read
/// cost 64 * 128 KiB together.
const SOCKET_BYTES: usize = 64 * 1024;
/// After work, the thread rests this many times as long.
const WORK_SHARE: u64 = 10;
/// But no longer than this, so that a page for a large machine is still sent in time.
const REST_MAX: Duration = Duration::from_millis(50);
/// Between two pages there is at least this many times as long as making one took.
const PAGE_SHARE: u64 = 20;
/// And at least this.
const PAGE_PAUSE_MIN: Duration = Duration::from_millis(20);
/// How long the thread does not accept after the kernel refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1_000);

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetricsError {
    #[error("metrics cannot be served at {address}: {error}; see `listen` in [metrics]")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("a connection for metrics cannot be accepted: {0}; trying again every second")]
    Accept(io::Error),
}

/// The loop's end of the server. Dropping it ends the thread and closes every connection.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens where the configuration says. The poller learns when a page of metrics is wanted.
    /// `socket` is that of the service, which the live page follows.
    pub(crate) fn listen(
        config: &MetricsConfig,
        socket: &Path,
        poller: &Poller,
    ) -> Result<Option<Self>, MetricsError> {
        let Some(address) = config.listen else { return Ok(None) };
        let failed = |error| MetricsError::Listen { address, error };
        let hosts = HostNames::new(&config.hosts);
        let sockets = config.shows_page().then(|| vec![socket.to_owned()]);
        let server = Self::start(address, hosts, sockets, true).map_err(failed)?;
        poller.watch(&server.shared.wanted, PollSource::MetricsPage).map_err(failed)?;
        Ok(Some(server))
    }

    /// Serves the live page alone. `sockets` are those of the service.
    pub(crate) fn without_metrics(
        address: SocketAddr,
        hosts: HostNames,
        sockets: Vec<PathBuf>,
    ) -> io::Result<Self> {
        Self::start(address, hosts, Some(sockets), false)
    }

    fn start(
        address: SocketAddr,
        hosts: HostNames,
        sockets: Option<Vec<PathBuf>>,
        has_metrics: bool,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // Accepted sockets inherit both.
        set_socket_send_buffer_size(&listener, SOCKET_BYTES)?;
        set_socket_recv_buffer_size(&listener, SOCKET_BYTES)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (wanted, changed) = (eventfd(0, flags)?, eventfd(0, flags)?);
        let address = listener.local_addr()?;
        let state = Mutex::new(State { hosts: Arc::new(hosts), ..State::default() });
        let has_page = sockets.is_some();
        let viewers = Condvar::new();
        let shared = Arc::new(Shared { wanted, changed, viewers, has_metrics, has_page, state });
        let server = ServerThread::new(listener, Arc::clone(&shared));
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let thread = Some(spawn("metrics").spawn(move || server.run())?);
        let server = Self { address, shared, thread };
        if let Some(sockets) = sockets {
            // It ends by itself, and is not waited for: it may be waiting for the service's loop,
            // which drops this value.
            let shared = Arc::clone(&server.shared);
            spawn("live-page").spawn(move || {
                leave_priority_of_loop();
                feed::run(&sockets, &shared);
            })?;
        }
        Ok(server)
    }

    /// Whether it can go on with a new configuration.
    pub(crate) fn fits(&self, config: &MetricsConfig) -> bool {
        Some(self.address) == config.listen && self.shared.has_page == config.shows_page()
    }

    /// The address; the port is the one that the kernel chose for port 0.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set_hosts(&self, hosts: HostNames) {
        self.shared.lock().hosts = Arc::new(hosts);
    }

    /// The thread wants a page. Returns what it could not do since it last wanted one.
    pub(crate) fn take_page_request(&self) -> Result<(), MetricsError> {
        clear(&self.shared.wanted);
        self.shared.lock().problem.take().map_or(Ok(()), |error| Err(MetricsError::Accept(error)))
    }

    /// The page, and how long making it took.
    pub(crate) fn publish(&self, text: &str, took: Duration) {
        self.shared.lock().page = Some((Status::metrics(text), took));
        signal(&self.shared.changed);
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        signal(&self.shared.changed);
        self.shared.viewers.notify_all();
        // The thread never waits for anything else than this signal and its time limits.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Debug)]
struct Shared {
    /// From the thread to the loop.
    wanted: OwnedFd,
    /// From the loop to the thread.
    changed: OwnedFd,
    /// The number of viewers has changed, or the server ends.
    viewers: Condvar,
    has_metrics: bool,
    has_page: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    page: Option<(Arc<[u8]>, Duration)>,
    problem: Option<io::Error>,
    hosts: Arc<HostNames>,
    /// The newest update of the live page that no viewer has yet.
    update: Option<Update>,
    viewers: usize,
    has_new_viewers: bool,
    is_stopping: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it has the lock, and any state is a valid one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Viewers for Shared {
    fn wait_for_viewer(&self) -> bool {
        let is_alone = |state: &mut State| state.viewers == 0 && !state.is_stopping;
        let state = self.viewers.wait_while(self.lock(), is_alone);
        !state.unwrap_or_else(PoisonError::into_inner).is_stopping
    }

    fn pause(&self, time: std::time::Duration) -> bool {
        let is_watched = |state: &mut State| state.viewers > 0 && !state.is_stopping;
        let waited = self.viewers.wait_timeout_while(self.lock(), time, is_watched);
        is_watched(&mut waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn has_new(&self) -> bool {
        self.lock().has_new_viewers
    }

    fn publish(&self, update: Update) {
        self.lock().update = Some(update);
        signal(&self.changed);
    }
}

/// The loop's priority is not for a thread that serves, which inherits it.
fn leave_priority_of_loop() {
    if getpriority_process(None).is_ok_and(|niceness| niceness < 0) {
        let _ = setpriority_process(None, 0);
    }
}

fn signal(event: &OwnedFd) {
    // It fails only if the counter is full, and then it is readable.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

fn clear(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0_u8; 8]);
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    Duration::from_nanos(part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec))
}

/// A page that the loop was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageRequest {
    /// The last exchange that its page answers.
    until: u64,
}

#[derive(Debug)]
struct ServerThread {
    listener: TcpListener,
    shared: Arc<Shared>,
    exchanges: BTreeMap<u64, Exchange>,
    last: u64,
    asked_page: Option<PageRequest>,
    /// When the next page may be asked for.
    page_at: Instant,
    /// When the next connection may be accepted.
    accept_at: Instant,
}

impl ServerThread {
    fn new(listener: TcpListener, shared: Arc<Shared>) -> Self {
        let zero = Instant::from_nanos(0);
        let exchanges = BTreeMap::new();
        Self {
            listener,
            shared,
            exchanges,
            last: 0,
            asked_page: None,
            page_at: zero,
            accept_at: zero,
        }
    }

    fn run(mut self) {
        leave_priority_of_loop();
        let mut cpu = cpu_time();
        while !self.shared.lock().is_stopping {
            let Some(ready) = self.wait() else { return };
            self.serve(&ready);
            let worked = cpu_time().saturating_sub(cpu);
            self.rest(worked.times(WORK_SHARE - 1).min(REST_MAX));
            cpu = cpu_time();
        }
    }

    /// Waits until something is ready or due: whether there are connections to accept, and which
    /// exchanges can advance. None if the kernel cannot wait.
    fn wait(&self) -> Option<Ready> {
        let now = now();
        let mut set = vec![PollFd::new(&self.shared.changed, PollFlags::IN)];
        let accepts = now >= self.accept_at && self.has_place();
        let accept = if accepts { PollFlags::IN } else { PollFlags::empty() };
        set.push(PollFd::new(&self.listener, accept));
        for exchange in self.exchanges.values() {
            let flags = match exchange.waits() {
                Some(Waits::Request | Waits::Closing | Waits::Update) | None => PollFlags::IN,
                Some(Waits::Reading) => PollFlags::OUT,
                Some(Waits::Page | Waits::Permission) => PollFlags::empty(),
            };
            set.push(PollFd::new(exchange, flags));
        }
        let timeout = self.due().map(|at| timespec(at.since(now)));
        match poll(&mut set, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        // PANIC: the set begins with these two.
        let exchanges = self.exchanges.keys().zip(&set[2..]);
        let exchanges = exchanges.filter(|(_, fd)| is_ready(fd)).map(|(id, _)| *id).collect();
        Some(Ready { has_changes: is_ready(&set[0]), has_clients: is_ready(&set[1]), exchanges })
    }

    /// When something has to be done even if nothing is ready.
    fn due(&self) -> Option<Instant> {
        let ends = self.exchanges.values().filter_map(Exchange::deadline).min();
        let page = (self.asked_page.is_none() && self.waits_for_page()).then_some(self.page_at);
        let accept = (self.accept_at > now()).then_some(self.accept_at);
        [ends, page, accept].into_iter().flatten().min()
    }

    fn serve(&mut self, ready: &Ready) {
        let hosts = {
            let mut state = self.shared.lock();
            let (page, hosts) = (state.page.take(), Arc::clone(&state.hosts));
            let update = state.update.take();
            drop(state);
            if let Some(update) = update {
                self.exchanges.values_mut().for_each(|exchange| exchange.update(&update));
            }
            if ready.has_changes {
                clear(&self.shared.changed);
            }
            if let Some((page, took)) = page {
                self.send_page(&page, took);
            }
            hosts
        };
        for id in &ready.exchanges {
            if let Some(exchange) = self.exchanges.get_mut(id) {
                exchange.advance(&hosts);
            }
        }
        let now = now();
        self.exchanges.retain(|_, exchange| !exchange.is_over(now));
        if ready.has_clients {
            self.accept_some(now, &hosts);
        }
        self.admit();
        if self.asked_page.is_none() && now >= self.page_at && self.waits_for_page() {
            self.asked_page = Some(PageRequest { until: self.last });
            signal(&self.shared.wanted);
        }
    }

    /// Permits viewers, as far as there may be more, and refuses what this server does not have.
    fn admit(&mut self) {
        let Shared { has_metrics, has_page, .. } = *self.shared;
        let mut viewers = self.viewers();
        for exchange in self.exchanges.values_mut() {
            match exchange.asked() {
                None if exchange.waits() == Some(Waits::Page) && !has_metrics => {
                    exchange.answer(Status::NotFound.response());
                }
                None => {}
                Some(_) if !has_page => exchange.answer(Status::NotFound.response()),
                Some(Status::Updates) if viewers < VIEWERS_MAX => {
                    exchange.join();
                    viewers += 1;
                }
                Some(Status::Updates) => exchange.answer(Status::TooManyViewers.response()),
                Some(file) => exchange.answer(file.response()),
            }
        }
        let viewers = self.viewers();
        let mut state = self.shared.lock();
        state.has_new_viewers = self.exchanges.values().any(Exchange::is_new_viewer);
        if std::mem::replace(&mut state.viewers, viewers) != viewers {
            self.shared.viewers.notify_all();
        }
    }

    fn viewers(&self) -> usize {
        self.exchanges.values().filter(|exchange| exchange.is_viewer()).count()
    }

    fn send_page(&mut self, page: &Arc<[u8]>, took: Duration) {
        let Some(asked_page) = self.asked_page.take() else { return };
        for (_, exchange) in self.exchanges.range_mut(..=asked_page.until) {
            if exchange.waits() == Some(Waits::Page) {
                exchange.answer(Arc::clone(page));
            }
        }
        self.page_at = now() + took.times(PAGE_SHARE).max(PAGE_PAUSE_MIN);
    }

    fn waits_for_page(&self) -> bool {
        self.exchanges.values().any(|exchange| exchange.waits() == Some(Waits::Page))
    }

    /// Whether another connection can be accepted now, if need be in place of another one.
    fn has_place(&self) -> bool {
        self.exchanges.len() - self.viewers() < EXCHANGES_MAX || self.replaceable().is_some()
    }

    /// The exchange that a new one replaces: of those that wait for their client, the oldest one of
    /// the address with most exchanges. One that has not sent its request goes first.
    fn replaceable(&self) -> Option<u64> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for exchange in self.exchanges.values() {
            *counts.entry(exchange.peer()).or_default() += 1;
        }
        let is_idle = |e: &Exchange| e.waits() != Some(Waits::Page) && !e.is_viewer();
        let idle = self.exchanges.iter().filter(|(_, exchange)| is_idle(exchange));
        let rank = |(id, exchange): &(&u64, &Exchange)| {
            let most = std::cmp::Reverse(counts.get(&exchange.peer()).copied());
            (most, exchange.waits() != Some(Waits::Request), **id)
        };
        idle.min_by_key(rank).map(|(id, _)| *id)
    }

    fn accept_some(&mut self, now: Instant, hosts: &HostNames) {
        for _ in 0..ACCEPTS_MAX {
            if !self.has_place() {
                return;
            }
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Such as too many open files. The connection stays in the backlog.
                Err(error) => {
                    self.accept_at = now + ACCEPT_PAUSE;
                    self.shared.lock().problem = Some(error);
                    return signal(&self.shared.wanted);
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.exchanges.len() - self.viewers() >= EXCHANGES_MAX
                && let Some(oldest) = self.replaceable()
            {
                self.exchanges.remove(&oldest);
            }
            self.last += 1;
            let mut exchange = Exchange::new(stream, peer.ip().to_canonical(), now);
            // The request is nearly always there already.
            exchange.advance(hosts);
            self.exchanges.insert(self.last, exchange);
        }
    }

    /// Does nothing for a while, or until the loop has something to tell.
    fn rest(&self, time: Duration) {
        let mut set = [PollFd::new(&self.shared.changed, PollFlags::IN)];
        // An error or a signal only shortens the rest.
        let _ = poll(&mut set, Some(&timespec(time)));
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

/// What one wait found.
#[derive(Debug)]
struct Ready {
    has_changes: bool,
    has_clients: bool,
    exchanges: Vec<u64>,
}
