//! One connection to the metrics server: a request is received, an answer is sent.
//!
//! Nothing here blocks. The thread of the server polls an exchange for what [`Exchange::waits`]
//! says and drops it when [`Exchange::is_over`]. Clients are not trusted: a request is short and
//! has to arrive soon, and the whole exchange has a time limit.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use gpreempt_core::time::{Duration, Instant};

use super::http::{Head, HostNames, Status};
use crate::live::update::Update;

/// How long a client may take to send its request. Prometheus and probes send it at once.
pub(crate) const REQUEST_TIME_MAX: Duration = Duration::from_millis(2_000);
/// How long an exchange may take, from the connection to its end: as long as Prometheus waits.
pub(crate) const EXCHANGE_TIME_MAX: Duration = Duration::from_millis(10_000);
/// Bytes of one read: longer than any permitted request.
const READ_BYTES: usize = 16 * 1024;
/// Updates that wait for a viewer that reads slowly. One that has more is disconnected; its browser
/// connects again and gets everything that it missed.
const BACKLOG_MAX: usize = 8;
/// Bytes that are read and discarded after the answer.
const LEFTOVER_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Exchange {
    stream: TcpStream,
    peer: IpAddr,
    began: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Request(Head),
    /// The request is complete and waits for a page that is made after it.
    Page,
    Answer {
        /// Shared by all exchanges that get the same page.
        bytes: Arc<[u8]>,
        sent: usize,
    },
    /// The client wants a file or the updates of the live page.
    Asked(Status),
    /// The client gets updates until it disconnects or falls behind.
    Updates {
        unsent: VecDeque<Arc<[u8]>>,
        /// Bytes of the first one that are sent.
        sent: usize,
        has_begun: bool,
        discarded: usize,
    },
    /// The client has its answer and should close. If the daemon closed first, with unread bytes,
    /// the kernel of the client could discard the answer.
    Leftover {
        bytes: usize,
    },
    Over,
}

/// What an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The client has to send its request.
    Request,
    /// The daemon has to make a page.
    Page,
    /// The client has to read its answer.
    Reading,
    /// The client has to close.
    Closing,
    /// The server has to say whether it serves that.
    Permission,
    /// The service has to have an update.
    Update,
}

impl Exchange {
    /// An exchange on `stream`, which must not block.
    pub(crate) fn new(stream: TcpStream, peer: IpAddr, now: Instant) -> Self {
        Self { stream, peer, began: now, stage: Stage::Request(Head::default()) }
    }

    pub(crate) const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// None: it is over.
    pub(crate) fn waits(&self) -> Option<Waits> {
        Some(match &self.stage {
            Stage::Request(_) => Waits::Request,
            Stage::Page => Waits::Page,
            Stage::Asked(_) => Waits::Permission,
            Stage::Updates { unsent, .. } if unsent.is_empty() => Waits::Update,
            Stage::Updates { .. } => Waits::Reading,
            Stage::Answer { .. } => Waits::Reading,
            Stage::Leftover { .. } => Waits::Closing,
            Stage::Over => return None,
        })
    }

    /// The stream is readable, or writable while the answer is being sent.
    pub(crate) fn advance(&mut self, hosts: &HostNames) {
        match self.stage {
            Stage::Answer { .. } => self.send(),
            Stage::Updates { ref unsent, .. } if !unsent.is_empty() => self.send_updates(),
            Stage::Request(_) | Stage::Leftover { .. } | Stage::Updates { .. } => {
                self.receive(hosts);
            }
            // An event without being asked for one: the client has disconnected.
            Stage::Page | Stage::Asked(_) => self.stage = Stage::Over,
            Stage::Over => {}
        }
    }

    /// The page is ready.
    pub(crate) fn answer(&mut self, page: Arc<[u8]>) {
        self.stage = Stage::Answer { bytes: page, sent: 0 };
        // There is nearly always room, which saves a turn of the server.
        self.send();
    }

