//! Holds: keeping a device on one context between its kernels, from outside.
//!
//! gpreempt adds one channel to the context's compute group. When the device reaches that channel,
//! it finds a command to wait for a word in memory without switching to other groups: the context's
//! own channels run meanwhile, and no other group runs between two of its kernels. A store to that
//! word ends the hold. The program is not involved: nothing is injected, none of its calls is
//! hooked, and its own synchronisation does not wait for the added channel.
//!
//! A second channel asks the device to report when the context's kernels have finished: an idle
//! fence (`idle_fence`). Where it cannot be added, holds are released after a time without
//! movement in the rings.
//!
//! The journal records the channels before they are added ([`crate::journal`]); any process can
//! remove them with [`detach`]. The words are in memory that the keeper shares
//! ([`crate::hold_pages`]).

mod attach;
mod channel;
mod command_ring;
mod idle_fence;
mod observed_context;
pub mod watcher;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::abi::class::Generation;
use super::rm::Handle;
use super::rm_objects::{Group, parse_uuid};
use super::uvm::AddressRange;
use crate::controller::{HoldFigures, HoldRecord};
use crate::hold_pages::{SLOT_SIZE, SLOTS};
pub use attach::{attach, detach, is_attached};
pub use channel::HoldChannel;
pub use command_ring::DoorbellMap;

/// The first handle of gpreempt's objects in a client: four for each slot.
const HANDLES_FROM: Handle = 0x5d00_1000;
/// The first handle of the objects of idle fences: two for each slot.
const FENCE_HANDLES_FROM: Handle = 0x5d00_1800;
/// The address of the slots' memory in the address space of the group. Ring entries have 40 bits
/// for an address; no observed program uses these.
const MEMORY_AT: u64 = 0xe0_0000_0000;
const MEMORY_STRIDE: u64 = 0x40_0000;
/// The addresses at which unified memory may map what the channel needs. The group has it already.
const NEEDS_AT: u64 = 0xe1_0000_0000;
const NEEDS_LENGTH: u64 = 0x400_0000;

/// A compute group of a client, and the slot of its hold channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldSite {
    pub client: Handle,
    pub device: Handle,
    pub group: Handle,
    pub context_share: Handle,
    pub compute_class: u32,
    pub channel_class: u32,
    pub uuid: [u8; 16],
    /// The slot determines the handles, so two holds in one client do not collide.
    pub slot: usize,
}

/// The handles that hold channels can have in a client.
pub fn channel_handles() -> impl Iterator<Item = Handle> {
    (HANDLES_FROM..).step_by(4).take(SLOTS).map(|memory| memory + 1)
}

impl HoldSite {
    /// Where a hold channel with that slot would be added to the context of a compute group. None
    /// if objects are unknown.
    pub fn of(
        (client, device): (Handle, Handle),
        compute: &Group,
        uuid: &str,
        slot: usize,
    ) -> Option<Self> {
        Some(Self {
            client,
            device,
            group: compute.handle,
            context_share: compute.context_share?,
            compute_class: compute.compute_class?,
            channel_class: compute.generation?.channel(),
            uuid: parse_uuid(uuid)?,
            slot,
        })
    }

    /// A site for tests.
    #[cfg(test)]
    pub(crate) fn example(slot: usize) -> Self {
        Self {
            client: 1,
            device: 2,
            group: 3,
            context_share: 4,
            compute_class: 0xcbc0,
            channel_class: 0xc86f,
            uuid: [0; 16],
            slot,
        }
    }

    fn memory(&self) -> Handle {
        self.handle(0)
    }

    /// The hold channel.
    pub(crate) fn channel(&self) -> Handle {
        self.handle(1)
    }

    /// The engine object of the hold channel.
    fn compute(&self) -> Handle {
        self.handle(2)
    }

    /// The channel of idle fences.
    pub(crate) fn fence_channel(&self) -> Handle {
        FENCE_HANDLES_FROM + self.slot_number() * 2
    }

    /// Its engine object.
    fn fence_compute(&self) -> Handle {
        self.fence_channel() + 1
    }

    fn handle(&self, part: u32) -> Handle {
        HANDLES_FROM + self.slot_number() * 4 + part
    }

