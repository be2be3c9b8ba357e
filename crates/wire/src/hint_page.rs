//! The page that a process and the daemon share, for hints that need no message: its layout, the
//! mapping, and the daemon's reader. The process writes with
//! [`HintWriter`](crate::client::HintWriter).
//!
//! ```text
//!   0   magic, version, armed, slots used                  (one cache line)
//!   64  slot 0: owner, begun, ended, deadline               (one cache line each)
//!   128 slot 1 ...                                          63 slots
//! ```
//!
//! A thread of the process claims a slot, increments `begun` when a request is coming and `ended`
//! when it is done. The daemon compares the counters with those of its last reading. The process
//! writes a counter first and reads `armed` afterwards; the daemon sets `armed` first and reads the
//! slots afterwards. So at least one of the two sees the other, and no hint is lost while the
//! daemon sleeps:
//!
//! ```text
//!   process                          daemon
//!   begun += 1                       armed = 1
//!   armed == 1 ? set 0, send Wake    read the slots, sleep
//! ```
//!
//! While `armed` is 0 (the daemon is awake, or was woken so often that it polls the page instead) a
//! hint is a few instructions and no system call.
//!
//! The other side may change everything here at any time, to anything. So all of it is atomic, and
//! the daemon uses it as advice only.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::shared_memory::{Access, SharedMemory, SharedMemoryError};

/// Bytes of the page.
pub const PAGE_BYTES: usize = 4096;
/// Slots of the page.
pub const SLOTS: usize = 63;
/// The first bytes of the page: `GPHP`.
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

/// The counters of one thread.
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

/// The counters of a slot, as the daemon reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotView {
    /// Hints begun so far.
    pub begun: u64,
    /// Hints ended so far.
    pub ended: u64,
    /// The deadline of the last one; 0 for none.
    pub deadline_us: u64,
}

impl SlotView {
    /// Whether a request is in progress.
    pub const fn is_active(&self) -> bool {
        self.begun > self.ended
    }
}

/// A page that another version or another program made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hint page has magic {magic:#010x} and version {version}; update the older program")]
pub struct PageMismatch {
    /// Its first bytes.
    pub magic: u32,
    /// The version of its layout.
    pub version: u32,
}

impl HintPage {
    /// Writes magic and version into a page of zeros, before the daemon shares it.
    pub fn mark(&self) {
        self.version.store(PAGE_VERSION, Ordering::Relaxed);
        // ORDERING: none needed. The page is handed over by a system call.
        self.magic.store(PAGE_MAGIC, Ordering::Relaxed);
    }

    /// Checks that this is a page of this version.
    pub fn check(&self) -> Result<(), PageMismatch> {
        let magic = self.magic.load(Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        if magic == PAGE_MAGIC && version == PAGE_VERSION {
            Ok(())
        } else {
            Err(PageMismatch { magic, version })
        }
    }

    /// Takes a free slot. None if all are taken.
    pub fn claim(&self) -> Option<usize> {
        let is_mine = |slot: &HintSlot| {
            // ORDERING: acquire pairs with the release of the slot by its last owner.
            slot.owner.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = self.slots.iter().position(is_mine)?;
        // PANIC: there are 63 slots.
        let used = u32::try_from(index + 1).expect("an index of a slot is small");
        // ORDERING: sequentially consistent like the counters, so that a reader that sees a count
        // made after this also reads this slot.
        self.used.fetch_max(used, Ordering::SeqCst);
        Some(index)
    }

    /// Returns a slot; its requests have ended. True if the daemon must be woken.
    pub fn release(&self, index: usize) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        let begun = slot.begun.load(Ordering::Relaxed);
        // ORDERING: before `armed` is read, see the drawing above.
        slot.ended.swap(begun, Ordering::SeqCst);
        // ORDERING: release pairs with the acquire of the next owner in `claim`.
        slot.owner.store(0, Ordering::Release);
        self.must_wake()
    }

    /// A request is coming. True if the daemon must be woken.
    pub fn begin(&self, index: usize, deadline_us: u64) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        slot.deadline_us.store(deadline_us, Ordering::Relaxed);
        // ORDERING: publishes the deadline, and before `armed` is read, see the drawing above.
        slot.begun.fetch_add(1, Ordering::SeqCst);
        self.must_wake()
    }

