use std::os::fd::AsFd;
use std::sync::Mutex;

use super::*;
use crate::door::ClientDoor;

/// What arrived: the number, the block, the array and where its address goes, where a file's
/// number goes.
type Arrived = (u32, Vec<u8>, Option<(usize, Vec<u8>)>, Option<usize>);

/// Keeps what arrives and fills every array with a byte.
#[derive(Debug, Default)]
struct Recorder {
    arrived: Mutex<Vec<Arrived>>,
}

impl Recorder {
    fn last(&self) -> Arrived {
        self.arrived.lock().unwrap().pop().unwrap()
    }
}

impl Ioctl for Recorder {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        let array = call.array.as_ref().map(|array| (array.at, array.bytes.to_vec()));
        let file = call.file.and_then(|file| file.at);
        self.arrived.lock().unwrap().push((call.opcode, call.block.to_vec(), array, file));
        if let Some(array) = call.array {
            array.bytes.fill(1);
        }
        Ok(())
    }
}

impl DebuggerIoctl for Recorder {
    fn seize(&self, _pid: u32) -> Result<(), Errno> {
        Err(Errno::PERM)
    }

    fn tracer_of(&self, _pid: u32) -> Option<u32> {
        None
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        if pid == 7 { self.call(call) } else { Err(Errno::NODEV) }
    }
}

#[test]
fn what_a_block_refers_to_goes_where_the_header_says() {
    let recorder = Recorder::default();
    let pipe = rustix::pipe::pipe().unwrap();
    let info = recorder.enable(7, Exceptions::WANTED, pipe.1.as_fd()).unwrap();
    let (opcode, block, array, file) = recorder.last();
    assert_eq!((opcode, block.len()), (DBG_TRAP, 32));
    assert_eq!((array, file), (Some((16, vec![0; 16])), Some(28)));
    assert_eq!(info.ttmp_setup, 0x0101_0101);

    let mut queues = [3, 4];
    recorder.suspend_queues(7, &mut queues, 9).unwrap();
    let (_, block, array, _) = recorder.last();
    assert_eq!(array, Some((16, vec![3, 0, 0, 0, 4, 0, 0, 0])));
    assert_eq!((block[4], block[24], block[28]), (6, 2, 9));
    assert_eq!(queues, [0x0101_0101; 2]);

    recorder.resume_queues(7, &mut queues).unwrap();
    assert_eq!(recorder.last().2.map(|(at, _)| at), Some(8));
    recorder.runtime_info(7).unwrap();
    assert_eq!(recorder.last().2.map(|(at, _)| at), Some(8));
}

#[test]
fn a_list_has_room_for_one_even_if_none_is_wanted() {
    let recorder = Recorder::default();
    let (entries, count) = recorder.queues(7, Exceptions::NONE, 0).unwrap();
    assert_eq!((entries.len(), count), (0, 0));
    assert_eq!(recorder.last().2, Some((16, vec![0; 64])));
    let (entries, _) = recorder.devices(7, 2).unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1].gpu_id, 0x0101_0101);
}

#[test]
fn blocks_without_addresses_carry_nothing_else() {
    let recorder = Recorder::default();
    recorder.runtime_enable(true).unwrap();
    let enabled = recorder.last();
    assert_eq!((enabled.0, enabled.1[8], enabled.2, enabled.3), (0xc010_4b25, 1, None, None));
    recorder.destroy_queue(5).unwrap();
    assert_eq!(recorder.last().1, [5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(recorder.criu(8, CriuOperation::Unpause), Err(Errno::NODEV));
    recorder.criu(7, CriuOperation::Unpause).unwrap();
    assert_eq!(recorder.last().1[48], 2);
}
