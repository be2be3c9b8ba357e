//! The page that a client and the device share: a ring, its indices, a doorbell, a counter.
//!
//! ```text
//!    0  u32  magic                 4  u32  packets the ring holds
//!    8  u32  doorbell wanted: the device does not read `put` again before the doorbell rings
//!   12  u32  completions: the low bits of `completed`, to wait on (futex)
//!   16  u32  waiters: threads of the client that wait there
//!   20  u32  state: 0 open, 1 faulted, 2 closed
//!   64  u64  put: packets written, by the client      (a cache line of its own)
//!  128  u64  get: packets fetched, by the device
//!  136  u64  completed: packets complete, by the device
//!  144  u64  latency: nanoseconds of the device's time from the last doorbell to `completed`
//!  152  u64  busy: nanoseconds of the queue's busy periods
//!  160  u64  off: how long of that it had work and was off the device
//!  168  u64  lost: how long of that the client waited for it
//! 4096  packets, 64 bytes each; packet n is in slot n modulo the number of slots
//! ```
//!
//! Submission: write the packet, increment `put`, and if a doorbell is wanted, ring it: write to
//! the eventfd that came with Welcome. The device checks `put` and the packets, which it does not
//! trust, and never reads what it wrote itself.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use gpreempt_core::busy_periods::BusyTime;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration as CoreDuration;
use rustix::io::Errno;
use rustix::thread::futex;

use super::client::PACKET_BYTES;
use crate::shared_memory::{Access, SharedMemory, SharedMemoryError};

const MAGIC: u32 = u32::from_le_bytes(*b"GPRG");
const PACKET_WORDS: usize = PACKET_BYTES / 8;

/// The part of a page before its packets.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RingHead {
    magic: AtomicU32,
    capacity: AtomicU32,
    doorbell_wanted: AtomicU32,
    completions: AtomicU32,
    waiters: AtomicU32,
    state: AtomicU32,
    reserved: [AtomicU32; 10],
    pub(crate) put: AtomicU64,
    beside_put: [AtomicU64; 7],
    get: AtomicU64,
    completed: AtomicU64,
    latency: AtomicU64,
    busy: AtomicU64,
    off: AtomicU64,
    lost: AtomicU64,
    rest: [AtomicU64; 490],
}

const HEAD_BYTES: usize = size_of::<RingHead>();
const _: () = assert!(HEAD_BYTES == 4096);

/// Whether the device executes the packets of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// It does.
    Open,
    /// Not any more: the ring contained an error.
    Faulted,
    /// Not any more: the queue was closed.
    Closed,
}

/// The page of a queue.
#[derive(Debug)]
pub struct QueuePage {
    memory: SharedMemory<RingHead>,
    capacity: u32,
}

/// The addresses of a page's parts in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    /// The packets.
    pub(crate) ring: u64,
    /// The index that the client writes.
    pub(crate) put: u64,
    /// The index that the device writes.
    pub(crate) get: u64,
}

/// A reading of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Packets written.
    pub put: u64,
    /// Packets fetched.
    pub get: u64,
    /// Packets complete.
    pub completed: u64,
}

impl Reading {
    /// The view of a scheduler, on a device that reports what runs or does not. (Every page has the
    /// counter of completions; real devices of the second kind do not show it, so a backend that
    /// emulates them ignores it, except after a stop.)
    pub fn view(self, can_tell_running: bool) -> RingView {
        let running = can_tell_running.then_some(self.completed < self.get);
        RingView { put: self.put, get: self.get, running }
    }
}

/// Bytes of a page whose ring holds that many packets.
fn page_bytes(capacity: u32) -> Option<usize> {
    let ring = usize::try_from(capacity).ok()?.checked_mul(PACKET_BYTES)?;
    ring.checked_add(HEAD_BYTES).filter(|_| capacity.is_power_of_two())
}

impl QueuePage {
    /// A new page, and the file it is in.
    pub fn create(capacity: u32) -> Result<(Self, OwnedFd), Errno> {
        let bytes = page_bytes(capacity).ok_or(Errno::INVAL)?;
        let (memory, file) = SharedMemory::create("gpreempt-ring", bytes).map_err(errno)?;
        let page = Self { memory, capacity };
        page.head().magic.store(MAGIC, Ordering::Relaxed);
        page.head().capacity.store(capacity, Ordering::Relaxed);
        page.head().doorbell_wanted.store(1, Ordering::Relaxed);
        Ok((page, file))
    }

    /// The page in a file that was received.
    pub(crate) fn open(file: BorrowedFd<'_>, capacity: u32, access: Access) -> Result<Self, Errno> {
        let bytes = page_bytes(capacity).ok_or(Errno::INVAL)?;
        let memory = SharedMemory::open(file, bytes, access).map_err(errno)?;
        let page = Self { memory, capacity };
        let is_ours = page.head().magic.load(Ordering::Relaxed) == MAGIC
            && page.head().capacity.load(Ordering::Relaxed) == capacity;
        if is_ours { Ok(page) } else { Err(Errno::INVAL) }
    }

