//! Clients that ask and do not listen, or not as fast as one talks.

use std::num::NonZeroU16;
use std::sync::Arc;

use gpreempt_core::time::Instant;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Limits, Offence, SnapshotError};

use crate::daemon::{Daemon, EVENTS};
use crate::raw::{hello, pair};

const NOW: Instant = Instant::ZERO;

#[test]
fn a_slow_reader_misses_events_and_is_told_how_many() {
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
    let mut read = |connection: &mut gpreempt_wire::server::Connection| {
        connection.flush().unwrap();
        let reply = client.reply().unwrap().body;
        let Reply::Event(event) = reply else {
            assert_eq!(reply, Reply::Ok);
            return false;
        };
        dropped += event.dropped;
        assert_eq!(event.at_ns, next_at + event.dropped, "none is missing in silence");
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
    assert!(daemon.stop().iter().all(|offence| !offence.is_offence()));
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    client.ask(1, hello());
    assert!(connection.recv(NOW).unwrap().is_some());
    let offence = (1..100_000).find_map(|request| connection.send(request, Reply::Ok).err());
    assert_eq!(offence, Some(Offence::NeverReads));
    assert!(Offence::NeverReads.refusal().is_none(), "it would not read that either");
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
    assert_eq!(connection.send(1, Reply::Ok), Err(Offence::Left));
}
