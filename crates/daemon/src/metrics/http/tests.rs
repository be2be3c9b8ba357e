use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};

use gpreempt_core::time::{Duration, Instant};
use proptest::prelude::*;

use super::*;

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

/// Drives an exchange as a loop does, until it is over; `text` is what the metrics are.
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

/// Asks like a client: sends, says that this was all, reads to the end.
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
    let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "gpreempt_sessions 3\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "gpreempt_sessions 3\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains("\r\nContent-Length: 20\r\n"), "{head}");
    assert!(head.contains("\r\nConnection: close"), "{head}");
}

#[test]
fn everything_else_is_refused_with_its_number() {
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
fn a_large_answer_goes_out_in_pieces() {
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
fn slowness_has_an_end() {
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
fn whoever_leaves_ends_the_exchange() {
    let listener = listener();
    let (client, mut exchange) = connect(&listener);
    drop(client);
    drive(&mut exchange, "");
    assert!(exchange.is_over(NOW));
}

#[test]
fn the_seventeenth_is_turned_away_and_a_free_place_is_given_again() {
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

    /// Whatever is sent, the answer is one of ours or none, and it comes to an end.
    #[test]
    fn no_bytes_are_too_strange(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
        start in prop_oneof![Just(""), Just("GET /metrics HTTP/1.1\r\n"), Just("POST ")],
    ) {
        bytes.splice(0..0, start.bytes());
        let answer = ask(&bytes, "m 1\n");
        let is_ours = ["200", "400", "404", "405", "431"]
            .iter()
            .any(|status| answer.starts_with(&format!("HTTP/1.1 {status} ")));
        prop_assert!(answer.is_empty() || is_ours, "{}", answer);
    }
}
