//! Clients that break the rules: each is told why, and closed.

use gpreempt_core::time::Instant;
use gpreempt_wire::decode_error::DecodeError;
use gpreempt_wire::message::Message;
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Connection, Limits, Offence};

use crate::raw::{Raw, hello, pair};

const NOW: Instant = Instant::ZERO;

/// Reads until the session is over; the client gets to know why.
fn assert_closed(
    client: &Raw,
    mut connection: Connection,
    request: u64,
    code: RefusalCode,
) -> Offence {
    let offence = loop {
        match connection.recv(NOW) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the session goes on"),
            Err(offence) => break offence,
        }
    };
    assert_eq!(offence.to_string().lines().count(), 1, "one line of the log");
    connection.close(&offence);
    match client.reply() {
        Some(Message { request: to, body: Reply::Refused(refusal) }) => {
            assert_eq!((to, refusal.code), (request, code));
            let why = offence.to_string();
            let sentence = refusal.to_string();
            assert!(sentence.contains(&why[..why.len().min(100)]), "{sentence}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.reply(), None, "closed");
    offence
}

#[test]
fn a_packet_that_is_too_long() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.send(&[b'x'; 4097]).unwrap();
    let offence = assert_closed(&client, connection, 0, RefusalCode::BadMessage);
    assert_eq!(offence, Offence::TooLong { bytes: 4097 });
}

#[test]
fn another_version() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    let mut packet = Message { request: 5, body: hello() }.encode();
    packet[4] = 2;
    client.send(&packet).unwrap();
    let offence = assert_closed(&client, connection, 5, RefusalCode::Version);
    let error = DecodeError::Version { theirs: 2, ours: 1 };
    assert_eq!(offence, Offence::BadMessage { error, request: 5 });
    let line = offence.to_string();
    assert!(line.contains("version 2") && line.contains("version 1"), "{line}");
}

#[test]
fn bytes_that_are_no_message() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.send(b"GET / HTTP/1.1\r\nHost: gpreempt\r\n\r\n").unwrap();
    let offence = assert_closed(&client, connection, 0, RefusalCode::BadMessage);
    assert!(matches!(offence, Offence::BadMessage { error: DecodeError::Magic(_), request: 0 }));
}

#[test]
fn a_message_cut_short() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    let packet = Message { request: 3, body: hello() }.encode();
    client.send(&packet[..packet.len() - 1]).unwrap();
    let offence = assert_closed(&client, connection, 3, RefusalCode::BadMessage);
    let error = DecodeError::Length { said: 40, found: 39 };
    assert_eq!(offence, Offence::BadMessage { error, request: 3 });
}

#[test]
fn no_hello_and_a_second_hello() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.ask(1, Request::Ping);
    let offence = assert_closed(&client, connection, 1, RefusalCode::BadMessage);
    assert_eq!(offence, Offence::NoHello { request: 1 });
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.ask(1, hello());
    client.ask(2, hello());
    let offence = assert_closed(&client, connection, 2, RefusalCode::BadMessage);
    assert_eq!(offence, Offence::SecondHello { request: 2 });
}

#[test]
fn a_request_that_is_sent_again() {
    for (request, last) in [(7, 7), (6, 7), (0, 7)] {
        let (_folder, _listener, client, connection) = pair(Limits::default());
        client.ask(3, hello());
        client.ask(last, Request::ResumeAll);
        client.ask(request, Request::ResumeAll);
        let offence = assert_closed(&client, connection, request, RefusalCode::BadMessage);
        assert_eq!(offence, Offence::Replayed { request, last });
    }
}

#[test]
fn waking_needs_no_number() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    client.ask(1, hello());
    client.ask(0, Request::Wake);
    client.ask(0, Request::Wake);
    client.ask(2, Request::Ping);
    let numbers = [0; 4].map(|_| connection.recv(NOW).unwrap().unwrap().request);
    assert_eq!(numbers, [1, 0, 0, 2]);
}

#[test]
fn a_flood() {
    let limits = Limits { packets_burst: 10, packets_per_second: 100, ..Limits::default() };
    let (_folder, _listener, client, mut connection) = pair(limits);
    client.ask(1, hello());
    for request in 2..=12 {
        client.ask(request, Request::Ping);
    }
    for _ in 1..=10 {
        assert!(connection.recv(NOW).unwrap().is_some());
    }
    // Ten milliseconds make room for one more.
    assert!(connection.recv(Instant::from_nanos(10_000_000)).unwrap().is_some());
    let offence = assert_closed(&client, connection, 0, RefusalCode::Limit);
    assert_eq!(offence, Offence::Flood);
}

#[test]
fn an_empty_packet_is_a_goodbye() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    client.send(b"").unwrap();
    assert_eq!(connection.recv(NOW), Err(Offence::Left));
    connection.close(&Offence::Left);
    assert_eq!(client.reply(), None);
}
