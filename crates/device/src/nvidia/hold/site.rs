//! Where a hold channel is added, and what its parts are called.

use serde::{Deserialize, Serialize};

use crate::hold_pages::{SLOT_SIZE, SLOTS};
use crate::nvidia::abi::class::Generation;
use crate::nvidia::rm::Handle;
use crate::nvidia::uvm::Piece;

/// Our names in a client: four for each slot.
const NAMES_FROM: Handle = 0x5d00_1000;
/// Where our memory is in the address space of the group. Entries of rings have 40 bits for an
/// address; no program was seen to have anything there.
const MEMORY_AT: u64 = 0xe0_0000_0000;
const MEMORY_STRIDE: u64 = 0x40_0000;
/// Where unified memory may map what the channel needs. The group has all of it already.
const NEEDS_AT: u64 = 0xe1_0000_0000;
const NEEDS_LENGTH: u64 = 0x400_0000;

/// A compute group of a client, and which slot serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldSite {
    /// The RM client.
    pub client: Handle,
    /// Its device.
    pub device: Handle,
    /// The compute group.
    pub group: Handle,
    /// What the group's channels share.
    pub context_share: Handle,
    /// What runs kernels there.
    pub compute_class: u32,
    /// The class of the group's channels.
    pub channel_class: u32,
    /// Which GPU.
    pub uuid: [u8; 16],
    /// Which slot: it decides the names, so two holds in one client do not collide.
    pub slot: usize,
}

/// The names that our channels can have in a client.
pub fn channel_names() -> impl Iterator<Item = Handle> {
    (NAMES_FROM..).step_by(4).take(SLOTS).map(|memory| memory + 1)
}

impl HoldSite {
    /// Our memory.
    pub(super) fn memory(&self) -> Handle {
        self.name(0)
    }

    /// Our channel.
    pub(crate) fn channel(&self) -> Handle {
        self.name(1)
    }

    /// What our channel talks to.
    pub(super) fn compute(&self) -> Handle {
        self.name(2)
    }

    fn name(&self, part: u32) -> Handle {
        NAMES_FROM + self.slot_number() * 4 + part
    }

    /// The number of its slot.
    pub(crate) fn slot_number(&self) -> u32 {
        // There are 64, whatever a journal says.
        u32::try_from(self.slot % SLOTS).unwrap_or(0)
    }

    /// What unified memory has to duplicate.
    pub(super) fn shared(&self) -> [Handle; 3] {
        [self.memory(), self.group, self.context_share]
    }

    /// Where our memory is mapped.
    pub(super) fn piece(&self) -> Piece {
        let base = MEMORY_AT + (self.slot % SLOTS) as u64 * MEMORY_STRIDE;
        Piece { base, length: SLOT_SIZE as u64 }
    }

    /// What the channel may use.
    pub(super) fn needs(&self) -> Piece {
        let base = NEEDS_AT + (self.slot % SLOTS) as u64 * NEEDS_LENGTH;
        Piece { base, length: NEEDS_LENGTH }
    }

    /// What its channels look like.
    pub(super) fn generation(&self) -> Option<Generation> {
        Generation::of_channel(self.channel_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(slot: usize) -> HoldSite {
        HoldSite {
            client: 1,
            device: 2,
            group: 3,
            context_share: 4,
            compute_class: 0xcbc0,
            channel_class: 0xc86f,
            uuid: [7; 16],
            slot,
        }
    }

    #[test]
    fn two_slots_share_no_name_and_no_address() {
        let names = |site: HoldSite| [site.memory(), site.channel(), site.compute()];
        let (one, two) = (site(0), site(1));
        assert!(names(one).iter().all(|name| !names(two).contains(name)));
        assert!(one.piece().base + one.piece().length <= two.piece().base);
        assert!(one.needs().base + one.needs().length <= two.needs().base);
        let last = site(SLOTS - 1);
        assert!(last.piece().base + last.piece().length <= one.needs().base);
        assert!(last.needs().base + last.needs().length < 1 << 40);
        let names: Vec<Handle> = channel_names().collect();
        assert_eq!((names[1], names.last()), (two.channel(), Some(&last.channel())));
    }
}
