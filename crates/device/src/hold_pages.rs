//! Memory that an owner of holds, its keeper and a device share.
//!
//! A device that is held waits until a word in memory reaches a number. Every process that can
//! write that word can end the hold without a call to the driver. So the word is in memory that the
//! keeper maps too; the keeper ends every hold when the owner dies or stalls. Each hold has a slot
//! of its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use crate::mapping::SharedMap;

/// The most holds at once.
pub const SLOTS: usize = 64;
pub const SLOT_SIZE: usize = 0x1_0000;

/// The offset in a slot of the word that the device waits for.
pub const WORD: usize = 0x4000;
/// The offset of the word that the device writes when it has reached the wait.
pub const LOADED: usize = 0x4040;
/// The offset of the word that the device writes when the context's kernels have finished.
pub const FENCED: usize = 0x4080;
/// The offset of the word that the device writes when it has switched to the context.
pub const PROBED: usize = 0x40c0;
/// The offset of the number that ends the hold, for owner and keeper.
const NUMBER: usize = 0x5000;
/// The offset of the word that is not zero while the device is held.
const HELD: usize = 0x5004;
/// The offset of the owner's last heartbeat, in nanoseconds of the monotonic clock.
const HEARTBEAT: usize = 0x5008;

/// How long an owner may hold a device without a heartbeat.
pub const SILENCE_MAX: Duration = Duration::from_millis(100);

/// All slots.
#[derive(Debug)]
pub struct HoldPages {
    file: OwnedFd,
    map: SharedMap,
    taken: Mutex<[bool; SLOTS]>,
}

/// One slot, which is free again when this is dropped.
#[derive(Debug)]
pub struct HoldSlot {
    pages: Arc<HoldPages>,
    index: usize,
    is_abandoned: bool,
}

impl HoldPages {
    /// New memory without a hold.
    pub fn new() -> io::Result<Arc<Self>> {
        let file = memfd_create("gpreempt-holds", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (SLOTS * SLOT_SIZE) as u64)?;
        Ok(Arc::new(Self::map(file)?))
    }

    /// The path at which a keeper finds the memory that its owner passed as standard error. It is
    /// the keeper's own descriptor, so it outlives the owner.
    pub const INHERITED: &str = "/proc/self/fd/2";

    /// The memory of an owner, for its keeper: [`Self::INHERITED`], or the owner's [`Self::path`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != (SLOTS * SLOT_SIZE) as u64 {
            return Err(io::Error::other("this file is not the hold pages of a gpreempt process"));
        }
        Self::map(file.into())
    }

    /// The path of this memory, for as long as this process lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    fn map(file: OwnedFd) -> io::Result<Self> {
        let map = SharedMap::new(file.as_fd(), SLOTS * SLOT_SIZE)?;
        Ok(Self { file, map, taken: Mutex::new([false; SLOTS]) })
    }

    /// A free slot, emptied.
    pub fn take(self: &Arc<Self>) -> Option<HoldSlot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.iter().position(|taken| !taken)?;
        taken[index] = true;
        let slot = HoldSlot { pages: Arc::clone(self), index, is_abandoned: false };
        self.renew(&slot);
        Some(slot)
    }

    /// Gives a slot new memory. A device that still uses the old memory, because its program could
    /// not be reached any more, keeps that, and finds every hold in it ended.
    fn renew(&self, slot: &HoldSlot) {
        let (from, length) = ((slot.index * SLOT_SIZE) as u64, SLOT_SIZE as u64);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // If the kernel cannot do that, the loop below at least empties the slot.
        let _ = fallocate(&self.file, flags, from, length);
        for offset in (0..SLOT_SIZE).step_by(4) {
            slot.store(offset, 0);
        }
    }

    /// Ends every hold.
    pub fn release_all(&self) {
        for index in 0..SLOTS {
            self.release(index);
        }
    }

    /// Ends the holds whose last heartbeat is older than [`SILENCE_MAX`].
    pub fn release_silent(&self, now_ns: u64) {
        for index in 0..SLOTS {
            let is_held = self.word(index, HELD).load(Ordering::Acquire) != 0;
            let beat_ns = self.double_word(index, HEARTBEAT).load(Ordering::Acquire);
            let silence = Duration::from_nanos(now_ns.saturating_sub(beat_ns));
            if is_held && silence > SILENCE_MAX {
                self.release(index);
            }
        }
    }

    fn release(&self, index: usize) {
        // Owner and keeper may both be here. The later one must not leave a hold that the other has
        // begun since: then the number has changed, and that hold is ended as well.
        loop {
            let number = self.word(index, NUMBER).load(Ordering::SeqCst);
            self.word(index, WORD).store(number, Ordering::SeqCst);
            self.word(index, HELD).swap(0, Ordering::SeqCst);
            if self.word(index, NUMBER).load(Ordering::SeqCst) == number {
                return;
            }
        }
    }

    fn word(&self, slot: usize, offset: usize) -> &AtomicU32 {
        assert!(slot < SLOTS && offset <= SLOT_SIZE - 4);
        self.map.word(slot * SLOT_SIZE + offset)
    }

    fn double_word(&self, slot: usize, offset: usize) -> &AtomicU64 {
        assert!(slot < SLOTS && offset <= SLOT_SIZE - 8);
        self.map.double_word(slot * SLOT_SIZE + offset)
    }
}