    /// What of the live page the client asked for.
    pub(crate) const fn asked(&self) -> Option<Status> {
        if let Stage::Asked(status) = self.stage { Some(status) } else { None }
    }

    pub(crate) const fn is_viewer(&self) -> bool {
        matches!(self.stage, Stage::Updates { .. })
    }

    /// Whether it is a viewer that has had no update yet.
    pub(crate) const fn is_new_viewer(&self) -> bool {
        matches!(self.stage, Stage::Updates { has_begun: false, .. })
    }

    /// The client becomes a viewer.
    pub(crate) fn join(&mut self) {
        let unsent = VecDeque::from([Status::updates_begin()]);
        self.stage = Stage::Updates { unsent, sent: 0, has_begun: false, discarded: 0 };
        self.send_updates();
    }

    /// There is an update. A new viewer waits for one that has everything.
    pub(crate) fn update(&mut self, update: &Update) {
        let Stage::Updates { unsent, has_begun, .. } = &mut self.stage else { return };
        let bytes = if *has_begun { Some(&update.step) } else { update.whole.as_ref() };
        let Some(bytes) = bytes else { return };
        if unsent.len() == BACKLOG_MAX {
            return self.stage = Stage::Over;
        }
        *has_begun = true;
        unsent.push_back(Arc::clone(bytes));
        self.send_updates();
    }

    fn send_updates(&mut self) {
        let Stage::Updates { unsent, sent, .. } = &mut self.stage else { return };
        while let Some(bytes) = unsent.front() {
            // PANIC: no more was sent than there is.
            match self.stream.write(&bytes[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) => return self.end_unless_retry(&error),
            }
            if *sent == bytes.len() {
                unsent.pop_front();
                *sent = 0;
            }
        }
    }

    fn receive(&mut self, hosts: &HostNames) {
        let mut buffer = [0; READ_BYTES];
        let bytes = match self.stream.read(&mut buffer) {
            Ok(0) => return self.stage = Stage::Over,
            // PANIC: what was read is at the beginning of the buffer.
            Ok(count) => &buffer[..count],
            Err(error) => return self.end_unless_retry(&error),
        };
        match &mut self.stage {
            Stage::Request(head) => match head.add(bytes, hosts) {
                None => {}
                Some(Status::Metrics) => self.stage = Stage::Page,
                Some(asked @ (Status::File(_) | Status::Updates)) => {
                    self.stage = Stage::Asked(asked);
                }
                Some(other) => self.answer(other.response()),
            },
            Stage::Leftover { bytes: so_far } | Stage::Updates { discarded: so_far, .. } => {
                *so_far += bytes.len();
                if *so_far > LEFTOVER_BYTES_MAX {
                    self.stage = Stage::Over;
                }
            }
            Stage::Page | Stage::Asked(_) | Stage::Answer { .. } | Stage::Over => {}
        }
    }

    fn send(&mut self) {
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

    /// Whether it can be dropped: the answer is sent, the client has left, or it took too long.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.waits().is_none() || self.deadline().is_some_and(|deadline| now >= deadline)
    }