    /// The request is done. True if the daemon must be woken.
    pub fn end(&self, index: usize) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // An end without a begin would cancel the next begin.
        if slot.ended.load(Ordering::Relaxed) >= slot.begun.load(Ordering::Relaxed) {
            return false;
        }
        // ORDERING: before `armed` is read, see the drawing above.
        slot.ended.fetch_add(1, Ordering::SeqCst);
        self.must_wake()
    }

    /// The daemon asks to be woken. It must read the slots after this, not before.
    pub fn arm(&self) {
        // ORDERING: before the slots are read, see the drawing above.
        self.armed.swap(1, Ordering::SeqCst);
    }

    /// The daemon polls the page and need not be woken.
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::Relaxed);
    }

    /// The counters of the slots that have ever been used.
    pub fn views(&self) -> impl Iterator<Item = SlotView> + '_ {
        // ORDERING: pairs with the one in `claim`.
        let used = usize::try_from(self.used.load(Ordering::SeqCst)).unwrap_or(SLOTS);
        self.slots.iter().take(used).map(HintSlot::view)
    }

    /// True for one of several threads only: that one wakes the daemon.
    fn must_wake(&self) -> bool {
        // ORDERING: after the counters were written, see the drawing above.
        self.armed.load(Ordering::SeqCst) == 1 && self.armed.swap(0, Ordering::SeqCst) == 1
    }
}