    const fn head(&self) -> &RingHead {
        self.memory.head()
    }

    /// The words of the packet with that number.
    fn slot(&self, index: u64) -> &[AtomicU64] {
        let slot = index & (u64::from(self.capacity) - 1);
        // PANIC: below the capacity, which has 32 bits, and the ring has that many packets.
        let at = usize::try_from(slot).expect("a slot of this ring") * PACKET_WORDS;
        &self.memory.tail()[at..at + PACKET_WORDS]
    }

    /// The addresses in this process.
    pub(crate) fn addresses(&self) -> RingAddresses {
        let head = self.head();
        // CAST: an address has 64 bits.
        let address = |word: &AtomicU64| std::ptr::from_ref(word).addr() as u64;
        RingAddresses {
            ring: address(&self.slot(0)[0]),
            put: address(&head.put),
            get: address(&head.get),
        }
    }

    /// Packets that the ring holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The indices. They are read one after the other, `completed` first, so a reading never shows
    /// more packets fetched than written, unless the client writes wrong indices.
    pub fn read(&self) -> Reading {
        let load = |word: &AtomicU64| {
            // Memory that is mapped read-only must be read relaxed, with a fence.
            let value = word.load(Ordering::Relaxed);
            // ORDERING: pairs with the stores of the device and of the client.
            fence(Ordering::Acquire);
            value
        };
        let head = self.head();
        let completed = load(&head.completed);
        let get = load(&head.get);
        Reading { put: load(&head.put), get, completed }
    }

    /// The device's time from the last doorbell to the last completion. Read after
    /// [`QueuePage::read`] showed that completion.
    pub fn latency(&self) -> CoreDuration {
        CoreDuration::from_nanos(self.head().latency.load(Ordering::Relaxed))
    }

    /// The length of the queue's busy periods since it was opened, on a device with time slices.
    pub fn busy(&self) -> BusyTime {
        let of = |word: &AtomicU64| CoreDuration::from_nanos(word.load(Ordering::Relaxed));
        let head = self.head();
        BusyTime { busy: of(&head.busy), off: of(&head.off), lost: of(&head.lost), packets: 0 }
    }

    /// The device adds to them.
    pub fn add_busy(&self, more: BusyTime) {
        self.head().busy.fetch_add(more.busy.as_nanos(), Ordering::Relaxed);
        self.head().off.fetch_add(more.off.as_nanos(), Ordering::Relaxed);
        self.head().lost.fetch_add(more.lost.as_nanos(), Ordering::Relaxed);
    }

    /// Whether the device executes the packets.
    pub fn state(&self) -> QueueState {
        let state = self.head().state.load(Ordering::Relaxed);
        // ORDERING: pairs with `set_state`.
        fence(Ordering::Acquire);
        match state {
            0 => QueueState::Open,
            1 => QueueState::Faulted,
            _ => QueueState::Closed,
        }
    }

    /// The client writes a packet at `put` and increments it. True if it has to ring the doorbell.
    pub fn write(&self, put: u64, packet: &[u8; PACKET_BYTES]) -> bool {
        for (word, chunk) in self.slot(put).iter().zip(packet.chunks_exact(8)) {
            let value = chunk.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
            word.store(value, Ordering::Relaxed);
        }
        // ORDERING: pairs with the device's load of `put`, which then also sees the packet.
        self.head().put.store(put.wrapping_add(1), Ordering::Release);
        // ORDERING: pairs with the fence in `look`: either the device sees `put`, or the client
        // sees that it wants the doorbell.
        fence(Ordering::SeqCst);
        let wanted = &self.head().doorbell_wanted;
        wanted.load(Ordering::Relaxed) != 0 && wanted.swap(0, Ordering::Relaxed) != 0
    }

    /// The client waits until more than `completed` packets are complete, or the timeout.
    pub(crate) fn wait_beyond(&self, completed: u64, timeout: Duration) {
        let word = &self.head().completions;
        self.head().waiters.fetch_add(1, Ordering::SeqCst);
        let seen = word.load(Ordering::SeqCst);
        if self.read().completed <= completed && self.state() == QueueState::Open {
            let timeout = rustix::time::Timespec::try_from(timeout).ok();
            let _ = futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref());
        }
        self.head().waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// The device reads `put`; if it is still `seen`, it asks for the doorbell.
    pub fn look(&self, seen: u64) -> u64 {
        let put = &self.head().put;
        // ORDERING: pairs with the store in `write`.
        let first = put.load(Ordering::Acquire);
        if first != seen {
            return first;
        }
        self.head().doorbell_wanted.store(1, Ordering::Relaxed);
        // ORDERING: pairs with the fence in `write`.
        fence(Ordering::SeqCst);
        put.load(Ordering::Acquire)
    }

