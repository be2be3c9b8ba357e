//! Clients that break the rules, or do not read: their sessions are closed with a reason.

use std::num::NonZeroU16;
use std::sync::Arc;

use gpreempt_core::time::Instant;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::message::DecodeError;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{CloseReason, Connection, Limits, SnapshotError};

use crate::{Daemon, EVENTS, Raw, hello, pair};

const NOW: Instant = Instant::ZERO;

/// Reads until the session is closed; the client receives the reason.
fn assert_closed(
    client: &Raw,
    mut connection: Connection,
    request: u64,
    code: RefusalCode,
) -> CloseReason {
    let offence = loop {
        match connection.recv(NOW) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the session was not closed"),
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
    assert_eq!(offence, CloseReason::TooLong { bytes: 4097 });
}

#[test]
fn another_version() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    let mut packet = Message { request: 5, body: hello() }.encode();
    packet[4] = 2;
    client.send(&packet).unwrap();
    let offence = assert_closed(&client, connection, 5, RefusalCode::Version);
    let error = DecodeError::Version { theirs: 2, ours: 1 };
    assert_eq!(offence, CloseReason::BadMessage { error, request: 5 });
    let line = offence.to_string();
    assert!(line.contains("version 2") && line.contains("version 1"), "{line}");
}

#[test]
fn bytes_that_are_no_message() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.send(b"GET / HTTP/1.1\r\nHost: gpreempt\r\n\r\n").unwrap();
    let offence = assert_closed(&client, connection, 0, RefusalCode::BadMessage);
    assert!(matches!(
        offence,
        CloseReason::BadMessage { error: DecodeError::Magic(_), request: 0 }
    ));
}

#[test]
fn a_message_cut_short() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    let packet = Message { request: 3, body: hello() }.encode();
    client.send(&packet[..packet.len() - 1]).unwrap();
    let offence = assert_closed(&client, connection, 3, RefusalCode::BadMessage);
    let error = DecodeError::Length { said: 40, found: 39 };
    assert_eq!(offence, CloseReason::BadMessage { error, request: 3 });
}

#[test]
fn no_hello_and_a_second_hello() {
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.ask(1, Request::Ping);
    let offence = assert_closed(&client, connection, 1, RefusalCode::BadMessage);
    assert_eq!(offence, CloseReason::NoHello { request: 1 });
    let (_folder, _listener, client, connection) = pair(Limits::default());
    client.ask(1, hello());
    client.ask(2, hello());
    let offence = assert_closed(&client, connection, 2, RefusalCode::BadMessage);
    assert_eq!(offence, CloseReason::SecondHello { request: 2 });
}

#[test]
fn a_request_that_is_sent_again() {
    for (request, last) in [(7, 7), (6, 7), (0, 7)] {
        let (_folder, _listener, client, connection) = pair(Limits::default());
        client.ask(3, hello());
        client.ask(last, Request::ResumeAll);
        client.ask(request, Request::ResumeAll);
        let offence = assert_closed(&client, connection, request, RefusalCode::BadMessage);
        assert_eq!(offence, CloseReason::Replayed { request, last });
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
    assert_eq!(offence, CloseReason::Flood);
}

#[test]
fn an_empty_packet_ends_the_session() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    client.send(b"").unwrap();
    assert_eq!(connection.recv(NOW), Err(CloseReason::Left));
    connection.close(&CloseReason::Left);
    assert_eq!(client.reply(), None);
}

#[test]
fn a_slow_reader_misses_events_and_receives_their_number() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    let event = |at_ns| Event::new(at_ns, EventKind::Active);
    for at_ns in 0..10_000 {
        connection.send_event(1, event(at_ns)).unwrap();
    }
    // Answers still get through, or at least into the queue.
    connection.send(2, Reply::Ok).unwrap();
    assert!(connection.wants_write());
    let mut seen = 0;
    let mut next_at = 0;
    let mut dropped = 0;
    let mut read = |connection: &mut Connection| {
        connection.flush().unwrap();
        let reply = client.reply().unwrap().body;
        let Reply::Event(event) = reply else {
            assert_eq!(reply, Reply::Ok);
            return false;
        };
        dropped += event.dropped;
        assert_eq!(event.at_ns, next_at + event.dropped, "every missing event is counted");
        next_at = event.at_ns + 1;
        seen += 1;
        true
    };
    while read(&mut connection) {}
    assert!(!connection.wants_write());
    // The next event after the gap tells of it.
    connection.send_event(1, event(10_000)).unwrap();
    assert!(read(&mut connection));
    assert!(dropped > 0 && seen > 32, "{dropped} dropped, {seen} seen");
    assert_eq!(seen + dropped, 10_001);
}

#[test]
fn a_trace_ends_and_every_event_was_read_or_counted() {
    let daemon = Daemon::start();
    let trace = Request::Trace { seconds: NonZeroU16::MIN };
    let mut follow = daemon.connect().unwrap().follow(&trace).unwrap();
    let events: Vec<Event> = follow.by_ref().collect::<Result<_, _>>().unwrap();
    assert!(follow.is_over());
    assert_eq!(u64::try_from(events.len()).unwrap() + follow.dropped(), EVENTS);
    assert!(events.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
    assert!(daemon.stop().iter().all(|offence| !offence.is_fault()));
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    client.ask(1, hello());
    assert!(connection.recv(NOW).unwrap().is_some());
    let offence = (1..100_000).find_map(|request| connection.send(request, Reply::Ok).err());
    assert_eq!(offence, Some(CloseReason::NeverReads));
    assert!(CloseReason::NeverReads.refusal().is_none(), "it would not read that either");
}

#[test]
fn one_snapshot_at_a_time() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    let text: Arc<str> = "x".repeat(4_000_000).into();
    connection.send_snapshot(1, Arc::clone(&text)).unwrap();
    assert_eq!(connection.send_snapshot(2, Arc::clone(&text)), Err(SnapshotError::Busy));
    assert_eq!(Arc::strong_count(&text), 2, "it is cut as it goes, not copied");
    let mut pieces = 0;
    while connection.wants_write() {
        connection.flush().unwrap();
        assert!(matches!(client.reply().unwrap().body, Reply::Snapshot(_)));
        pieces += 1;
    }
    assert!(pieces > 100);
    let long: Arc<str> = "x".repeat((8 << 20) + 1).into();
    assert_eq!(connection.send_snapshot(3, long), Err(SnapshotError::TooLong));
}

#[test]
fn a_client_that_left_is_noticed_when_it_is_answered() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    drop(client);
    assert_eq!(connection.send(1, Reply::Ok), Err(CloseReason::Left));
}
