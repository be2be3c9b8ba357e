//! A hint page is sent over the socket, and no hint is lost while the daemon sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::spawn;

use gpreempt_core::time::Instant;
use gpreempt_stage::Stage;
use gpreempt_wire::client::{Client, HintWriter};
use gpreempt_wire::hint_page::Mapping;
use gpreempt_wire::hint_page::SLOTS;
use gpreempt_wire::hint_page::{HintChange, HintReader};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{CloseReason, Connection, Limits, Listener};

use crate::{accept, options, wait};

fn limits() -> Limits {
    Limits { packets_burst: u32::MAX, ..Limits::default() }
}

/// A daemon that has a client with a page.
fn open_page(folder: &Stage) -> (HintWriter, Connection, Mapping) {
    let mut listener = Listener::bind(&folder.socket()).unwrap();
    let options = options(folder);
    let client = spawn(move || Client::connect(&options).unwrap().open_page().unwrap());
    wait(&listener);
    let mut connection = accept(&mut listener, limits());
    let (mapping, descriptor) = Mapping::create().unwrap();
    let mut descriptor = Some(descriptor);
    while let Some(page) = descriptor.take() {
        wait(&connection);
        let message = connection.recv(Instant::ZERO).unwrap().unwrap();
        if message.body == Request::OpenPage {
            let slots = u32::try_from(SLOTS).unwrap();
            connection.send_page(message.request, slots, page).unwrap();
        } else {
            connection.send(message.request, Reply::Ok).unwrap();
            descriptor = Some(page);
        }
    }
    (client.join().unwrap(), connection, mapping)
}

/// Sleeps until something changed. Until it sleeps, it does not want to be woken.
fn next_change(
    reader: &mut HintReader,
    connection: &mut Connection,
    mapping: &Mapping,
) -> HintChange {
    mapping.page().disarm();
    loop {
        if let Some(change) = reader.arm_and_look(mapping.page()) {
            return change;
        }
        wait(&*connection);
        while let Some(message) = connection.recv(Instant::ZERO).unwrap() {
            assert_eq!(message.body, Request::Wake);
        }
    }
}

#[test]
fn hints_cost_a_packet_only_when_the_daemon_sleeps() {
    let folder = Stage::new("wire").unwrap();
    let (writer, mut connection, mapping) = open_page(&folder);
    let mut reader = HintReader::default();
    let slot = writer.claim().unwrap();
    writer.begin(slot, 0);
    writer.end(slot);
    assert_eq!(connection.recv(Instant::ZERO), Ok(None), "the daemon did not ask to be woken");
    assert_eq!(reader.arm_and_look(mapping.page()), None);
    writer.begin(slot, 450);
    writer.end(slot);
    writer.begin(slot, 460);
    let woken = connection.recv(Instant::ZERO).unwrap().unwrap();
    assert_eq!((woken.request, woken.body), (0, Request::Wake));
    assert_eq!(connection.recv(Instant::ZERO), Ok(None), "once is enough");
    let began = HintChange::Began { deadline_us: Some(460) };
    assert_eq!(reader.arm_and_look(mapping.page()), Some(began));
    assert!(writer.is_connected());
    drop(connection);
    assert!(!writer.is_connected());
    // A hint never fails, even without a daemon.
    writer.end(slot);
    writer.begin(slot, 1);
    writer.release(slot);
}

#[test]
fn the_end_of_the_process_is_the_end_of_its_session() {
    let folder = Stage::new("wire").unwrap();
    let (writer, mut connection, _mapping) = open_page(&folder);
    drop(writer);
    wait(&connection);
    assert_eq!(connection.recv(Instant::ZERO), Err(CloseReason::Left));
}

/// Waits without sleeping, and then a little longer, so that it ends at any moment of what the
/// other thread does next.
fn spin_until(seen: &AtomicU64, count: u64) {
    while seen.load(Ordering::Acquire) < count {
        std::hint::spin_loop();
    }
    for _ in 0..count % 97 {
        std::hint::spin_loop();
    }
}

#[test]
fn no_hint_is_lost_while_the_daemon_sleeps() {
    const ROUNDS: u64 = 20_000;
    let folder = Stage::new("wire").unwrap();
    let (writer, mut connection, mapping) = open_page(&folder);
    let seen = Arc::new(AtomicU64::new(0));
    let is_seen = Arc::clone(&seen);
    // The process gives the next hint when the last was seen, just as the daemon goes to sleep.
    let process = spawn(move || {
        let slot = writer.claim().unwrap();
        for round in 1..=ROUNDS {
            writer.begin(slot, round);
            spin_until(&is_seen, 2 * round - 1);
            writer.end(slot);
            spin_until(&is_seen, 2 * round);
        }
        writer
    });
    let mut reader = HintReader::default();
    for round in 1..=ROUNDS {
        let change = next_change(&mut reader, &mut connection, &mapping);
        assert_eq!(change, HintChange::Began { deadline_us: Some(round) });
        seen.fetch_add(1, Ordering::Release);
        assert_eq!(next_change(&mut reader, &mut connection, &mapping), HintChange::Ended);
        seen.fetch_add(1, Ordering::Release);
    }
    drop(process.join().unwrap());
}