    /// The device reads a packet, whose content is not trusted.
    pub fn packet(&self, index: u64) -> [u8; PACKET_BYTES] {
        let mut bytes = [0; PACKET_BYTES];
        for (word, chunk) in self.slot(index).iter().zip(bytes.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    /// The device has fetched that many.
    pub fn set_fetched(&self, count: u64) {
        // ORDERING: the packet was read before; the client may overwrite it now.
        self.head().get.store(count, Ordering::Release);
    }

    /// The device has completed that many, that long after the last doorbell.
    pub fn set_completed(&self, count: u64, latency: gpreempt_core::time::Duration) {
        self.head().latency.store(latency.as_nanos(), Ordering::Relaxed);
        // ORDERING: pairs with the loads in `read`.
        self.head().completed.store(count, Ordering::Release);
        self.wake();
    }

    /// The device reports the state of the queue.
    pub fn set_state(&self, state: QueueState) {
        let number = match state {
            QueueState::Open => 0,
            QueueState::Faulted => 1,
            QueueState::Closed => 2,
        };
        // ORDERING: pairs with the load in `state`.
        self.head().state.store(number, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let word = &self.head().completions;
        word.fetch_add(1, Ordering::SeqCst);
        if self.head().waiters.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(word, futex::Flags::empty(), u32::try_from(i32::MAX).unwrap_or(1));
        }
    }
}

const fn errno(error: SharedMemoryError) -> Errno {
    match error {
        SharedMemoryError::Os(errno) => errno,
        SharedMemoryError::NotSealed => Errno::INVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::os::fd::AsFd;

    #[test]
    fn the_layout_is_the_one_above() {
        let words = [
            (offset_of!(RingHead, doorbell_wanted), 8),
            (offset_of!(RingHead, completions), 12),
            (offset_of!(RingHead, waiters), 16),
            (offset_of!(RingHead, state), 20),
            (offset_of!(RingHead, put), 64),
            (offset_of!(RingHead, get), 128),
            (offset_of!(RingHead, completed), 136),
            (offset_of!(RingHead, latency), 144),
        ];
        assert!(words.iter().all(|(found, wanted)| found == wanted), "{words:?}");
    }

    #[test]
    fn packets_and_indices_are_visible_in_every_mapping() {
        let (device, file) = QueuePage::create(4).unwrap();
        let client = QueuePage::open(file.as_fd(), 4, Access::ReadWrite).unwrap();
        let watcher = QueuePage::open(file.as_fd(), 4, Access::ReadOnly).unwrap();
        let mut bytes = [0; PACKET_BYTES];
        for index in 0..9_u8 {
            bytes[usize::from(index)] = index;
            client.write(u64::from(index), &bytes);
            assert_eq!(device.look(u64::from(index)), u64::from(index) + 1);
            assert_eq!(device.packet(u64::from(index)), bytes);
        }
        device.set_fetched(8);
        device.set_completed(7, gpreempt_core::time::Duration::from_nanos(5));
        assert_eq!(client.latency().as_nanos(), 5);
        let reading = watcher.read();
        assert_eq!(reading, Reading { put: 9, get: 8, completed: 7 });
        assert_eq!(reading.view(true), RingView { put: 9, get: 8, running: Some(true) });
        assert_eq!(reading.view(false).running, None);
    }

    #[test]
    fn the_doorbell_is_wanted_once_the_device_has_seen_everything() {
        let (page, _file) = QueuePage::create(2).unwrap();
        let packet = [0; PACKET_BYTES];
        assert!(page.write(0, &packet));
        assert!(!page.write(1, &packet));
        assert_eq!(page.look(0), 2);
        assert!(!page.write(2, &packet));
        assert_eq!(page.look(3), 3);
        assert!(page.write(3, &packet));
    }

    #[test]
    fn a_waiting_client_is_woken_by_a_completion_and_by_the_end() {
        let (device, file) = QueuePage::create(2).unwrap();
        let client = QueuePage::open(file.as_fd(), 2, Access::ReadWrite).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while client.read().completed == 0 {
                    client.wait_beyond(0, Duration::from_secs(600));
                }
                while client.state() == QueueState::Open {
                    client.wait_beyond(1, Duration::from_secs(600));
                }
            });
            device.set_completed(1, gpreempt_core::time::Duration::ZERO);
            device.set_state(QueueState::Faulted);
        });
        assert_eq!(client.state(), QueueState::Faulted);
    }

    #[test]
    fn only_pages_of_their_size_are_opened() {
        let (_page, file) = QueuePage::create(4).unwrap();
        for capacity in [0, 2, 3, 8, 1 << 31] {
            assert!(QueuePage::open(file.as_fd(), capacity, Access::ReadOnly).is_err());
        }
        assert!(QueuePage::create(0).is_err());
    }
}
