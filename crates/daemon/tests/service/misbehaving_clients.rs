//! Clients that break the protocol: their session is closed, with one line in the log.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use gpreempt_stage::{Daemon, LIMIT, Stage, until};
use gpreempt_wire::message::Message;
use gpreempt_wire::message::{HEADER_BYTES, PACKET_BYTES_MAX};
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::text::Text;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};

use super::contention::start;

fn dial(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn hello(request: u64) -> Vec<u8> {
    let body = Request::Hello { role: Role::Command, program: Text::new("rude") };
    Message { request, body }.encode()
}

fn ping(request: u64) -> Vec<u8> {
    Message { request, body: Request::Ping }.encode()
}

fn say(socket: &OwnedFd, packet: &[u8]) -> bool {
    send(socket, packet, SendFlags::NOSIGNAL).is_ok()
}

/// The last refusal before the daemon closes the session.
fn last_refusal(socket: &OwnedFd) -> Option<RefusalCode> {
    let mut last = None;
    loop {
        let mut buffer = [0; PACKET_BYTES_MAX];
        match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, 0)) => return last,
            Err(rustix::io::Errno::CONNRESET) => {}
            Err(error) => panic!("the session is not closed: {error}"),
            Ok((_, bytes)) => {
                if let Reply::Refused(refusal) =
                    Message::<Reply>::decode(&buffer[..bytes]).unwrap().body
                {
                    last = Some(refusal.code);
                }
            }
        }
    }
}

#[test]
fn an_invalid_message_closes_its_session_and_no_other() {
    let (daemon, _stage) = start();
    let mut witness = daemon.connect();
    let mut other_version = hello(1);
    other_version[4] = 9;
    let mut cut = hello(1);
    cut.truncate(HEADER_BYTES + 3);
    let cases: [(&[&[u8]], Option<RefusalCode>); 7] = [
        (&[b"GET / HTTP/1.1\r\n\r\n"], Some(RefusalCode::BadMessage)),
        (&[&other_version], Some(RefusalCode::Version)),
        (&[&cut], Some(RefusalCode::BadMessage)),
        (&[&[0; PACKET_BYTES_MAX + 1]], Some(RefusalCode::BadMessage)),
        (&[&ping(1)], Some(RefusalCode::BadMessage)),
        (&[&hello(1), &hello(2)], Some(RefusalCode::BadMessage)),
        (&[&hello(7), &ping(7)], Some(RefusalCode::BadMessage)),
    ];
    for (number, (packets, code)) in cases.into_iter().enumerate() {
        let before = closed(&daemon);
        let socket = dial(&daemon.socket());
        for packet in packets {
            assert!(say(&socket, packet));
        }
        assert_eq!(last_refusal(&socket), code, "case {number}");
        until("one line", || closed(&daemon) == before + 1);
        witness.expect_ok(&Request::Ping).unwrap();
    }
}

fn closed(daemon: &Daemon) -> usize {
    daemon.log().iter().filter(|line| line.contains("closed:")).count()
}

#[test]
fn a_flood_closes_its_session_while_others_are_served() {
    let (daemon, _stage) = start();
    let socket = dial(&daemon.socket());
    assert!(say(&socket, &hello(1)));
    let is_over = (2..1_000_000).any(|number| !say(&socket, &ping(number)));
    assert!(is_over, "the session stays open");
    daemon.until_logged("closed:");
    assert_eq!(closed(&daemon), 1);
    daemon.connect().expect_ok(&Request::Ping).unwrap();
}

#[test]
fn a_client_without_hello_is_disconnected_and_one_that_leaves_is_not_reported() {
    let (daemon, _stage) = start();
    let silent = dial(&daemon.socket());
    drop(dial(&daemon.socket()));
    let polite = dial(&daemon.socket());
    assert!(say(&polite, &hello(1)));
    assert_eq!(last_refusal(&silent), Some(RefusalCode::BadMessage));
    daemon.until_logged("closed: its first message was not Hello");
    assert_eq!(closed(&daemon), 1);
    assert!(say(&polite, &ping(2)), "after Hello a client may be silent");
}

#[test]
fn too_many_sessions_are_turned_away() {
    let (daemon, _stage) = start();
    let crowd: Vec<OwnedFd> = (0..700).map(|_| dial(&daemon.socket())).collect();
    until("a client is turned away", || {
        daemon.log().iter().any(|line| line.contains("turned away"))
    });
    drop(crowd);
    until("there is room again", || {
        daemon.try_connect().is_ok_and(|mut client| client.expect_ok(&Request::Ping).is_ok())
    });
}

#[test]
fn running_out_of_descriptors_does_not_stop_the_daemon() {
    let stage = Stage::new("daemon").unwrap();
    let daemon = stage.daemon().files_max(40).start().unwrap();
    let mut witness = daemon.connect();
    let crowd: Vec<OwnedFd> = (0..60).map(|_| dial(&daemon.socket())).collect();
    daemon.until_logged("turned away");
    witness.expect_ok(&Request::Ping).unwrap();
    drop(crowd);
    until("there is room again", || {
        daemon.try_connect().is_ok_and(|mut client| client.expect_ok(&Request::Ping).is_ok())
    });
}

#[test]
fn a_follower_that_never_reads_costs_nobody_anything() {
    let (daemon, _stage) = start();
    let socket = dial(&daemon.socket());
    assert!(say(&socket, &hello(1)));
    assert!(say(&socket, &Message { request: 2, body: Request::Follow }.encode()));
    let mut client = daemon.connect();
    for round in 0..2_000 {
        let name = if round % 2 == 0 { "fair" } else { "strict" };
        client.policy(Some(gpreempt_wire::policy::PolicySettings::new(name))).unwrap();
        if round % 500 == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    let snapshot = daemon.snapshot();
    assert!(snapshot.daemon.resident_kib < 100_000, "{}", snapshot.daemon.resident_kib);
}
