//! The HTTP of the metrics server: `GET /metrics`, one request per connection.
//!
//! Nothing here blocks, so the daemon's loop can drive it. The loop polls [`HttpListener`] for
//! reading. It polls every [`Exchange`] for writing while [`Exchange::wants_write`] is true and
//! else for reading, and drops it when [`Exchange::is_over`]. Clients are not trusted: the size of
//! a request, the time of an exchange and the number of exchanges are limited.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use gpreempt_core::time::{Duration, Instant};

use super::CONTENT_TYPE;

/// How many exchanges run at a time. Further connections get an error and are closed.
pub const EXCHANGES_MAX: usize = 16;
/// How long the line and the headers of a request may be together.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long an exchange may take, from the connection to its end.
pub const EXCHANGE_TIME_MAX: Duration = Duration::from_millis(10_000);

/// A socket that listens.
#[derive(Debug)]
pub struct HttpListener {
    socket: TcpListener,
    /// Every exchange has a reference, so that their number is known.
    places: Arc<()>,
}

impl HttpListener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// If the address cannot be used, for example because another program does.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, places: Arc::new(()) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How many exchanges there are.
    pub fn exchanges(&self) -> usize {
        Arc::strong_count(&self.places).saturating_sub(1)
    }

    /// Accepts the next connection, if one waits. Beyond the limit it gets an error and is closed:
    /// left waiting, it would wake the loop without end.
    pub fn accept(&self, now: Instant) -> io::Result<Option<Exchange>> {
        loop {
            let mut stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            };
            if self.exchanges() >= EXCHANGES_MAX {
                refuse(&mut stream);
                continue;
            }
            stream.set_nonblocking(true)?;
            return Ok(Some(Exchange::new(stream, now).with_place(Arc::clone(&self.places))));
        }
    }
}

/// Whether the error concerns that one connection only.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

/// Sends the error, if the kernel has room for it.
fn refuse(stream: &mut TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = stream.write(&Status::Busy.refusal());
    }
}

impl AsFd for HttpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes of one read, so that one client does not delay the others.
const READ_BYTES: usize = 16 * 1024;
/// Bytes that are read and discarded after the answer.
const LEFTOVER_BYTES_MAX: usize = 64 * 1024;

/// One connection: a request is received, an answer is sent.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    began: Instant,
    stage: Stage,
    /// Counted by the listener.
    _place: Option<Arc<()>>,
}

#[derive(Debug)]
enum Stage {
    /// The request is being received.
    Request(Request),
    /// The answer is being sent.
    Answer {
        bytes: Vec<u8>,
        sent: usize,
    },
    /// The client has its answer and should close. If the daemon closed first, with unread bytes,
    /// the kernel of the client could discard the answer.
    Leftover {
        bytes: usize,
    },
    Over,
}

impl Exchange {
    /// An exchange on `stream`, which must not block.
    pub fn new(stream: TcpStream, now: Instant) -> Self {
        Self { stream, began: now, stage: Stage::Request(Request::default()), _place: None }
    }

    /// The same, counted by the listener.
    fn with_place(self, place: Arc<()>) -> Self {
        Self { _place: Some(place), ..self }
    }

    /// The stream is readable. When that completes a request for metrics, `text` makes them.
    pub fn readable(&mut self, text: impl FnOnce() -> String) {
        // A client that shuts down its side after the request still wants the answer.
        if self.wants_write() {
            return;
        }
        let mut buffer = [0; READ_BYTES];
        let bytes = match self.stream.read(&mut buffer) {
            Ok(0) => return self.stage = Stage::Over,
            // PANIC: what was read is at the beginning of the buffer.
            Ok(count) => &buffer[..count],
            Err(error) => return self.end_unless_retry(&error),
        };
        match &mut self.stage {
            Stage::Request(request) => {
                let answer = match request.handle_bytes(bytes) {
                    None => return,
                    Some(Status::Metrics) => Status::metrics(&text()),
                    Some(refused) => refused.refusal(),
                };
                self.stage = Stage::Answer { bytes: answer, sent: 0 };
                // There is nearly always room, which saves an iteration of the loop.
                self.writable();
            }
            Stage::Leftover { bytes: so_far } => {
                *so_far += bytes.len();
                if *so_far > LEFTOVER_BYTES_MAX {
                    self.stage = Stage::Over;
                }
            }
            Stage::Answer { .. } | Stage::Over => {}
        }
    }

    /// The stream is writable.
    pub fn writable(&mut self) {
        let Stage::Answer { bytes, sent } = &mut self.stage else { return };
        // PANIC: no more was sent than there is.
        match self.stream.write(&bytes[*sent..]) {
            Ok(count) => *sent += count,
            Err(error) => return self.end_unless_retry(&error),
        }
        if *sent == bytes.len() {
            self.stage = match self.stream.shutdown(Shutdown::Write) {
                Ok(()) => Stage::Leftover { bytes: 0 },
                Err(_) => Stage::Over,
            };
        }
    }