    /// When its time is over; a viewer may stay.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let is_request = matches!(self.stage, Stage::Request(_));
        let time = if is_request { REQUEST_TIME_MAX } else { EXCHANGE_TIME_MAX };
        (!self.is_viewer()).then(|| self.began + time)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, TcpListener};

    const NOW: Instant = Instant::from_nanos(1_000);

    fn connected() -> (TcpStream, Exchange) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        (client, Exchange::new(stream, peer.ip(), NOW))
    }

    /// Drives an exchange as the server does, until it is over.
    fn drive(exchange: &mut Exchange, text: &str) {
        let hosts = HostNames::default();
        while !exchange.is_over(NOW) {
            if exchange.waits() == Some(Waits::Page) {
                exchange.answer(Status::metrics(text));
            } else {
                exchange.advance(&hosts);
            }
            std::thread::yield_now();
        }
    }

    /// A client that sends, shuts down its side, and reads to the end.
    fn ask(request: &[u8], text: &'static str) -> String {
        let (mut client, mut exchange) = connected();
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
            (&b"GET /secret HTTP/1.1\r\n\r\n"[..], "404"),
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
        let (mut client, mut exchange) = connected();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let text = "m 1\n".repeat(4_000_000);
        while exchange.waits() != Some(Waits::Page) {
            exchange.advance(&HostNames::default());
        }
        exchange.answer(Status::metrics(&text));
        assert_eq!(exchange.waits(), Some(Waits::Reading), "16 MB do not fit into a socket");
        let reader = std::thread::spawn(move || {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        });
        drive(&mut exchange, "");
        assert!(reader.join().unwrap().ends_with(&text));
    }

    #[test]
    fn a_request_and_an_exchange_have_time_limits() {
        let (mut client, mut exchange) = connected();
        client.write_all(b"GET /met").unwrap();
        exchange.advance(&HostNames::default());
        assert_eq!(exchange.deadline(), Some(NOW + REQUEST_TIME_MAX));
        let just_before = (NOW + REQUEST_TIME_MAX).as_nanos() - 1;
        assert!(!exchange.is_over(Instant::from_nanos(just_before)));
        assert!(exchange.is_over(NOW + REQUEST_TIME_MAX));
        client.write_all(b"rics HTTP/1.1\n\n").unwrap();
        while exchange.waits() == Some(Waits::Request) {
            exchange.advance(&HostNames::default());
        }
        assert_eq!(exchange.deadline(), Some(NOW + EXCHANGE_TIME_MAX));
        assert!(!exchange.is_over(NOW + REQUEST_TIME_MAX));
        assert!(exchange.is_over(NOW + EXCHANGE_TIME_MAX));
    }

    #[test]
    fn a_viewer_gets_everything_first_and_is_disconnected_when_it_falls_behind() {
        let (mut client, mut exchange) = connected();
        client.write_all(b"GET /updates HTTP/1.1\r\n\r\n").unwrap();
        while exchange.waits() != Some(Waits::Permission) {
            exchange.advance(&HostNames::default());
        }
        exchange.join();
        let update = |text: &str| {
            let bytes = |kind: &str| Arc::from(format!("data: {kind}{text}\n\n").into_bytes());
            Update { step: bytes("step "), whole: Some(bytes("whole ")) }
        };
        exchange.update(&Update { whole: None, ..update("0") });
        assert!(exchange.is_new_viewer(), "it waits for one with everything");
        exchange.update(&update("1"));
        exchange.update(&update("2"));
        let mut answer = vec![0; 4_096];
        let mut length = 0;
        while !answer[..length].ends_with(b"step 2\n\n") {
            length += client.read(&mut answer[length..]).unwrap();
        }
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(answer.contains("\r\nContent-Type: text/event-stream\r\n"), "{answer}");
        assert!(answer.ends_with("\n\ndata: whole 1\n\ndata: step 2\n\n"), "{answer}");
        assert!(!exchange.is_over(NOW + EXCHANGE_TIME_MAX), "a viewer may stay");
        let large = update(&"x".repeat(4 << 20));
        for _ in 0..=BACKLOG_MAX {
            assert!(exchange.waits().is_some());
            exchange.update(&large);
        }
        assert!(exchange.is_over(NOW));
    }

    #[test]
    fn a_client_that_disconnects_ends_the_exchange() {
        let (client, mut exchange) = connected();
        drop(client);
        drive(&mut exchange, "");
        assert!(exchange.is_over(NOW));
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
            let is_known = ["200", "400", "404", "405", "421", "431"]
                .iter()
                .any(|status| answer.starts_with(&format!("HTTP/1.1 {status} ")));
            prop_assert!(answer.is_empty() || is_known, "{}", answer);
        }
    }
}
