//! Malformed messages and pages: the peer loses its connection or its queue, and no other peer is
//! affected.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::time::Duration;
use gpreempt_sim::prng::Prng;
use gpreempt_stage::{Emulator, until, until_some};
use gpreempt_wire::emulator::client::{Client, Launch};
use gpreempt_wire::emulator::control::{Control, ControlEvent, Options};
use gpreempt_wire::emulator::{EmuError, Refusal, Request, Role};
use gpreempt_wire::message::Body;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::{emulator, watcher};

pub(crate) const LAUNCH: Launch = Launch {
    kernel: 1,
    groups: 2,
    waves: 1,
    region: 0,
    region_bytes: 64,
    number: 0,
    work_ns: 100_000,
};

pub(crate) fn connect(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn is_closed(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 65_536];
    loop {
        match rustix::net::recv(socket.as_fd(), &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

fn works(emulator: &Emulator) {
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let mut queue = client.open_queue(DeviceId(0), 4).unwrap();
    let count = queue.submit(&LAUNCH).unwrap();
    assert!(queue.wait(count, Duration::from_millis(120_000)).unwrap());
    assert_ne!(client.read(0, 64).unwrap(), [0; 64]);
}

#[test]
fn a_malformed_message_closes_its_connection() {
    let mut emulator = emulator("");
    let hello = Request::Hello(Role::Client { memory_bytes: 64 }).encode(1);
    let control = Request::Hello(Role::Control { watches: true, releases: false }).encode(1);
    let mut version = hello.clone();
    version[4] = 9;
    let mut long = hello.clone();
    long.resize(4_000, 0);
    let bad: [&[&[u8]]; 9] = [
        &[b"GET / HTTP/1.1\r\n\r\n"],
        &[&[0xff; 60]],
        &[&hello[..20]],
        &[&version],
        &[&long],
        &[b""],
        &[&Request::List.encode(1)],
        &[&hello, &hello],
        &[&control, &Request::Stop(QueueId(1)).encode(0)],
    ];
    for (number, packets) in bad.into_iter().enumerate() {
        let socket = connect(&emulator.socket());
        for packet in packets {
            let _ = rustix::net::send(&socket, packet, SendFlags::NOSIGNAL);
        }
        until(&format!("connection {number} is closed"), || is_closed(&socket));
    }
    works(&emulator);
    emulator.assert_alive();
}

#[test]
fn a_peer_that_never_reads_is_closed() {
    let mut emulator = emulator("");
    for role in
        [Role::Client { memory_bytes: 1 << 20 }, Role::Control { watches: true, releases: false }]
    {
        let socket = connect(&emulator.socket());
        rustix::net::send(&socket, &Request::Hello(role).encode(1), SendFlags::NOSIGNAL).unwrap();
        let flood =
            [Request::List.encode(2), Request::Read { address: 0, bytes: 32_768 }.encode(3)];
        let mut sent = 0;
        while sent < 200_000 {
            let packet = &flood[sent % 2];
            match rustix::net::send(&socket, packet, SendFlags::NOSIGNAL) {
                Ok(_) => sent += 1,
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => break,
                Err(errno) => panic!("{errno}"),
            }
        }
        assert!(sent < 200_000, "the emulator accepted every message");
        works(&emulator);
    }
    emulator.assert_alive();
}

#[test]
fn connections_without_hello_are_closed_for_others() {
    let mut emulator = emulator("");
    let silent: Vec<OwnedFd> = (0..200).map(|_| connect(&emulator.socket())).collect();
    works(&emulator);
    let closed = silent.iter().filter(|socket| is_closed(socket)).count();
    assert!(closed >= 100, "{closed}");
    emulator.assert_alive();
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let emulator = emulator("--devices 2");
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let refused = |result: Result<(), EmuError>| match result {
        Err(EmuError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let mut open = |device, capacity| client.open_queue(DeviceId(device), capacity).map(|_| ());
    assert_eq!(refused(open(2, 4)), Refusal::NoSuchDevice);
    assert_eq!(refused(open(0, 3)), Refusal::BadNumber);
    assert_eq!(refused(open(0, 1 << 20)), Refusal::BadNumber);
    for _ in 0..64 {
        open(1, 2).unwrap();
    }
    assert_eq!(refused(open(1, 2)), Refusal::TooMany);
    assert_eq!(refused(client.read(32, 64).map(|_| ())), Refusal::BadNumber);
    let mut control = emulator.control().unwrap();
    assert_eq!(control.list().unwrap().queues.len(), 64);
    assert_eq!(refused(control.stop(QueueId(999))), Refusal::NoSuchQueue);
    let too_much = Client::connect(&emulator.socket(), u32::MAX).map(|_| ());
    assert_eq!(refused(too_much), Refusal::BadNumber);
}

#[test]
fn a_malformed_ring_faults_its_queue() {
    let mut emulator = emulator("");
    let mut watcher = watcher(&emulator);
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let nonsense: [[u8; 64]; 2] = [[0xaa; 64], {
        let mut empty = [0; 64];
        empty[0] = 1;
        empty
    }];
    for packet in nonsense {
        let mut bad = client.open_queue(DeviceId(0), 8).unwrap();
        let mut good = client.open_queue(DeviceId(0), 8).unwrap();
        bad.write(&packet);
        let expected = ControlEvent::QueueVanished { queue: bad.id(), is_faulted: true };
        until_some("the queue is given up", || {
            watcher.poll_event().unwrap().filter(|event| *event == expected)
        });
        assert!(matches!(bad.submit(&LAUNCH), Err(EmuError::Faulted)));
        assert!(matches!(bad.wait(9, Duration::from_millis(1_000)), Err(EmuError::Faulted)));
        let count = good.submit(&LAUNCH).unwrap();
        assert!(good.wait(count, Duration::from_millis(120_000)).unwrap());
        client.close_queue(&good).unwrap();
    }
    // A kernel that accesses memory beyond the client's.
    let mut far = client.open_queue(DeviceId(0), 8).unwrap();
    far.submit(&Launch { region: 0xffff_0000, ..LAUNCH }).unwrap();
    assert!(matches!(far.wait(1, Duration::from_millis(120_000)), Err(EmuError::Faulted)));
    emulator.assert_alive();
}

#[test]
fn a_randomly_overwritten_page_affects_only_its_owner() {
    let mut emulator = emulator("");
    let mut random = Prng::new(1);
    for _ in 0..40 {
        let socket = connect(&emulator.socket());
        let (bell, page) = raw_queue(&socket);
        for _ in 0..200 {
            let word = if random.chance(1, 2) { random.any() } else { random.below(16) };
            let is_head = random.chance(1, 3);
            let at = if is_head { random.below(20) * 8 } else { 4_096 + random.below(64) * 8 };
            page.write_at(&word.to_le_bytes(), at).unwrap();
            rustix::io::write(&bell, &1_u64.to_le_bytes()).unwrap();
        }
    }
    works(&emulator);
    emulator.assert_alive();
}

/// A client that uses its socket, doorbell and page directly.
fn raw_queue(socket: &OwnedFd) -> (OwnedFd, std::fs::File) {
    let ask = |request: Request| {
        rustix::net::send(socket, &request.encode(1), SendFlags::NOSIGNAL).unwrap();
        receive_file(socket)
    };
    let bell = ask(Request::Hello(Role::Client { memory_bytes: 64 }));
    let page = ask(Request::OpenQueue { device: DeviceId(0), capacity: 8 });
    (bell, page.into())
}

fn receive_file(socket: &OwnedFd) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0; 4_096];
    let mut slices = [std::io::IoSliceMut::new(&mut buffer)];
    rustix::net::recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let file = ancillary.drain().find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut files) = message else { return None };
        files.next()
    });
    file.unwrap()
}

#[test]
fn a_controllers_page_is_read_only() {
    let emulator = emulator("");
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let queue = client.open_queue(DeviceId(0), 8).unwrap();
    let control = connect(&emulator.socket());
    let hello = Request::Hello(Role::Control { watches: false, releases: false });
    rustix::net::send(&control, &hello.encode(1), SendFlags::NOSIGNAL).unwrap();
    let mut buffer = [0; 4_096];
    rustix::net::recv(control.as_fd(), &mut buffer, RecvFlags::empty()).unwrap();
    rustix::net::send(&control, &Request::Page(queue.id()).encode(2), SendFlags::NOSIGNAL).unwrap();
    let page: std::fs::File = receive_file(&control).into();
    assert!(page.write_at(&[1], 0).is_err());
    assert!(page.set_len(0).is_err());
    let other = Control::connect(&emulator.socket(), Options::default());
    assert_eq!(other.unwrap().page(queue.id()).unwrap().capacity(), 8);
}
