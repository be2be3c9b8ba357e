//! The page that a process and the daemon share, for hints that need no message.
//!
//! ```text
//!   0   magic, version, armed, slots used                  (one cache line)
//!   64  slot 0: owner, begun, ended, deadline               (one cache line each)
//!   128 slot 1 ...                                          63 slots
//! ```
//!
//! A thread of the process claims a slot, counts `begun` up when a request is coming and `ended`
//! when it is done. The daemon compares the counters with those it saw before. Whoever writes,
//! writes first and looks at `armed` afterwards; the daemon sets `armed` first and looks at the
//! slots afterwards. So at least one of the two sees the other, and no hint is slept through:
//!
//! ```text
//!   process                          daemon
//!   begun += 1                       armed = 1
//!   armed == 1 ? set 0, send Wake    look at the slots, sleep
//! ```
//!
//! While `armed` is 0 (the daemon is awake, or has had enough of being woken and looks at its own
//! pace) a hint is a few instructions and no system call.
//!
//! Everything here may be changed by the other side at any time, to anything. All of it is atomic,
//! all of it is advice.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::shared_memory::{Access, SharedMemory, SharedMemoryError};

/// How many bytes the page has.
pub const PAGE_BYTES: usize = 4096;
/// How many slots fit.
pub const SLOTS: usize = 63;
/// How the page begins: `GPHP`.
pub const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"GPHP");
/// The version of this layout.
pub const PAGE_VERSION: u32 = 1;

/// How often a reading of a slot is tried again because its owner was just writing.
const READ_TRIES: usize = 4;

/// The whole page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct HintPage {
    magic: AtomicU32,
    version: AtomicU32,
    armed: AtomicU32,
    used: AtomicU32,
    reserved: [AtomicU64; 6],
    slots: [HintSlot; SLOTS],
}

/// One thread's place.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct HintSlot {
    owner: AtomicU32,
    reserved: AtomicU32,
    begun: AtomicU64,
    ended: AtomicU64,
    deadline_us: AtomicU64,
    unused: [AtomicU64; 4],
}

const _: () = assert!(size_of::<HintPage>() == PAGE_BYTES);
const _: () = assert!(size_of::<HintSlot>() == 64);

/// What a slot shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotView {
    /// Hints begun so far.
    pub begun: u64,
    /// Hints ended so far.
    pub ended: u64,
    /// The deadline that came with the last one; 0 for none.
    pub deadline_us: u64,
}

impl SlotView {
    /// Whether a request is on its way.
    pub const fn is_active(&self) -> bool {
        self.begun > self.ended
    }
}

/// A page that another version or another program made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hint page has magic {magic:#010x} and version {version}; update the older program")]
pub struct PageMismatch {
    /// How it begins.
    pub magic: u32,
    /// Its version.
    pub version: u32,
}

impl HintPage {
    /// Marks a page of zeros as one of ours: the daemon does, before anybody else has it.
    pub fn mark(&self) {
        self.version.store(PAGE_VERSION, Ordering::Relaxed);
        // ORDERING: none needed. The page is handed over by a system call.
        self.magic.store(PAGE_MAGIC, Ordering::Relaxed);
    }

    /// Looks whether this is a page of this version.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self) -> Result<(), PageMismatch> {
        let magic = self.magic.load(Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        if magic == PAGE_MAGIC && version == PAGE_VERSION {
            Ok(())
        } else {
            Err(PageMismatch { magic, version })
        }
    }

    /// Takes a free slot. Nothing if there is none.
    pub fn claim(&self) -> Option<usize> {
        let is_mine = |slot: &HintSlot| {
            // ORDERING: acquire pairs with the release of whoever had the slot before.
            slot.owner.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = self.slots.iter().position(is_mine)?;
        // PANIC: there are 63 slots.
        let used = u32::try_from(index + 1).expect("an index of a slot is small");
        // ORDERING: sequentially consistent like the counters, so that whoever sees a count that
        // was made after this also looks far enough.
        self.used.fetch_max(used, Ordering::SeqCst);
        Some(index)
    }

    /// Gives a slot back; what it had begun is over. True if the daemon must be woken.
    pub fn release(&self, index: usize) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        let begun = slot.begun.load(Ordering::Relaxed);
        // ORDERING: before `armed` is read, see the picture above.
        slot.ended.swap(begun, Ordering::SeqCst);
        // ORDERING: release pairs with the acquire of whoever claims the slot next.
        slot.owner.store(0, Ordering::Release);
        self.must_wake()
    }

