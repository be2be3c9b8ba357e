//! AMD queues of the calling process, changed through KFD without gpreemptd.
//!
//! KFD lets a process change its own queues only. It does not report where a ring is, so the caller
//! passes it with each call. A queue that was preempted in this way stays off until it is resumed.
#![expect(unsafe_code, reason = "an ioctl reads the memory that its number describes")]

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::error::{ErrorCode, Failure, fail};

const PATH: &str = "/dev/kfd";

/// `kfd_ioctl_update_queue_args`.
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

/// A queue of this process and its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnQueue {
    pub(crate) id: u32,
    pub(crate) ring_address: u64,
    pub(crate) ring_bytes: u32,
}

/// Preempts or resumes a queue, and sets its priority.
pub(crate) fn update(queue: OwnQueue, is_on: bool, priority: i32) -> Result<(), Failure> {
    let block = block(queue, is_on, priority)?;
    let file = open()?;
    // SAFETY: the kernel reads a block of this type for this number.
    let setter = unsafe { Setter::<UPDATE_QUEUE, Block>::new(block) };
    // SAFETY: the file is KFD, where this number changes a queue of this process; the kernel does
    // not access the address in the block, which is the device's.
    let updated = unsafe { ioctl(&file, setter) };
    updated.map_err(|errno| explain(queue.id, errno))
}

/// The hardware's level of a priority: 0 low, 1 medium, 2 high.
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
        return fail(ErrorCode::Argument, "a ring has an address, and its size is a power of two");
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
    level.ok_or_else(|| Failure::new(ErrorCode::Argument, "a priority is between 0 and 15"))
}

fn open() -> Result<File, Failure> {
    OpenOptions::new().read(true).write(true).open(PATH).map_err(|error| {
        let kind = error.kind();
        if kind == ErrorKind::NotFound {
            let sentence = format!("{PATH} does not exist: no AMD GPU, or no driver");
            return Failure::new(ErrorCode::NoDevice, sentence);
        }
        if kind == ErrorKind::PermissionDenied {
            let sentence =
                format!("no permission to open {PATH}; join the group that owns it (render)");
            return Failure::new(ErrorCode::NotPermitted, sentence);
        }
        Failure::new(ErrorCode::System, format!("{PATH} cannot be opened: {error}"))
    })
}

fn explain(queue: u32, errno: Errno) -> Failure {
    match errno {
        Errno::FAULT => Failure::new(
            ErrorCode::NoSuchQueue,
            format!("this process has no queue {queue} on an AMD GPU"),
        ),
        Errno::INVAL => Failure::new(
            ErrorCode::Argument,
            format!("KFD refused the change of queue {queue}; check the ring address and size"),
        ),
        Errno::NOTTY => {
            Failure::new(ErrorCode::Unsupported, "this kernel does not support changes of queues")
        }
        errno => Failure::new(
            ErrorCode::Device,
            format!("KFD refused the change of queue {queue}: {errno}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: OwnQueue = OwnQueue { id: 3, ring_address: 0x1000, ring_bytes: 4096 };

    #[test]
    fn the_block_has_the_values_of_the_call() {
        let block = block(QUEUE, false, 11).unwrap();
        assert_eq!((block.percentage, block.priority, block.queue_id), (0, 11, 3));
        assert_eq!(super::block(QUEUE, true, 0).unwrap().percentage, 100);
    }

    #[test]
    fn invalid_arguments_do_not_reach_the_kernel() {
        for (queue, priority) in [
            (OwnQueue { ring_address: 0, ..QUEUE }, 1),
            (OwnQueue { ring_bytes: 0, ..QUEUE }, 1),
            (OwnQueue { ring_bytes: 100, ..QUEUE }, 1),
            (QUEUE, 16),
            (QUEUE, -1),
        ] {
            let refused = update(queue, true, priority).map_err(|failure| failure.code);
            assert_eq!(refused, Err(ErrorCode::Argument), "{queue:?} {priority}");
        }
    }

    #[test]
    fn sixteen_priorities_map_to_three_levels_of_the_hardware() {
        let pipes: Vec<i32> = (0..16).map(|level| pipe_priority(level).unwrap()).collect();
        assert_eq!(pipes, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert!(pipe_priority(16).is_err() && pipe_priority(-1).is_err());
    }

    #[test]
    fn a_machine_without_amd_device_is_reported() {
        if std::path::Path::new(PATH).exists() {
            println!("SKIPPED: this machine has AMD devices");
            return;
        }
        let refused = update(QUEUE, true, 7).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoDevice);
        assert!(refused.sentence.contains("/dev/kfd"));
    }

    #[test]
    fn each_error_of_the_kernel_has_a_code() {
        assert_eq!(explain(1, Errno::FAULT).code, ErrorCode::NoSuchQueue);
        assert_eq!(explain(1, Errno::INVAL).code, ErrorCode::Argument);
        assert_eq!(explain(1, Errno::NOTTY).code, ErrorCode::Unsupported);
        assert_eq!(explain(1, Errno::IO).code, ErrorCode::Device);
    }
}
