//! Queues of this very process on AMD devices, changed where they are.
//!
//! The kernel lets a process change its own queues and nobody else's. There is nobody to ask where
//! a ring is: whoever made the queue knows it, and says it again each time. A queue that was taken
//! off in this way stays off until it is put on again, whoever dies meanwhile.
#![expect(unsafe_code, reason = "an ioctl reads memory as its number says")]

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::code::Code;
use crate::failure::Failure;

/// Where KFD is.
const PATH: &str = "/dev/kfd";

/// What KFD is told (`kfd_ioctl_update_queue_args`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Block {
    ring_base: u64,
    queue_id: u32,
    ring_size: u32,
    percentage: u32,
    priority: u32,
}

/// `AMDKFD_IOC_UPDATE_QUEUE`.
const UPDATE_QUEUE: Opcode = opcode::write::<Block>(b'K', 0x07);

const _: () = assert!(UPDATE_QUEUE == 0x4018_4b07);

/// One queue, as whoever made it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnQueue {
    pub(crate) id: u32,
    pub(crate) ring_address: u64,
    pub(crate) ring_bytes: u32,
}

/// Takes a queue off its device or lets it on, and gives it a priority.
pub(crate) fn update(queue: OwnQueue, is_on: bool, priority: i32) -> Result<(), Failure> {
    let block = block(queue, is_on, priority)?;
    let file = open()?;
    // SAFETY: the block is what the kernel reads for this number.
    let setter = unsafe { Setter::<UPDATE_QUEUE, Block>::new(block) };
    // SAFETY: the file is KFD, where this number changes a queue of ours; the address in the block
    // is for the device, and the kernel touches nothing there.
    let told = unsafe { ioctl(&file, setter) };
    told.map_err(|errno| explain(queue.id, errno))
}

/// What the hardware makes of a priority: 0 low, 1 medium, 2 high.
pub(crate) fn pipe_priority(priority: i32) -> Result<i32, Failure> {
    match check_priority(priority)? {
        0..=6 => Ok(0),
        7..=10 => Ok(1),
        _ => Ok(2),
    }
}

fn block(queue: OwnQueue, is_on: bool, priority: i32) -> Result<Block, Failure> {
    let priority = check_priority(priority)?;
    if queue.ring_address == 0 || !queue.ring_bytes.is_power_of_two() {
        let sentence = "a ring has an address, and a power of two of bytes";
        return Err(Failure::new(Code::Argument, sentence));
    }
    Ok(Block {
        ring_base: queue.ring_address,
        queue_id: queue.id,
        ring_size: queue.ring_bytes,
        percentage: if is_on { 100 } else { 0 },
        priority,
    })
}

fn check_priority(priority: i32) -> Result<u32, Failure> {
    let level = u32::try_from(priority).ok().filter(|level| *level <= 15);
    level.ok_or_else(|| Failure::new(Code::Argument, "a priority is a number from 0 to 15"))
}

fn open() -> Result<File, Failure> {
    OpenOptions::new().read(true).write(true).open(PATH).map_err(|error| {
        let kind = error.kind();
        if kind == ErrorKind::NotFound {
            let sentence = format!("there is no {PATH}: no AMD GPU, or no driver");
            return Failure::new(Code::NoDevice, sentence);
        }
        if kind == ErrorKind::PermissionDenied {
            let sentence =
                format!("{PATH} may not be opened; join the group that owns it (render)");
            return Failure::new(Code::NotPermitted, sentence);
        }
        Failure::new(Code::System, format!("{PATH} cannot be opened: {error}"))
    })
}

fn explain(queue: u32, errno: Errno) -> Failure {
    match errno {
        Errno::FAULT => Failure::new(
            Code::NoSuchQueue,
            format!("this process has no queue {queue} on an AMD GPU"),
        ),
        Errno::INVAL => Failure::new(
            Code::Argument,
            format!("KFD does not take that for queue {queue}; is it its ring?"),
        ),
        Errno::NOTTY => Failure::new(Code::Unsupported, "this kernel cannot change queues"),
        errno => Failure::new(Code::Device, format!("KFD refused for queue {queue}: {errno}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: OwnQueue = OwnQueue { id: 3, ring_address: 0x1000, ring_bytes: 4096 };

    #[test]
    fn what_is_said_stands_in_the_block() {
        let block = block(QUEUE, false, 11).unwrap();
        assert_eq!((block.percentage, block.priority, block.queue_id), (0, 11, 3));
        assert_eq!(super::block(QUEUE, true, 0).unwrap().percentage, 100);
    }

    #[test]
    fn nonsense_never_reaches_the_kernel() {
        for (queue, priority) in [
            (OwnQueue { ring_address: 0, ..QUEUE }, 1),
            (OwnQueue { ring_bytes: 0, ..QUEUE }, 1),
            (OwnQueue { ring_bytes: 100, ..QUEUE }, 1),
            (QUEUE, 16),
            (QUEUE, -1),
        ] {
            let refused = update(queue, true, priority).map_err(|failure| failure.code);
            assert_eq!(refused, Err(Code::Argument), "{queue:?} {priority}");
        }
    }

    #[test]
    fn sixteen_priorities_are_three_for_the_hardware() {
        let pipes: Vec<i32> = (0..16).map(|level| pipe_priority(level).unwrap()).collect();
        assert_eq!(pipes, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert!(pipe_priority(16).is_err() && pipe_priority(-1).is_err());
    }

    #[test]
    fn without_a_device_it_says_so() {
        if std::path::Path::new(PATH).exists() {
            println!("SKIPPED: this machine has AMD devices");
            return;
        }
        let refused = update(QUEUE, true, 7).unwrap_err();
        assert_eq!(refused.code, Code::NoDevice);
        assert!(refused.sentence.contains("/dev/kfd"));
    }

    #[test]
    fn what_the_kernel_says_has_a_code() {
        assert_eq!(explain(1, Errno::FAULT).code, Code::NoSuchQueue);
        assert_eq!(explain(1, Errno::INVAL).code, Code::Argument);
        assert_eq!(explain(1, Errno::NOTTY).code, Code::Unsupported);
        assert_eq!(explain(1, Errno::IO).code, Code::Device);
    }
}
