//! Requests and their answers, and the file of the socket.

use std::fs;
use std::num::NonZeroU16;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use gpreempt_core::time::Instant;
use gpreempt_stage::Stage;
use gpreempt_wire::client::{Client, ClientError};
use gpreempt_wire::message::Message;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Accepted, BindError, CloseReason, Connection, Limits, Listener};

use crate::{Daemon, Raw, SNAPSHOT_BYTES, accept, hello, options, pair, wait};

#[test]
fn a_client_is_answered_and_leaves() {
    let daemon = Daemon::start();
    let mut client = daemon.connect().unwrap();
    client.expect_ok(&Request::Ping).unwrap();
    let set = Request::Set { process: Process::SENDER, change: SchedAttrChange::default() };
    match client.call(&set) {
        Err(ClientError::Refused(refusal)) => {
            assert_eq!(refusal.code, RefusalCode::NotPermitted);
            assert_eq!(refusal.to_string(), "not yours; ask its owner");
        }
        other => panic!("{other:?}"),
    }
    // A refusal ends nothing.
    let mut change = PolicySettings::new("fair");
    change.set("slice_us", 7).unwrap();
    assert_eq!(client.policy(Some(change.clone())).unwrap(), change);
    let snapshot = client.snapshot().unwrap();
    assert_eq!(snapshot.len(), SNAPSHOT_BYTES);
    assert!(snapshot.bytes().all(|byte| byte == b'j'));
    client.expect_ok(&Request::Ping).unwrap();
    drop(client);
    daemon.connect().unwrap().expect_ok(&Request::ResumeAll).unwrap();
    assert!(daemon.stop().iter().all(|offence| !offence.is_fault()));
}

#[test]
fn a_list_of_queues_comes_in_as_many_replies_as_it_takes() {
    let daemon = Daemon::start();
    let mut client = daemon.connect().unwrap();
    let ids: Vec<u64> = client.queues().unwrap().iter().map(|queue| queue.id).collect();
    assert_eq!(ids, (1..=120).collect::<Vec<_>>());
    assert_eq!(client.queue(77).unwrap().id, 77);
    assert!(client.is_connected());
    drop(daemon.stop());
    assert!(!client.is_connected());
}

#[test]
fn an_unexpected_reply_is_named() {
    let daemon = Daemon::start();
    let mut client = daemon.connect().unwrap();
    let error = client.policy(None).unwrap_err().to_string();
    assert!(error.contains("answered PolicyRead with Ok"), "{error}");
    let error = daemon.connect().unwrap().open_page().unwrap_err().to_string();
    assert!(error.contains("answered OpenPage with Ok"), "{error}");
}

#[test]
fn without_a_daemon_the_error_says_how_to_get_one() {
    let folder = Stage::new("wire").unwrap();
    // What a daemon that was killed leaves behind is no daemon either.
    let stale = folder.path("stale.sock");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        None,
    );
    rustix::net::bind(socket.unwrap(), &rustix::net::SocketAddrUnix::new(&stale).unwrap()).unwrap();
    for path in [folder.socket(), stale] {
        let mut options = options(&folder);
        options.paths = vec![path.clone()];
        let error = Client::connect(&options).unwrap_err();
        assert!(error.is_no_daemon());
        let text = error.to_string();
        let shown = path.display().to_string();
        for part in [shown.as_str(), "systemctl start gpreemptd", "gpreempt attach"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let mut options = options(&folder);
    options.paths = vec![folder.path("x".repeat(200))];
    let error = Client::connect(&options).unwrap_err();
    assert!(matches!(error, ClientError::BadPath { .. }), "{error}");
}

#[test]
fn the_second_path_is_used_when_no_daemon_listens_at_the_first() {
    let daemon = Daemon::start();
    let elsewhere = Stage::new("wire").unwrap();
    let mut options = daemon.options();
    options.paths.insert(0, elsewhere.socket());
    Client::connect(&options).unwrap().expect_ok(&Request::Ping).unwrap();
}

/// A client that connects, and the daemon's end of its session once it has said hello.
fn greeted(folder: &Stage) -> (JoinHandle<Result<Client, ClientError>>, Connection) {
    let mut listener = Listener::bind(&folder.socket()).unwrap();
    let options = options(folder);
    let client = spawn(move || Client::connect(&options));
    wait(&listener);
    let connection = accept(&mut listener, Limits::default());
    wait(&connection);
    (client, connection)
}

#[test]
fn a_daemon_of_another_version_is_recognised() {
    let folder = Stage::new("wire").unwrap();
    let (client, connection) = greeted(&folder);
    let mut packet = Message { request: 1, body: Reply::Ok }.encode();
    packet[4] = 7;
    rustix::net::send(&connection, &packet, rustix::net::SendFlags::empty()).unwrap();
    let error = client.join().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Version { daemon: 7 }), "{error}");
    let text = error.to_string();
    assert!(text.contains("speaks protocol version 7, this program speaks version 1"), "{text}");
}

#[test]
fn a_client_receives_the_reason_even_if_its_request_was_not_read() {
    let folder = Stage::new("wire").unwrap();
    let (client, connection) = greeted(&folder);
    // Its hello is still unread, so the kernel has an error for it before the reason.
    connection.close(&CloseReason::Flood);
    let error = client.join().unwrap().unwrap_err();
    let ClientError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.code, RefusalCode::Limit);
}

