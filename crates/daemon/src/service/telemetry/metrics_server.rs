//! The thread that serves `/metrics`, so that connections cost the loop of the service nothing.
//!
//! The loop only makes pages: the thread asks for one when a complete request waits, and every
//! request is answered with a page that was begun after it arrived. Whatever clients do, this is
//! bounded:
//!
//! | what | bound |
//! |---|---|
//! | connections | [`EXCHANGES_MAX`]; a further one replaces one that waits for its client |
//! | memory of a connection | its head, and socket buffers of [`SOCKET_BYTES`] |
//! | pages | one for all waiting requests; [`PAGE_SHARE`] of the loop's time |
//! | processor time of the thread | one part in [`WORK_SHARE`] of a core |

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::exchange::{Exchange, Waits};
use crate::metrics::http::{HostNames, Status};
use crate::service::poller::{PollSource, Poller, timespec};

/// Open connections.
const EXCHANGES_MAX: usize = 64;
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
    /// Listens at `address`. The poller learns when a page is wanted.
    pub(crate) fn listen(
        address: SocketAddr,
        hosts: HostNames,
        poller: &Poller,
    ) -> Result<Self, MetricsError> {
        let failed = |error| MetricsError::Listen { address, error };
        let server = Self::start(address, hosts).map_err(failed)?;
        poller.watch(&server.shared.wanted, PollSource::MetricsPage).map_err(failed)?;
        Ok(server)
    }

    fn start(address: SocketAddr, hosts: HostNames) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // Accepted sockets inherit both.
        set_socket_send_buffer_size(&listener, SOCKET_BYTES)?;
        set_socket_recv_buffer_size(&listener, SOCKET_BYTES)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (wanted, changed) = (eventfd(0, flags)?, eventfd(0, flags)?);
        let state = Mutex::new(State { hosts: Arc::new(hosts), ..State::default() });
        let shared = Arc::new(Shared { wanted, changed, state });
        let server = ServerThread::new(listener, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || server.run())?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// The configured address.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set_hosts(&self, hosts: HostNames) {
        self.shared.lock().hosts = Arc::new(hosts);
    }

    /// The thread wants a page. Returns what it could not do since it last wanted one.
    pub(crate) fn take_wish(&self) -> Result<(), MetricsError> {
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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    page: Option<(Arc<[u8]>, Duration)>,
    problem: Option<io::Error>,
    hosts: Arc<HostNames>,
    is_stopping: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it has the lock, and any state is a valid one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
struct PageWish {
    /// The last exchange that its page answers.
    until: u64,
}

#[derive(Debug)]
struct ServerThread {
    listener: TcpListener,
    shared: Arc<Shared>,
    exchanges: BTreeMap<u64, Exchange>,
    last: u64,
    wish: Option<PageWish>,
    /// When the next page may be asked for.
    page_at: Instant,
    /// When the next connection may be accepted.
    accept_at: Instant,
}

impl ServerThread {
    fn new(listener: TcpListener, shared: Arc<Shared>) -> Self {
        let zero = Instant::from_nanos(0);
        let exchanges = BTreeMap::new();
        Self { listener, shared, exchanges, last: 0, wish: None, page_at: zero, accept_at: zero }
    }

    fn run(mut self) {
        // The loop's priority is not for this thread, which inherits it.
        if getpriority_process(None).is_ok_and(|niceness| niceness < 0) {
            let _ = setpriority_process(None, 0);
        }
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
                Some(Waits::Request | Waits::Closing) | None => PollFlags::IN,
                Some(Waits::Reading) => PollFlags::OUT,
                Some(Waits::Page) => PollFlags::empty(),
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
        let ends = self.exchanges.values().map(Exchange::deadline).min();
        let page = (self.wish.is_none() && self.waits_for_page()).then_some(self.page_at);
        let accept = (self.accept_at > now()).then_some(self.accept_at);
        [ends, page, accept].into_iter().flatten().min()
    }

    fn serve(&mut self, ready: &Ready) {
        let hosts = {
            let mut state = self.shared.lock();
            let (page, hosts) = (state.page.take(), Arc::clone(&state.hosts));
            drop(state);
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
        if self.wish.is_none() && now >= self.page_at && self.waits_for_page() {
            self.wish = Some(PageWish { until: self.last });
            signal(&self.shared.wanted);
        }
    }

    fn send_page(&mut self, page: &Arc<[u8]>, took: Duration) {
        let Some(wish) = self.wish.take() else { return };
        for (_, exchange) in self.exchanges.range_mut(..=wish.until) {
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
        self.exchanges.len() < EXCHANGES_MAX || self.replaceable().is_some()
    }

    /// The exchange that a new one replaces: of those that wait for their client, the oldest one of
    /// the address with most exchanges. One that has not sent its request goes first.
    fn replaceable(&self) -> Option<u64> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for exchange in self.exchanges.values() {
            *counts.entry(exchange.peer()).or_default() += 1;
        }
        let idle = self.exchanges.iter().filter(|(_, e)| e.waits() != Some(Waits::Page));
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
            if self.exchanges.len() >= EXCHANGES_MAX
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    /// A server at a free port, and a loop that makes pages until the value is dropped.
    struct Served {
        address: SocketAddr,
        pages: Arc<AtomicU32>,
        is_over: Arc<AtomicBool>,
        pager: Option<JoinHandle<()>>,
    }

    fn serve() -> Served {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let server = MetricsServer::start(address, HostNames::default()).unwrap();
        let (pages, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (made, stop) = (Arc::clone(&pages), Arc::clone(&is_over));
        let pager = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut set = [PollFd::new(&server.shared.wanted, PollFlags::IN)];
                let limit = timespec(Duration::from_millis(10));
                if poll(&mut set, Some(&limit)).unwrap() > 0 {
                    server.take_wish().unwrap();
                    let page = made.fetch_add(1, Ordering::Relaxed) + 1;
                    server.publish(&format!("page {page}\n"), Duration::ZERO);
                }
            }
        });
        Served { address, pages, is_over, pager: Some(pager) }
    }

    impl Served {
        fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).unwrap()
        }

        fn page(&self) -> String {
            let mut stream = self.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.is_over.store(true, Ordering::Relaxed);
            self.pager.take().unwrap().join().unwrap();
        }
    }

    /// Reads until the server closes the connection.
    fn is_closed(stream: &mut TcpStream) -> bool {
        stream.read_to_end(&mut Vec::new()).is_ok() || stream.take_error().is_ok()
    }

    #[test]
    fn every_request_gets_a_page_that_is_made_after_it() {
        let served = serve();
        for page in 1..=3 {
            assert!(served.page().ends_with(&format!("\r\n\r\npage {page}\n")));
        }
    }

    #[test]
    fn idle_connections_keep_no_request_from_its_answer() {
        let served = serve();
        let mut idle: Vec<_> = (0..3 * EXCHANGES_MAX).map(|_| served.connect()).collect();
        assert!(served.page().contains("page 1"));
        assert!(is_closed(&mut idle[0]), "the oldest one is replaced");
        // Each sends a part of a request, and the connections are full again.
        let mut slow: Vec<_> = (0..2 * EXCHANGES_MAX).map(|_| served.connect()).collect();
        slow.iter_mut().for_each(|stream| drop(stream.write_all(b"G")));
        assert!(served.page().contains("page 2"));
    }

    #[test]
    fn clients_that_never_read_keep_no_request_from_its_answer() {
        let served = serve();
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        let mut deaf: Vec<_> = (0..3 * EXCHANGES_MAX).map(|_| served.connect()).collect();
        deaf.iter_mut().for_each(|stream| drop(stream.write_all(request)));
        assert!(served.page().starts_with("HTTP/1.1 200 OK"));
        let pages = served.pages.load(Ordering::Relaxed);
        assert!(pages <= 50, "{pages} pages for 193 requests");
    }

    #[test]
    fn the_server_ends_with_its_value_and_frees_the_address() {
        let served = serve();
        let address = served.address;
        let mut open = served.connect();
        drop(served);
        assert!(is_closed(&mut open));
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn an_address_in_use_is_refused_in_one_sentence() {
        let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let poller = Poller::new().unwrap();
        let address = used.local_addr().unwrap();
        let refused = MetricsServer::listen(address, HostNames::default(), &poller);
        let error = refused.err().unwrap().to_string();
        assert!(error.starts_with(&format!("metrics cannot be served at {address}: ")), "{error}");
    }
}