    /// Whether to wait until the stream is writable, rather than readable.
    pub const fn wants_write(&self) -> bool {
        matches!(self.stage, Stage::Answer { .. })
    }

    /// Whether it can be dropped: the answer is sent, the client has left, or it took too long.
    pub fn is_over(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Over) || now.since(self.began) >= EXCHANGE_TIME_MAX
    }

    /// When its time is over.
    pub fn deadline(&self) -> Instant {
        self.began + EXCHANGE_TIME_MAX
    }

    fn end_unless_retry(&mut self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
            self.stage = Stage::Over;
        }
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The path of the metrics.
const PATH: &str = "/metrics";

/// The bytes of a request so far.
#[derive(Debug, Default)]
struct Request {
    head: Vec<u8>,
}

impl Request {
    /// Adds received bytes. Returns the answer as soon as it is determined.
    fn handle_bytes(&mut self, bytes: &[u8]) -> Option<Status> {
        for &byte in bytes {
            // A client of another protocol, such as TLS, never sends the end of a request.
            if byte.is_ascii_control() && !matches!(byte, b'\r' | b'\n' | b'\t') {
                return Some(Status::BadRequest);
            }
            if self.head.len() == HEAD_BYTES_MAX {
                return Some(Status::HeadersTooLarge);
            }
            self.head.push(byte);
            if self.head.ends_with(b"\n\r\n") || self.head.ends_with(b"\n\n") {
                return Some(answer_to(&self.head));
            }
        }
        None
    }
}

