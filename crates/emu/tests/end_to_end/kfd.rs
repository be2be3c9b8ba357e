//! The emulator as a KFD, used by client processes.

use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration;
use gpreempt_kfd::abi::block::{self, CreateQueue, GetVersion, UpdateQueue};
use gpreempt_kfd::{Call, Ioctl, KfdClientCalls, Passed};
use gpreempt_sim::prng::Prng;
use gpreempt_wire::emulated_kfd::{KfdClient, KfdSocket, PROTOCOL, gpu_id};
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::message::Header;
use rustix::io::Errno;
use rustix::net::SendFlags;
use zerocopy::{FromZeros, IntoBytes};

use crate::garbage::{LAUNCH, connect};
use crate::kfd;

const PATIENCE: Duration = Duration::from_millis(120_000);

fn update(name: u32, percentage: u32) -> UpdateQueue {
    let mut block = UpdateQueue::new_zeroed();
    (block.queue_id, block.percentage, block.priority) = (name, percentage, 15);
    block
}

#[test]
fn a_program_computes_and_disables_its_own_queue() {
    for arguments in ["", "--gfx 110000 --devices 2", "--kernel 6.1"] {
        let emulator = kfd(arguments);
        let mut client = KfdClient::connect(emulator.place(), 64).unwrap();
        let mut queue = client.open_queue(DeviceId(0), 16).unwrap();
        let name = client.name(&queue).unwrap();
        let done = queue.submit(&LAUNCH).unwrap();
        assert!(queue.wait(done, PATIENCE).unwrap());
        client.kfd().update_queue(&update(name, 0)).unwrap();
        let done = queue.submit(&LAUNCH).unwrap();
        assert!(!queue.wait(done, Duration::from_millis(100)).unwrap(), "it is off");
        client.kfd().update_queue(&update(name, 100)).unwrap();
        assert!(queue.wait(done, PATIENCE).unwrap());
        // Two mixes of 0 into words that were zero.
        let step = |word: u32| word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let memory = client.read(0, 64).unwrap();
        assert_eq!(memory, step(step(0)).to_le_bytes().repeat(16));
        client.close_queue(&queue).unwrap();
        assert!(queue.submit(&LAUNCH).is_err(), "a destroyed queue takes nothing");
    }
}

#[test]
fn a_ring_belongs_to_one_process_and_one_queue() {
    let mut emulator = kfd("");
    let kfd = KfdSocket::open(emulator.place()).unwrap();
    let create = |gpu_id: u32, file: Option<&std::fs::File>| {
        let mut block = CreateQueue::new_zeroed();
        (block.gpu_id, block.percentage) = (gpu_id, 100);
        let file = file.map(|file| Passed { at: None, file: std::os::fd::AsFd::as_fd(file) });
        kfd.call(Call { file, ..Call::plain(block::CREATE_QUEUE, block.as_mut_bytes()) })
    };
    let device = gpu_id(0).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(create(device, None), Err(Errno::INVAL), "no ring");
    assert_eq!(create(device, Some(&null)), Err(Errno::INVAL), "not a ring");
    assert_eq!(create(7, Some(&null)), Err(Errno::INVAL), "not a device");
    assert_eq!(kfd.destroy_queue(0), Err(Errno::INVAL));
    // A queue without `CREATE_QUEUE` does nothing.
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let mut queue = client.open_queue(DeviceId(0), 16).unwrap();
    let done = queue.submit(&LAUNCH).unwrap();
    assert!(!queue.wait(done, Duration::from_millis(50)).unwrap());
    emulator.assert_alive();
}

#[test]
fn only_the_kfd_stops_its_queues() {
    let emulator = kfd("");
    let mut client = KfdClient::connect(emulator.place(), 64).unwrap();
    let queue = client.open_queue(DeviceId(0), 16).unwrap();
    let mut control = emulator.control().unwrap();
    assert!(control.stop(queue.id()).is_err());
    assert!(control.usage(queue.id()).is_ok());
}

#[test]
fn garbage_closes_its_own_connection_and_nothing_else() {
    let mut emulator = kfd("");
    let good = KfdSocket::open(emulator.place()).unwrap();
    let mut random = Prng::new(1);
    for round in 0..200_usize {
        let socket = connect(&emulator.place().join("kfd"));
        let mut bytes: Vec<u8> = (0..round).map(|_| random.any().to_le_bytes()[7]).collect();
        if round % 2 == 0 {
            bytes = Header { kind: 1, request: 0 }.join(&PROTOCOL, &bytes).unwrap();
        }
        let _ = rustix::net::send(&socket, &bytes, SendFlags::NOSIGNAL);
        let mut block = GetVersion::new_zeroed();
        good.call(Call::plain(block::GET_VERSION, block.as_mut_bytes())).unwrap();
        assert_eq!((block.major, block.minor), (1, 17));
    }
    emulator.assert_alive();
}

#[test]
fn every_load_runs_through_the_kfd() {
    let emulator = kfd("");
    for load in ["be", "lc --every-us 5000", "light --queues 3 --every-ms 5"] {
        let mut load = emulator.load(&format!("{load} --seconds 1")).unwrap();
        load.wait_exact().unwrap();
    }
}