#[test]
fn a_client_waits_for_a_silent_daemon_until_its_timeout() {
    let folder = Stage::new("wire").unwrap();
    let _listener = Listener::bind(&folder.socket()).unwrap();
    let mut options = options(&folder);
    options.timeout = Duration::from_millis(30);
    let error = Client::connect(&options).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
}

#[test]
fn a_daemon_that_dies_is_noticed() {
    let daemon = Daemon::start();
    let mut client = daemon.connect().unwrap();
    let trace = Request::Trace { seconds: NonZeroU16::MIN };
    let mut follow = daemon.connect().unwrap().follow(&Request::Follow).unwrap();
    let no_event = follow.next_within(Duration::from_millis(1));
    assert!(matches!(no_event, Ok(None)) && !follow.is_over());
    daemon.stop();
    assert!(matches!(follow.next(), Some(Err(ClientError::HungUp))));
    assert!(follow.next().is_none() && follow.is_over());
    assert!(matches!(client.call(&Request::Ping), Err(ClientError::HungUp)));
    assert!(matches!(client.follow(&trace), Err(ClientError::HungUp)));
}

#[test]
fn the_kernel_says_who_the_client_is() {
    let (_folder, _listener, client, mut connection) = pair(Limits::default());
    assert_eq!(connection.peer().pid, std::process::id());
    assert_eq!(connection.peer().uid, rustix::process::getuid().as_raw());
    assert_eq!(connection.peer().gid, rustix::process::getgid().as_raw());
    assert_eq!(connection.role(), None);
    client.ask(1, hello());
    let now = Instant::ZERO;
    assert_eq!(connection.recv(now), Ok(Some(Message { request: 1, body: hello() })));
    assert_eq!(connection.role(), Some(gpreempt_wire::request::Role::Command));
    assert_eq!(connection.recv(now), Ok(None));
    drop(client);
    assert_eq!(connection.recv(now), Err(CloseReason::Left));
    assert!(!CloseReason::Left.is_fault());
}

#[test]
fn sessions_do_not_disturb_each_other() {
    let (folder, mut listener, first, mut first_end) = pair(Limits::default());
    let second = Raw::connect(&folder.socket());
    let mut second_end = accept(&mut listener, Limits::default());
    let now = Instant::ZERO;
    first.send(b"nonsense").unwrap();
    second.ask(1, hello());
    let offence = first_end.recv(now).unwrap_err();
    first_end.close(&offence);
    assert!(second_end.recv(now).unwrap().is_some());
    second_end.send(1, Reply::Ok).unwrap();
    assert_eq!(second.reply(), Some(Message { request: 1, body: Reply::Ok }));
}

#[test]
fn there_is_one_daemon_at_a_time() {
    let folder = Stage::new("wire").unwrap();
    let first = Listener::bind(&folder.socket()).unwrap();
    let error = Listener::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::AlreadyRunning { .. }), "{error}");
    assert!(first.is_in_place(), "the second one broke nothing");
    drop(first);
    assert!(!folder.socket().exists(), "it is removed at the end");
    Listener::bind(&folder.socket()).unwrap();
}

#[test]
fn every_user_may_connect() {
    let folder = Stage::new("wire").unwrap();
    let path = folder.path("not/there/yet/gpreemptd.sock");
    let listener = Listener::bind(&path).unwrap();
    let metadata = fs::symlink_metadata(listener.path()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o666);
}

#[test]
fn a_stale_socket_is_removed() {
    let folder = Stage::new("wire").unwrap();
    // A daemon that is killed leaves its socket behind, and its lock is gone.
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(folder.socket().exists());
    let listener = Listener::bind(&folder.socket()).unwrap();
    assert!(listener.is_in_place());
}

#[test]
fn files_of_other_programs_are_not_removed() {
    let folder = Stage::new("wire").unwrap();
    fs::write(folder.socket(), "precious").unwrap();
    let error = Listener::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(folder.socket()).unwrap(), "precious");
    fs::remove_file(folder.socket()).unwrap();
    // A socket of another kind on which a program listens.
    let other = UnixListener::bind(folder.socket()).unwrap();
    let error = Listener::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::AlreadyRunning { .. }), "{error}");
    assert!(folder.socket().exists());
    drop(other);
}

#[test]
fn a_socket_that_was_removed_is_missed_and_not_removed_twice() {
    let folder = Stage::new("wire").unwrap();
    let listener = Listener::bind(&folder.socket()).unwrap();
    assert!(listener.is_in_place());
    fs::remove_file(folder.socket()).unwrap();
    assert!(!listener.is_in_place());
    let error = Listener::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::AlreadyRunning { .. }), "it still lives: {error}");
    fs::write(folder.socket(), "another's").unwrap();
    assert!(!listener.is_in_place());
    drop(listener);
    assert!(folder.socket().exists());
}

#[test]
fn accepting_without_a_client_is_no_error() {
    let folder = Stage::new("wire").unwrap();
    let mut listener = Listener::bind(&folder.socket()).unwrap();
    let accepted = listener.accept(Limits::default(), Instant::ZERO);
    assert!(matches!(accepted, Ok(Accepted::NoClient)));
}

#[test]
fn paths_that_are_too_long_are_refused() {
    let folder = Stage::new("wire").unwrap();
    let error = Listener::bind(&folder.path("x".repeat(120))).unwrap_err();
    assert!(matches!(error, BindError::Failed { .. }), "{error}");
}