impl HoldSlot {
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        (self.pages.map.address() + self.index * SLOT_SIZE) as u64
    }

    /// Writes a word for the device.
    pub fn store(&self, offset: usize, value: u32) {
        self.pages.word(self.index, offset).store(value, Ordering::Release);
    }

    /// Writes a double word for the device.
    pub fn store_double(&self, offset: usize, value: u64) {
        self.pages.double_word(self.index, offset).store(value, Ordering::Release);
    }

    /// Reads a word that the device may write.
    pub fn load(&self, offset: usize) -> u32 {
        self.pages.word(self.index, offset).load(Ordering::Acquire)
    }

    /// Records that the device is about to be held until its word reaches a number. From here on
    /// the keeper can end the hold, even if this process dies.
    pub fn begin(&self, number: u32, now_ns: u64) {
        self.pages.word(self.index, NUMBER).store(number, Ordering::SeqCst);
        self.beat(now_ns);
        self.pages.word(self.index, HELD).swap(1, Ordering::SeqCst);
    }

    /// Records that the owner still watches the hold.
    pub fn beat(&self, now_ns: u64) {
        self.store_double(HEARTBEAT, now_ns);
    }

    /// Ends the hold.
    pub fn end(&self) {
        self.pages.release(self.index);
    }

    /// Ends the hold and never frees the slot: a device may still use its memory.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Whether neither the owner nor the keeper has ended the hold.
    pub fn is_held(&self) -> bool {
        self.load(HELD) != 0
    }
}

impl Drop for HoldSlot {
    fn drop(&mut self) {
        self.end();
        if self.is_abandoned {
            return;
        }
        let mut taken = self.pages.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.index] = false;
    }
}

impl AsFd for HoldPages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_sees_the_same_memory_and_can_end_every_hold() {
        let pages = HoldPages::new().unwrap();
        let keeper = HoldPages::open(&pages.path()).unwrap();
        let slots = [pages.take().unwrap(), pages.take().unwrap()];
        slots[1].begin(7, 1_000);
        assert!(slots[1].is_held() && !slots[0].is_held());
        assert_eq!(slots[1].load(WORD), 0);
        keeper.release_silent(1_000 + 100_000_000);
        assert!(slots[1].is_held(), "its heartbeat is recent enough");
        keeper.release_silent(1_001 + 100_000_000);
        assert_eq!((slots[1].load(WORD), slots[1].is_held()), (7, false));
        slots[0].begin(3, 0);
        keeper.release_all();
        assert_eq!((slots[0].load(WORD), slots[0].is_held()), (3, false));
    }

    #[test]
    fn a_dropped_slot_is_taken_again_and_is_empty() {
        let pages = HoldPages::new().unwrap();
        let mut slots: Vec<HoldSlot> = std::iter::from_fn(|| pages.take()).collect();
        assert_eq!(slots.len(), SLOTS);
        let dropped = slots.swap_remove(5);
        dropped.store(0, 9);
        assert_eq!(dropped.index(), 5);
        drop(dropped);
        let again = pages.take().unwrap();
        assert_eq!((again.index(), again.load(0)), (5, 0));
        assert!(pages.take().is_none());
        again.abandon();
        assert!(pages.take().is_none(), "a device may still use it");
    }

    #[test]
    fn a_file_that_is_something_else_is_refused() {
        assert!(HoldPages::open(Path::new("/dev/null")).is_err());
        assert!(HoldPages::open(Path::new("/proc/0/fd/0")).is_err());
    }
}