    pub(crate) fn slot_number(&self) -> u32 {
        // A damaged journal may contain any number.
        u32::try_from(self.slot % SLOTS).unwrap_or(0)
    }

    /// The objects that unified memory has to duplicate.
    fn shared(&self) -> [Handle; 3] {
        [self.memory(), self.group, self.context_share]
    }

    fn range(&self) -> AddressRange {
        let base = MEMORY_AT + (self.slot % SLOTS) as u64 * MEMORY_STRIDE;
        AddressRange { base, length: SLOT_SIZE as u64 }
    }

    /// The addresses for what the hold channel needs.
    fn needs(&self) -> AddressRange {
        let base = NEEDS_AT + (self.slot % SLOTS) as u64 * NEEDS_LENGTH;
        AddressRange { base, length: NEEDS_LENGTH }
    }

    /// The addresses for what the channel of idle fences needs.
    fn fence_needs(&self) -> AddressRange {
        let range = self.needs();
        AddressRange { base: range.base + SLOTS as u64 * NEEDS_LENGTH, ..range }
    }

    fn generation(&self) -> Option<Generation> {
        Generation::of_channel(self.channel_class)
    }
}

/// Records of one context that are kept until they are read, several times a second.
const RECORDS_MAX: usize = 4096;

/// Counts of the holds of one context: the watcher writes them, other threads read them.
#[derive(Debug, Default)]
pub struct HoldCounters {
    /// Whether there is a channel of idle fences.
    pub has_fence: bool,
    placed: AtomicU64,
    expired: AtomicU64,
    longest_us: AtomicU64,
    is_held: AtomicBool,
    quiet_us: AtomicU64,
    late_looks: AtomicU64,
    blind_us: AtomicU64,
    is_fenced: AtomicBool,
    /// One more than the per cent of expected requests that came; 0 while none is predicted.
    predicted: AtomicU32,
    is_running: AtomicBool,
    /// Until [`Self::take_records`].
    records: Mutex<Vec<HoldRecord>>,
}

impl HoldCounters {
    pub fn new(has_fence: bool) -> Self {
        Self { has_fence, ..Self::default() }
    }

    pub fn figures(&self) -> HoldFigures {
        HoldFigures {
            placed: self.placed.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
            longest_us: self.longest_us.load(Ordering::Relaxed),
            is_held: self.is_held.load(Ordering::Relaxed),
            quiet_us: self.quiet_us.load(Ordering::Relaxed),
            late_looks: self.late_looks.load(Ordering::Relaxed),
            blind_us: self.blind_us.load(Ordering::Relaxed),
            is_fenced: self.is_fenced.load(Ordering::Relaxed),
            predicted_percent: self.predicted.load(Ordering::Relaxed).checked_sub(1),
        }
    }

    /// Keeps a record. The watcher must not wait for the reader: while records are being read it
    /// omits one.
    fn record(&self, record: HoldRecord) {
        if let Ok(mut records) = self.records.try_lock()
            && records.len() < RECORDS_MAX
        {
            records.push(record);
        }
    }

    /// The records since the last call.
    pub fn take_records(&self) -> Vec<HoldRecord> {
        std::mem::take(&mut *self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether an idle fence shows that work is running.
    pub fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slots_share_no_handle_and_no_address() {
        let handles = |site: HoldSite| {
            let fence = [site.fence_channel(), site.fence_compute()];
            [site.memory(), site.channel(), site.compute(), fence[0], fence[1]]
        };
        let (one, two) = (HoldSite::example(0), HoldSite::example(1));
        assert!(handles(one).iter().all(|handle| !handles(two).contains(handle)));
        assert!(one.range().base + one.range().length <= two.range().base);
        assert!(one.needs().base + one.needs().length <= two.needs().base);
        let last = HoldSite::example(SLOTS - 1);
        assert!(last.range().base + last.range().length <= one.needs().base);
        assert!(last.needs().base + last.needs().length <= one.fence_needs().base);
        assert!(last.fence_needs().base + last.fence_needs().length < 1 << 40);
        assert!(channel_handles().all(|handle| handle < FENCE_HANDLES_FROM));
        let handles: Vec<Handle> = channel_handles().collect();
        assert_eq!((handles[1], handles.last()), (two.channel(), Some(&last.channel())));
    }
}