impl HintSlot {
    /// A count with the deadline that belongs to it, unless the owner writes all the time.
    fn view(&self) -> SlotView {
        // ORDERING: acquire pairs with the count in `begin`, which comes after its deadline;
        // sequentially consistent because `armed` was written before, see the drawing above.
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

/// A mapped hint page; dropping it unmaps the page.
#[derive(Debug)]
pub struct Mapping(SharedMemory<HintPage>);

/// Why a page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The kernel cannot map it.
    #[error("the hint page cannot be mapped: {0}")]
    Os(#[from] Errno),
    /// Its size is wrong, or could change while it is mapped.
    #[error("the descriptor is not a hint page: its size is not fixed at 4096 bytes")]
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
    /// A new page, and the descriptor for the process.
    pub fn create() -> Result<(Self, OwnedFd), MappingError> {
        let (memory, file) = SharedMemory::<HintPage>::create("gpreempt-hints", PAGE_BYTES)?;
        memory.head().mark();
        Ok((Self(memory), file))
    }

    /// The page of a received descriptor. Its size must be sealed.
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

/// What changed on a page since the last reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintChange {
    /// A request is coming.
    Began {
        /// The time until its deadline, in microseconds after the hint; the nearest deadline, if
        /// several requests are coming. None if they have no deadline.
        deadline_us: Option<u64>,
    },
    /// No request is in progress any more.
    Ended,
}

/// The daemon's reader of a page, with the counters of its last reading.
#[derive(Clone, Debug)]
pub struct HintReader {
    begun: [u64; SLOTS],
    is_active: bool,
}

impl Default for HintReader {
    fn default() -> Self {
        Self { begun: [0; SLOTS], is_active: false }
    }
}

impl HintReader {
    /// Asks to be woken by the next change, and reads the page.
    pub fn arm_and_look(&mut self, page: &HintPage) -> Option<HintChange> {
        page.arm();
        self.look(page)
    }

    /// Reads the page. A request that began and ended since the last reading is not reported.
    pub fn look(&mut self, page: &HintPage) -> Option<HintChange> {
        let mut is_active = false;
        let mut new: Option<Option<u64>> = None;
        for (seen, view) in self.begun.iter_mut().zip(page.views()) {
            let is_new = std::mem::replace(seen, view.begun) != view.begun;
            is_active |= view.is_active();
            if is_new && view.is_active() {
                new = Some(nearer(new.flatten(), view));
            }
        }
        let was_active = std::mem::replace(&mut self.is_active, is_active);
        match new {
            Some(deadline_us) => Some(HintChange::Began { deadline_us }),
            None => (was_active && !is_active).then_some(HintChange::Ended),
        }
    }
}

fn nearer(deadline_us: Option<u64>, view: SlotView) -> Option<u64> {
    let own = Some(view.deadline_us).filter(|deadline_us| *deadline_us != 0);
    match (deadline_us, own) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    fn blank() -> HintPage {
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
        assert!(!page.begin(slot, 0), "the daemon does not sleep yet");
        page.arm();
        assert!(page.end(slot));
        assert!(!page.begin(slot, 0), "the daemon is being woken already");
        page.arm();
        page.disarm();
        assert!(!page.end(slot));
    }

    #[test]
    fn an_end_without_a_begin_does_not_cancel_the_next_begin() {
        let page = blank();
        let slot = page.claim().unwrap();
        page.end(slot);
        page.begin(slot, 7);
        let expected = SlotView { begun: 1, ended: 0, deadline_us: 7 };
        assert_eq!(page.views().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn slots_run_out_and_returned_ones_have_no_hints() {
        let page = blank();
        let all: Vec<usize> = std::iter::from_fn(|| page.claim()).collect();
        assert_eq!(all, (0..SLOTS).collect::<Vec<_>>());
        page.begin(5, 0);
        page.begin(5, 0);
        page.arm();
        assert!(page.release(5), "the daemon learns of the end");
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
    fn a_page_with_arbitrary_counters_is_read_without_harm() {
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

    #[test]
    fn changes_are_reported_once() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slot = page.claim().unwrap();
        assert_eq!(reader.arm_and_look(&page), None);
        assert!(page.begin(slot, 500));
        let began = HintChange::Began { deadline_us: Some(500) };
        assert_eq!(reader.arm_and_look(&page), Some(began));
        assert_eq!(reader.look(&page), None);
        assert!(page.end(slot));
        assert_eq!(reader.look(&page), Some(HintChange::Ended));
        assert_eq!(reader.look(&page), None);
    }

    #[test]
    fn a_request_that_began_and_ended_between_two_readings_is_not_reported() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slot = page.claim().unwrap();
        page.begin(slot, 0);
        page.end(slot);
        assert_eq!(reader.look(&page), None);
        // One that ended and one that began between two readings are a new one.
        page.begin(slot, 0);
        assert_eq!(reader.look(&page), Some(HintChange::Began { deadline_us: None }));
        page.end(slot);
        page.begin(slot, 9);
        assert_eq!(reader.look(&page), Some(HintChange::Began { deadline_us: Some(9) }));
    }

    #[test]
    fn requests_of_one_thread_add_up_and_each_one_renews_the_hint() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slot = page.claim().unwrap();
        page.begin(slot, 0);
        assert_eq!(reader.look(&page), Some(HintChange::Began { deadline_us: None }));
        page.begin(slot, 7);
        assert_eq!(reader.look(&page), Some(HintChange::Began { deadline_us: Some(7) }));
        page.end(slot);
        assert_eq!(reader.look(&page), None, "the thread still has a request");
        page.end(slot);
        assert_eq!(reader.look(&page), Some(HintChange::Ended));
    }

    #[test]
    fn requests_of_several_threads_are_combined() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slots = [0; 3].map(|_| page.claim().unwrap());
        page.begin(slots[0], 0);
        page.begin(slots[1], 800);
        page.begin(slots[2], 300);
        let began = HintChange::Began { deadline_us: Some(300) };
        assert_eq!(reader.look(&page), Some(began));
        page.end(slots[2]);
        page.end(slots[0]);
        assert_eq!(reader.look(&page), None, "one thread still has a request");
        page.end(slots[1]);
        assert_eq!(reader.look(&page), Some(HintChange::Ended));
    }
}
