//! File descriptors: when they run out, and when clients send some unasked. Alone in its program,
//! because both look at the whole process; one test, because tests of one program run at once.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gpreempt_core::time::Instant;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::server::{Accepted, CloseReason, Limits, Listener};
use gpreempt_wire::text::Text;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, connect, recv, sendmsg, socket,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn client(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn open_count() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn descriptors_run_out_and_are_not_taken() {
    let folder = gpreempt_stage::WorkFolder::new("wire-fd").unwrap();
    let mut listener = Listener::bind(&folder.path("gpreemptd.sock")).unwrap();
    unwanted_descriptors_are_not_taken(&mut listener);
    clients_are_refused_when_there_are_none_left(&mut listener);
}

fn unwanted_descriptors_are_not_taken(listener: &mut Listener) {
    let client = client(listener.path());
    let accepted = listener.accept(Limits::default(), Instant::ZERO).unwrap();
    let Accepted::Client(mut connection) = accepted else { panic!("{accepted:?}") };
    let before = open_count();
    let hello = Request::Hello { role: Role::Agent, program: Text::EMPTY };
    let packet = Message { request: 1, body: hello }.encode();
    let descriptors = [client.as_fd(); 3];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(&client, &[IoSlice::new(&packet)], &mut control, SendFlags::empty());
    if listener.refuses_files() {
        assert_eq!(sent, Err(Errno::PERM));
        assert_eq!(connection.recv(Instant::ZERO), Ok(None));
    } else {
        assert_eq!(connection.recv(Instant::ZERO), Err(CloseReason::Files));
    }
    assert_eq!(open_count(), before);
}

fn clients_are_refused_when_there_are_none_left(listener: &mut Listener) {
    let client = client(listener.path());
    let limit = getrlimit(Resource::Nofile);
    // Every number below the limit is taken: what is opened next would get the lowest free one.
    let probe = fs::File::open("/dev/null").unwrap();
    let lowest = u64::try_from(rustix::fd::AsRawFd::as_raw_fd(&probe)).unwrap();
    drop(probe);
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), maximum: limit.maximum }).unwrap();
    let first = listener.accept(Limits::default(), Instant::ZERO);
    let second = listener.accept(Limits::default(), Instant::ZERO);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(matches!(first, Ok(Accepted::TurnedAway(Errno::MFILE, Some(_)))), "{first:?}");
    assert!(!matches!(second, Ok(Accepted::Client(_))), "{second:?}");
    let mut packet = [0; 4096];
    let (_, bytes) = recv(&client, &mut packet, RecvFlags::DONTWAIT).unwrap();
    let message = Message::<Reply>::decode(&packet[..bytes]).unwrap();
    let Reply::Refused(refusal) = message.body else { panic!("{message:?}") };
    assert_eq!(refusal.code, RefusalCode::Limit);
    // No client is left waiting, which would keep the event loop awake.
    let third = listener.accept(Limits::default(), Instant::ZERO);
    assert!(matches!(third, Ok(Accepted::NoClient)), "{third:?}");
}
