//! The socket's place in the file system.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use gpreempt_core::time::Instant;
use gpreempt_stage::Stage;
use gpreempt_wire::server::{Accepted, BindError, Limits, Listener};

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
fn everybody_may_connect() {
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
fn somebody_elses_files_are_left_alone() {
    let folder = Stage::new("wire").unwrap();
    fs::write(folder.socket(), "precious").unwrap();
    let error = Listener::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(folder.socket()).unwrap(), "precious");
    fs::remove_file(folder.socket()).unwrap();
    // A socket of another kind that somebody listens on.
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
fn nobody_at_the_door_is_no_error() {
    let folder = Stage::new("wire").unwrap();
    let mut listener = Listener::bind(&folder.socket()).unwrap();
    let accepted = listener.accept(Limits::default(), Instant::ZERO);
    assert!(matches!(accepted, Ok(Accepted::Nobody)));
}

#[test]
fn paths_that_are_too_long_are_refused() {
    let folder = Stage::new("wire").unwrap();
    let error = Listener::bind(&folder.path("x".repeat(120))).unwrap_err();
    assert!(matches!(error, BindError::Failed { .. }), "{error}");
}
