//! Handles of queues: numbers that C sees as pointers, and that the library never dereferences.
//!
//! ```text
//!   63      56 55      48 47                                             0
//!   |  MARK   |  forks   |  serial number, counted from 1, never reused   |
//! ```
//!
//! So a handle finds the queue that it was made for, or none: a wild pointer has no mark, a
//! destroyed queue is not in the table, and a child process does not find the queues of its parent.
//! No address of a process begins with the mark, so a program that dereferences a handle crashes
//! there and not later.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Queue;
use crate::error::{ErrorCode, Failure, fail};
use crate::fork;
use crate::session::{self, lock};

const MARK: u64 = 0x67;
const MARK_SHIFT: u32 = 56;
const FORKS_SHIFT: u32 = 48;
const FORKS_MAX: u64 = 0xff;
const SERIAL_MAX: u64 = (1 << FORKS_SHIFT) - 1;

const _: () = assert!(usize::BITS == u64::BITS, "a handle has 64 bits");

/// The queues that this process has created and not destroyed.
#[derive(Debug, Default)]
pub(crate) struct QueueTable {
    queues: BTreeMap<u64, Arc<Queue>>,
    /// The serial number of the last one.
    last: u64,
}

/// What the number of a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decoded {
    /// A queue of this process, by its serial number.
    Own(u64),
    /// A queue that a parent process created.
    Inherited,
}

/// Adds a queue. Returns its handle.
pub(crate) fn insert(queue: Queue) -> Result<usize, Failure> {
    let mut table = lock(&session::state()?.queues);
    let serial = table.last + 1;
    let handle = encode(serial)?;
    table.queues.insert(serial, Arc::new(queue));
    table.last = serial;
    Ok(handle)
}

/// The queue of a handle. It stays usable for the caller while another thread destroys it: then
/// every operation fails.
pub(crate) fn find(handle: usize) -> Result<Arc<Queue>, Failure> {
    match decode(handle)? {
        Decoded::Own(serial) => {
            let table = lock(&session::state()?.queues);
            table.queues.get(&serial).map(Arc::clone).ok_or_else(|| table.missing(serial))
        }
        Decoded::Inherited => fail(
            ErrorCode::State,
            "a parent process created this queue; create one in this process",
        ),
    }
}

/// Removes the queue of a handle, which is invalid from now on. None: it belongs to a parent
/// process, which still uses it.
pub(crate) fn remove(handle: usize) -> Result<Option<Arc<Queue>>, Failure> {
    match decode(handle)? {
        Decoded::Own(serial) => {
            let mut table = lock(&session::state()?.queues);
            let removed = table.queues.remove(&serial);
            removed.map(Some).ok_or_else(|| table.missing(serial))
        }
        Decoded::Inherited => Ok(None),
    }
}

impl QueueTable {
    fn missing(&self, serial: u64) -> Failure {
        if serial > self.last {
            return not_a_handle();
        }
        Failure::new(ErrorCode::NoSuchQueue, "the queue was destroyed; create another one")
    }
}

fn encode(serial: u64) -> Result<usize, Failure> {
    let forks = fork::generation();
    if serial > SERIAL_MAX || forks > FORKS_MAX {
        return Err(ErrorCode::Limit.into());
    }
    let handle = (MARK << MARK_SHIFT) | (forks << FORKS_SHIFT) | serial;
    usize::try_from(handle).map_err(|_| ErrorCode::Internal.into())
}

fn decode(handle: usize) -> Result<Decoded, Failure> {
    let handle = u64::try_from(handle).map_err(|_| not_a_handle())?;
    let (forks, serial) = ((handle >> FORKS_SHIFT) & FORKS_MAX, handle & SERIAL_MAX);
    if handle >> MARK_SHIFT != MARK || serial == 0 || forks > fork::generation() {
        return Err(not_a_handle());
    }
    Ok(if forks == fork::generation() { Decoded::Own(serial) } else { Decoded::Inherited })
}

fn not_a_handle() -> Failure {
    Failure::new(ErrorCode::Argument, "queue is not a queue that gpreempt_queue_create() returned")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_create_returned_are_refused() {
        let local = 7;
        let stack = (&raw const local).expose_provenance();
        let own = encode(1).unwrap();
        for handle in [0, 1, 8, stack, usize::MAX, own | (1 << 50), own - 1, own ^ (1 << 60)] {
            let refused = find(handle).map(|_| ()).map_err(|failure| failure.code);
            assert_eq!(refused, Err(ErrorCode::Argument), "{handle:#x}");
            let refused = remove(handle).map(|_| ()).map_err(|failure| failure.code);
            assert_eq!(refused, Err(ErrorCode::Argument), "{handle:#x}");
        }
    }

    #[test]
    fn a_handle_decodes_to_its_serial_number_until_there_are_no_more() {
        for serial in [1, 2, SERIAL_MAX] {
            assert_eq!(decode(encode(serial).unwrap()), Ok(Decoded::Own(serial)));
        }
        assert_eq!(encode(SERIAL_MAX + 1).map_err(|failure| failure.code), Err(ErrorCode::Limit));
    }

    #[test]
    fn a_destroyed_queue_is_told_from_one_that_never_was() {
        let table = QueueTable { queues: BTreeMap::new(), last: 5 };
        assert_eq!(table.missing(5).code, ErrorCode::NoSuchQueue);
        assert_eq!(table.missing(6).code, ErrorCode::Argument);
    }
}