    /// A request is coming. True if the daemon must be woken.
    pub fn begin(&self, index: usize, deadline_us: u64) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        slot.deadline_us.store(deadline_us, Ordering::Relaxed);
        // ORDERING: publishes the deadline, and before `armed` is read, see the picture above.
        slot.begun.fetch_add(1, Ordering::SeqCst);
        self.must_wake()
    }

    /// The request is done. True if the daemon must be woken.
    pub fn end(&self, index: usize) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // An end too many would swallow the next begin.
        if slot.ended.load(Ordering::Relaxed) >= slot.begun.load(Ordering::Relaxed) {
            return false;
        }
        // ORDERING: before `armed` is read, see the picture above.
        slot.ended.fetch_add(1, Ordering::SeqCst);
        self.must_wake()
    }

    /// From now on the daemon wants to be woken; it looks at the slots after this, not before.
    pub fn arm(&self) {
        // ORDERING: before the slots are read, see the picture above.
        self.armed.swap(1, Ordering::SeqCst);
    }

    /// From now on the daemon looks by itself.
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::Relaxed);
    }

    /// What the slots show that have ever been used.
    pub fn views(&self) -> impl Iterator<Item = SlotView> + '_ {
        // ORDERING: pairs with the one in `claim`.
        let used = usize::try_from(self.used.load(Ordering::SeqCst)).unwrap_or(SLOTS);
        self.slots.iter().take(used).map(HintSlot::view)
    }

    /// Only one of several threads gets to wake the daemon.
    fn must_wake(&self) -> bool {
        // ORDERING: after the counters were written, see the picture above.
        self.armed.load(Ordering::SeqCst) == 1 && self.armed.swap(0, Ordering::SeqCst) == 1
    }
}

impl HintSlot {
    /// Count and deadline that belong together, unless the owner never stops writing.
    fn view(&self) -> SlotView {
        // ORDERING: acquire pairs with the count in `begin`, which comes after its deadline;
        // sequentially consistent because `armed` was written before, see the picture above.
        let mut begun = self.begun.load(Ordering::SeqCst);
        let mut deadline_us = 0;
        for _ in 0..READ_TRIES {
            deadline_us = self.deadline_us.load(Ordering::Acquire);
            let again = self.begun.load(Ordering::SeqCst);
            if again == begun {
                break;
            }
            begun = again;
        }
        SlotView { begun, ended: self.ended.load(Ordering::SeqCst), deadline_us }
    }
}

/// A hint page that is mapped, until this is dropped.
#[derive(Debug)]
pub struct Mapping(SharedMemory<HintPage>);

