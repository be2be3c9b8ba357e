//! Memory that a holder, its keeper and a device share.
//!
//! A device that is held waits for a word in memory to reach a number. Whoever can write that word
//! can end the hold, without any call: so it is in memory that the keeper has too, which ends every
//! hold when the holder dies or stands still. Each hold has a slot of its own.
#![expect(unsafe_code, reason = "shared memory is reached by address")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// How many holds there can be at once.
pub const SLOTS: usize = 64;
/// How many bytes a slot has.
pub const SLOT_SIZE: usize = 0x1_0000;

/// Where in a slot the device looks for the number.
pub const WORD: usize = 0x4000;
/// Where in a slot the device says that it has got there.
pub const LOADED: usize = 0x4040;
/// What nobody but the holder and the keeper read: the number that ends the hold.
const NUMBER: usize = 0x5000;
/// Whether it is held.
const HELD: usize = 0x5004;
/// When the holder was last seen at it, in nanoseconds of the monotonic clock.
const BEAT: usize = 0x5008;

/// How long a holder may hold without being seen.
pub const SILENCE_MAX: Duration = Duration::from_millis(100);

/// All slots.
#[derive(Debug)]
pub struct HoldPages {
    file: OwnedFd,
    base: NonNull<u8>,
    taken: Mutex<[bool; SLOTS]>,
}

/// One slot, which goes back when this is dropped.
#[derive(Debug)]
pub struct HoldSlot {
    pages: Arc<HoldPages>,
    index: usize,
    is_abandoned: bool,
}

impl HoldPages {
    /// Fresh memory in which nothing is held.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn new() -> io::Result<Arc<Self>> {
        let file = memfd_create("gpreempt-holds", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (SLOTS * SLOT_SIZE) as u64)?;
        Ok(Arc::new(Self::map(file)?))
    }

    /// Where a keeper finds the memory that its owner passed as the descriptor of errors. It is the
    /// keeper's own descriptor, so it is there after the owner's death.
    pub const INHERITED: &str = "/proc/self/fd/2";

    /// The memory of a holder, for its keeper: [`Self::INHERITED`], or the holder's [`Self::path`].
    ///
    /// # Errors
    /// If it is not such memory, or the holder is gone.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != (SLOTS * SLOT_SIZE) as u64 {
            return Err(io::Error::other("this is not the memory of a holder"));
        }
        Self::map(file.into())
    }

    /// Where a keeper finds this memory for as long as this process lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    fn map(file: OwnedFd) -> io::Result<Self> {
        let (length, access) = (SLOTS * SLOT_SIZE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address the kernel chooses; nothing of ours is there.
        let base =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, base, taken: Mutex::new([false; SLOTS]) })
    }

    /// A slot that nobody has, with nothing in it.
    pub fn take(self: &Arc<Self>) -> Option<HoldSlot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.iter().position(|taken| !taken)?;
        taken[index] = true;
        let slot = HoldSlot { pages: Arc::clone(self), index, is_abandoned: false };
        self.renew(&slot);
        Some(slot)
    }

    /// Gives a slot fresh memory. A device that was not made to forget the old one, because its
    /// program was not to be reached any more, keeps that, and finds every hold in it ended.
    fn renew(&self, slot: &HoldSlot) {
        let (from, length) = ((slot.index * SLOT_SIZE) as u64, SLOT_SIZE as u64);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where that is not possible, it is at least emptied.
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

    /// Ends the holds of a holder that was not seen for [`SILENCE_MAX`].
    pub fn release_silent(&self, now_ns: u64) {
        for index in 0..SLOTS {
            let is_held = self.word(index, HELD).load(Ordering::Acquire) != 0;
            let beat_ns = self.wide(index, BEAT).load(Ordering::Acquire);
            let silence = Duration::from_nanos(now_ns.saturating_sub(beat_ns));
            if is_held && silence > SILENCE_MAX {
                self.release(index);
            }
        }
    }

    fn release(&self, index: usize) {
        // Holder and keeper may both be here. Whoever is late must not undo what the other has
        // begun since: then the number is another, and that one is ended as well.
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
        assert!(slot < SLOTS && offset <= SLOT_SIZE - 4 && offset.is_multiple_of(4));
        // SAFETY: the offset is inside the mapping, which lives as long as `self`.
        let address = unsafe { self.base.byte_add(slot * SLOT_SIZE + offset) };
        // SAFETY: the address is aligned and mapped for as long as `self` is borrowed; everybody
        // who shares the memory uses whole words.
        unsafe { address.cast::<AtomicU32>().as_ref() }
    }

    fn wide(&self, slot: usize, offset: usize) -> &AtomicU64 {
        assert!(slot < SLOTS && offset <= SLOT_SIZE - 8 && offset.is_multiple_of(8));
        // SAFETY: the offset is inside the mapping, which lives as long as `self`.
        let address = unsafe { self.base.byte_add(slot * SLOT_SIZE + offset) };
        // SAFETY: as in `word`.
        unsafe { address.cast::<AtomicU64>().as_ref() }
    }
}

impl HoldSlot {
    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Where it is in this process.
    pub fn address(&self) -> u64 {
        (self.pages.base.as_ptr().addr() + self.index * SLOT_SIZE) as u64
    }

    /// Writes a word for the device.
    pub fn store(&self, offset: usize, value: u32) {
        self.pages.word(self.index, offset).store(value, Ordering::Release);
    }

    /// Writes a double word for the device.
    pub fn store_wide(&self, offset: usize, value: u64) {
        self.pages.wide(self.index, offset).store(value, Ordering::Release);
    }

    /// Reads a word that the device may write.
    pub fn load(&self, offset: usize) -> u32 {
        self.pages.word(self.index, offset).load(Ordering::Acquire)
    }

    /// Says that the device is about to be held until its word reaches a number. From here on the
    /// keeper can end it, whatever becomes of us.
    pub fn begin(&self, number: u32, now_ns: u64) {
        self.pages.word(self.index, NUMBER).store(number, Ordering::SeqCst);
        self.beat(now_ns);
        self.pages.word(self.index, HELD).swap(1, Ordering::SeqCst);
    }

    /// Says that the holder is there.
    pub fn beat(&self, now_ns: u64) {
        self.store_wide(BEAT, now_ns);
    }

    /// Ends the hold.
    pub fn end(&self) {
        self.pages.release(self.index);
    }

    /// Ends the hold and leaves the slot alone for good: a device may still look at it.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Whether the hold was not ended yet, by us or by the keeper.
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

impl Drop for HoldPages {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), SLOTS * SLOT_SIZE) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and is used by atomic words alone.
unsafe impl Send for HoldPages {}
// SAFETY: as above.
unsafe impl Sync for HoldPages {}

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
        assert!(slots[1].is_held(), "it was seen not long ago");
        keeper.release_silent(1_001 + 100_000_000);
        assert_eq!((slots[1].load(WORD), slots[1].is_held()), (7, false));
        slots[0].begin(3, 0);
        keeper.release_all();
        assert_eq!((slots[0].load(WORD), slots[0].is_held()), (3, false));
    }

    #[test]
    fn slots_go_round_and_are_empty() {
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
        assert!(pages.take().is_none(), "a device may still look at it");
    }

    #[test]
    fn a_file_that_is_something_else_is_refused() {
        assert!(HoldPages::open(Path::new("/dev/null")).is_err());
        assert!(HoldPages::open(Path::new("/proc/0/fd/0")).is_err());
    }
}