/// The answer to a complete head.
fn answer_to(head: &[u8]) -> Status {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Status::BadRequest };
    let line = line.strip_suffix('\r').unwrap_or(line);
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return Status::BadRequest };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !target.starts_with('/') || !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Status::BadRequest;
    }
    let path = target.split('?').next().unwrap_or(target);
    match (path, method) {
        (PATH, "GET") => Status::Metrics,
        (PATH, _) => Status::MethodNotAllowed,
        _ => Status::NotFound,
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Metrics,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    HeadersTooLarge,
    /// Too many exchanges run.
    Busy,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Metrics => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadersTooLarge => "431 Request Header Fields Too Large",
            Self::Busy => "503 Service Unavailable",
        }
    }

    /// The complete answer of an error.
    fn refusal(self) -> Vec<u8> {
        let body = match self {
            Self::NotFound => "Metrics are at /metrics.\n".to_owned(),
            Self::Metrics
            | Self::BadRequest
            | Self::MethodNotAllowed
            | Self::HeadersTooLarge
            | Self::Busy => format!("{}\n", self.line()),
        };
        self.answer("text/plain; charset=utf-8", &body)
    }

    /// The complete answer with these metrics.
    fn metrics(text: &str) -> Vec<u8> {
        Self::Metrics.answer(CONTENT_TYPE, text)
    }

    fn answer(self, content_type: &str, body: &str) -> Vec<u8> {
        let allow = if self == Self::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.line(),
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn answer(text: &str) -> Option<Status> {
        Request::default().handle_bytes(text.as_bytes())
    }

    #[test]
    fn each_request_has_its_answer() {
        for (text, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Status::Metrics),
            ("GET /metrics?x=1 HTTP/1.0\n\n", Status::Metrics),
            ("GET /metrics HTTP/1.1\r\n\r\nand a body", Status::Metrics),
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET / HTTP/1.1\r\n\r\n", Status::NotFound),
            ("DELETE /metrics/ HTTP/1.1\r\n\r\n", Status::NotFound),
            ("GET /metrics\r\n\r\n", Status::BadRequest),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("get /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("PRI * HTTP/2.0\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1\r\n\u{16}", Status::BadRequest),
            ("\n\n", Status::BadRequest),
        ] {
            assert_eq!(answer(text), Some(status), "{text:?}");
        }
    }

    #[test]
    fn an_unfinished_request_is_waited_for_until_it_is_too_long() {
        for text in ["", "GET /metrics HTTP/1.1", "GET /metrics HTTP/1.1\r\nHost: a\r\n"] {
            assert_eq!(answer(text), None, "{text:?}");
        }
        let head = |bytes: usize| format!("GET /metrics HTTP/1.1\r\nA: {:\u{1f}<bytes$}", "x");
        let head = |bytes| head(bytes).replace('\u{1f}', "x");
        assert_eq!(answer(&head(HEAD_BYTES_MAX - 100)), None);
        assert_eq!(answer(&head(HEAD_BYTES_MAX)), Some(Status::HeadersTooLarge));
    }

    proptest! {
        /// The answer does not depend on how the request is divided.
        #[test]
        fn pieces_do_not_matter(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            start in prop_oneof![Just("GET /metrics HTTP/1.1\r\n"), Just("")],
            cuts in proptest::collection::vec(0_usize..600, 0..8),
        ) {
            let bytes = [start.as_bytes(), &bytes, b"\r\n\r\n"].concat();
            let whole = Request::default().handle_bytes(&bytes);
            prop_assert!(whole.is_some());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut request = Request::default();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let answer = pieces.into_iter().find_map(|piece| request.handle_bytes(piece));
            prop_assert_eq!(answer, whole);
        }
    }

    const NOW: Instant = Instant::from_nanos(1_000);

    fn listener() -> HttpListener {
        HttpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()
    }

    fn connect(listener: &HttpListener) -> (TcpStream, Exchange) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, accept(listener))
    }

    /// Loopback delivers at once, but not in the same instant.
    fn accept(listener: &HttpListener) -> Exchange {
        loop {
            if let Some(exchange) = listener.accept(NOW).unwrap() {
                return exchange;
            }
            std::thread::yield_now();
        }
    }

    /// Drives an exchange as the loop does, until it is over.
    fn drive(exchange: &mut Exchange, text: &str) {
        while !exchange.is_over(NOW) {
            if exchange.wants_write() {
                exchange.writable();
            } else {
                exchange.readable(|| text.to_owned());
            }
            std::thread::yield_now();
        }
    }

    /// A client that sends, shuts down its side, and reads to the end.
    fn ask(request: &[u8], text: &'static str) -> String {
        let listener = listener();
        let (mut client, mut exchange) = connect(&listener);
        let server = std::thread::spawn(move || drive(&mut exchange, text));
        client.write_all(request).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        drop(client);
        server.join().unwrap();
        answer
    }

    #[test]
    fn metrics_are_served() {
        let answer =
            ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "gpreempt_sessions 3\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "gpreempt_sessions 3\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains("\r\nContent-Length: 20\r\n"), "{head}");
        assert!(head.contains("\r\nConnection: close"), "{head}");
    }

    #[test]
    fn other_requests_are_refused_with_their_status() {
        let endless = [b"GET /metrics HTTP/1.1\r\nA: ", &[b'x'; 60_000][..], b"\r\n\r\n"].concat();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
            (b"\x16\x03\x01\x02\x00", "400"),
            (&endless, "431"),
        ] {
            let answer = ask(request, "secret");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(!answer.contains("secret"), "{answer}");
            assert_eq!(answer.contains("\r\nAllow: GET\r\n"), status == "405", "{answer}");
        }
    }

    #[test]
    fn a_large_answer_is_sent_in_pieces() {
        let listener = listener();
        let (mut client, mut exchange) = connect(&listener);
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let text = "m 1\n".repeat(4_000_000);
        while !exchange.wants_write() {
            exchange.readable(|| text.clone());
        }
        assert!(!exchange.is_over(NOW), "16 MB do not fit into a socket");
        let reader = std::thread::spawn(move || {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        });
        drive(&mut exchange, "");
        assert!(reader.join().unwrap().ends_with(&text));
    }

    #[test]
    fn an_exchange_ends_after_ten_seconds() {
        let listener = listener();
        let (mut client, mut exchange) = connect(&listener);
        client.write_all(b"GET /met").unwrap();
        exchange.readable(String::new);
        let just_before = exchange.deadline().as_nanos() - 1;
        assert!(!exchange.is_over(Instant::from_nanos(just_before)));
        assert!(exchange.is_over(exchange.deadline()));
        assert_eq!(exchange.deadline(), NOW + Duration::from_millis(10_000));
    }

    #[test]
    fn a_client_that_disconnects_ends_the_exchange() {
        let listener = listener();
        let (client, mut exchange) = connect(&listener);
        drop(client);
        drive(&mut exchange, "");
        assert!(exchange.is_over(NOW));
    }

    #[test]
    fn the_seventeenth_client_is_refused_until_another_has_ended() {
        let listener = listener();
        let mut open: Vec<_> = (0..EXCHANGES_MAX).map(|_| connect(&listener)).collect();
        assert_eq!(listener.exchanges(), EXCHANGES_MAX);
        let mut refused = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        refused.set_nonblocking(true).unwrap();
        let mut answer = [0; 12];
        while refused.read_exact(&mut answer).is_err() {
            assert!(listener.accept(NOW).unwrap().is_none());
        }
        assert_eq!(&answer, b"HTTP/1.1 503");
        open.pop();
        assert_eq!(listener.exchanges(), EXCHANGES_MAX - 1);
        open.push(connect(&listener));
        assert_eq!(listener.exchanges(), EXCHANGES_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any bytes get one of the known answers or none, and the exchange ends.
        #[test]
        fn any_bytes_are_answered(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
            start in prop_oneof![Just(""), Just("GET /metrics HTTP/1.1\r\n"), Just("POST ")],
        ) {
            bytes.splice(0..0, start.bytes());
            let answer = ask(&bytes, "m 1\n");
            let is_known = ["200", "400", "404", "405", "431"]
                .iter()
                .any(|status| answer.starts_with(&format!("HTTP/1.1 {status} ")));
            prop_assert!(answer.is_empty() || is_known, "{}", answer);
        }
    }
}