/// Why a page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The kernel refuses.
    #[error("the hint page cannot be mapped: {0}")]
    Os(#[from] Errno),
    /// Its size is another, or might become another while it is used.
    #[error("what came as a hint page is not one: its size is not fixed at 4096 bytes")]
    NotSealed,
    /// Another program or another version made it.
    #[error(transparent)]
    Mismatch(#[from] PageMismatch),
}

impl From<SharedMemoryError> for MappingError {
    fn from(error: SharedMemoryError) -> Self {
        match error {
            SharedMemoryError::Os(errno) => Self::Os(errno),
            SharedMemoryError::NotSealed => Self::NotSealed,
        }
    }
}

impl Mapping {
    /// A new page, and the descriptor to hand to the other side.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor left.
    pub fn create() -> Result<(Self, OwnedFd), MappingError> {
        let (memory, file) = SharedMemory::<HintPage>::create("gpreempt-hints", PAGE_BYTES)?;
        memory.head().mark();
        Ok((Self(memory), file))
    }

    /// The page behind a descriptor that came from the other side.
    ///
    /// # Errors
    /// If it is not a hint page of this version, or its size could change.
    pub fn open(file: impl AsFd) -> Result<Self, MappingError> {
        let memory = SharedMemory::<HintPage>::open(file, PAGE_BYTES, Access::ReadWrite)?;
        memory.head().check()?;
        Ok(Self(memory))
    }

    /// The page.
    pub const fn page(&self) -> &HintPage {
        self.0.head()
    }
}

#[cfg(test)]
pub(crate) fn blank() -> HintPage {
    let page = HintPage {
        magic: AtomicU32::default(),
        version: AtomicU32::default(),
        armed: AtomicU32::default(),
        used: AtomicU32::default(),
        reserved: Default::default(),
        slots: std::array::from_fn(|_| HintSlot::default()),
    };
    page.mark();
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_the_one_in_the_documentation() {
        assert_eq!(offset_of!(HintPage, version), 4);
        assert_eq!(offset_of!(HintPage, armed), 8);
        assert_eq!(offset_of!(HintPage, used), 12);
        assert_eq!(offset_of!(HintPage, slots), 64);
        assert_eq!(offset_of!(HintSlot, begun), 8);
        assert_eq!(offset_of!(HintSlot, ended), 16);
        assert_eq!(offset_of!(HintSlot, deadline_us), 24);
    }

    #[test]
    fn the_first_hint_after_arming_wakes_and_the_others_do_not() {
        let page = blank();
        let slot = page.claim().unwrap();
        assert!(!page.begin(slot, 0), "nobody sleeps yet");
        page.arm();
        assert!(page.end(slot));
        assert!(!page.begin(slot, 0), "it is being woken already");
        page.arm();
        page.disarm();
        assert!(!page.end(slot));
    }

    #[test]
    fn an_end_too_many_does_not_swallow_the_next_begin() {
        let page = blank();
        let slot = page.claim().unwrap();
        page.end(slot);
        page.begin(slot, 7);
        let expected = SlotView { begun: 1, ended: 0, deadline_us: 7 };
        assert_eq!(page.views().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn slots_run_out_and_come_back_without_hints_in_them() {
        let page = blank();
        let all: Vec<usize> = std::iter::from_fn(|| page.claim()).collect();
        assert_eq!(all, (0..SLOTS).collect::<Vec<_>>());
        page.begin(5, 0);
        page.begin(5, 0);
        page.arm();
        assert!(page.release(5), "whoever waits for the end hears of it");
        assert!(page.views().all(|view| !view.is_active()));
        assert_eq!(page.claim(), Some(5));
        assert!(!page.begin(SLOTS, 0) && !page.end(usize::MAX) && !page.release(SLOTS));
    }

    #[test]
    fn a_page_of_another_version_is_refused() {
        let page = blank();
        assert_eq!(page.check(), Ok(()));
        page.version.store(2, Ordering::Relaxed);
        assert_eq!(page.check(), Err(PageMismatch { magic: PAGE_MAGIC, version: 2 }));
    }

    #[test]
    fn a_page_full_of_nonsense_does_no_harm() {
        let page = blank();
        page.used.store(u32::MAX, Ordering::Relaxed);
        page.slots[3].begun.store(u64::MAX, Ordering::Relaxed);
        page.slots[4].ended.store(u64::MAX, Ordering::Relaxed);
        let active: Vec<bool> = page.views().map(|view| view.is_active()).collect();
        assert_eq!(active.len(), SLOTS);
        assert_eq!(active.iter().filter(|active| **active).count(), 1);
        assert!(!page.end(4));
        // The count wraps around instead of panicking.
        page.begin(3, 0);
    }

    #[test]
    fn both_sides_see_the_same_page() {
        let (daemon, file) = Mapping::create().unwrap();
        let process = Mapping::open(&file).unwrap();
        drop(file);
        let slot = process.page().claim().unwrap();
        process.page().begin(slot, 250);
        let seen: Vec<SlotView> = daemon.page().views().collect();
        assert_eq!(seen, [SlotView { begun: 1, ended: 0, deadline_us: 250 }]);
        drop(process);
        assert!(daemon.page().views().all(|view| view.is_active()));
    }

    #[test]
    fn pages_that_are_not_marked_or_not_sealed_are_refused() {
        let null = std::fs::File::open("/dev/zero").unwrap();
        assert!(matches!(Mapping::open(&null), Err(MappingError::NotSealed)));
        let (_memory, file) = SharedMemory::<HintPage>::create("zeros", PAGE_BYTES).unwrap();
        assert!(matches!(Mapping::open(&file), Err(MappingError::Mismatch(_))));
    }
}
