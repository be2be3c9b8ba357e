//! Class numbers: the kind of an RM object.

use super::{Branch, numbers};

/// A client: the root of everything a process has.
pub const CLIENT: u32 = 0x41;
/// A device, below a client.
pub const DEVICE: u32 = 0x80;
/// A subdevice, below a device: the object of most device controls.
pub const SUBDEVICE: u32 = 0x2080;
/// A group of channels with one time slice, below a device ("TSG").
pub const GROUP: u32 = 0xa06c;
/// The address space and state that channels of a compute group share, below the group; copy
/// groups have none.
pub const CONTEXT_SHARE: u32 = 0x9067;
/// Memory of the device.
pub const MEMORY_LOCAL: u32 = 0x40;
/// The engine object that runs kernels on an H100 or H200, below a channel.
pub const COMPUTE_HOPPER: u32 = 0xcbc0;

/// Whether objects of this class, below a channel, run kernels: their numbers end alike.
pub const fn is_compute(class: u32) -> bool {
    class & 0xff == 0xc0 && class >= 0xc3c0 && class <= 0xcfc0
}

/// A generation of channels. Devices accept those of older generations too; CUDA uses the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// V100.
    Volta,
    /// T4, RTX 20.
    Turing,
    /// A100, RTX 30 and RTX 40 (Ada).
    Ampere,
    /// H100, H200.
    Hopper,
    /// B100, B200.
    BlackwellA,
    /// RTX 50.
    BlackwellB,
}

impl Generation {
    /// Every generation, oldest first.
    pub const ALL: [Self; 6] =
        [Self::Volta, Self::Turing, Self::Ampere, Self::Hopper, Self::BlackwellA, Self::BlackwellB];

    /// The generation that has channels of this class, if it is a channel's class.
    pub fn of_channel(class: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|generation| generation.channel() == class)
    }

    /// The class of its channels.
    pub const fn channel(self) -> u32 {
        match self {
            Self::Volta => 0xc36f,
            Self::Turing => 0xc46f,
            Self::Ampere => 0xc56f,
            Self::Hopper => 0xc86f,
            Self::BlackwellA => 0xc96f,
            Self::BlackwellB => 0xca6f,
        }
    }

    /// The class of the page with the doorbell.
    pub const fn doorbell(self) -> u32 {
        match self {
            Self::Volta => 0xc361,
            Self::Turing => 0xc461,
            Self::Ampere => 0xc561,
            // The driver offers Hopper's on every Blackwell; only some have one of their own.
            Self::Hopper | Self::BlackwellA | Self::BlackwellB => 0xc661,
        }
    }

    /// The offset of GP_GET in a channel's page. Blackwell's headers have no such word.
    pub const fn ring_get_offset(self) -> Option<usize> {
        match self {
            Self::Volta | Self::Turing | Self::Ampere | Self::Hopper => Some(0x88),
            Self::BlackwellA | Self::BlackwellB => None,
        }
    }

    /// The offset of GP_PUT in a channel's page.
    pub const fn ring_put_offset(self) -> usize {
        0x8c
    }
}

/// The offset of a word that is there.
const fn known(offset: Option<usize>) -> usize {
    match offset {
        Some(offset) => offset,
        None => usize::MAX,
    }
}

/// Blackwell came after 550.
const SINCE_570: [Branch; 3] = [Branch::R570, Branch::R580, Branch::R595];

numbers! {
    Branch::ALL => {
        "NV01_ROOT_CLIENT" = CLIENT,
        "NV01_DEVICE_0" = DEVICE,
        "NV20_SUBDEVICE_0" = SUBDEVICE,
        "KEPLER_CHANNEL_GROUP_A" = GROUP,
        "FERMI_CONTEXT_SHARE_A" = CONTEXT_SHARE,
        "NV01_MEMORY_LOCAL_USER" = MEMORY_LOCAL,
        "HOPPER_COMPUTE_A" = COMPUTE_HOPPER,
        "VOLTA_CHANNEL_GPFIFO_A" = Generation::Volta.channel(),
        "TURING_CHANNEL_GPFIFO_A" = Generation::Turing.channel(),
        "AMPERE_CHANNEL_GPFIFO_A" = Generation::Ampere.channel(),
        "HOPPER_CHANNEL_GPFIFO_A" = Generation::Hopper.channel(),
        "VOLTA_USERMODE_A" = Generation::Volta.doorbell(),
        "TURING_USERMODE_A" = Generation::Turing.doorbell(),
        "AMPERE_USERMODE_A" = Generation::Ampere.doorbell(),
        "HOPPER_USERMODE_A" = Generation::Hopper.doorbell(),
        "offsetof(Nvc36fControl, GPGet)" = known(Generation::Volta.ring_get_offset()),
        "offsetof(Nvc46fControl, GPGet)" = known(Generation::Turing.ring_get_offset()),
        "offsetof(Nvc56fControl, GPGet)" = known(Generation::Ampere.ring_get_offset()),
        "offsetof(Nvc86fControl, GPGet)" = known(Generation::Hopper.ring_get_offset()),
        "offsetof(Nvc36fControl, GPPut)" = Generation::Volta.ring_put_offset(),
        "offsetof(Nvc46fControl, GPPut)" = Generation::Turing.ring_put_offset(),
        "offsetof(Nvc56fControl, GPPut)" = Generation::Ampere.ring_put_offset(),
        "offsetof(Nvc86fControl, GPPut)" = Generation::Hopper.ring_put_offset(),
    }
    SINCE_570 => {
        "BLACKWELL_CHANNEL_GPFIFO_A" = Generation::BlackwellA.channel(),
        "BLACKWELL_CHANNEL_GPFIFO_B" = Generation::BlackwellB.channel(),
        "offsetof(Nvc96fControl, GPPut)" = Generation::BlackwellA.ring_put_offset(),
        "offsetof(Nvca6fControl, GPPut)" = Generation::BlackwellB.ring_put_offset(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_class_names_its_generation() {
        for generation in Generation::ALL {
            assert_eq!(Generation::of_channel(generation.channel()), Some(generation));
        }
        for class in [CLIENT, DEVICE, SUBDEVICE, GROUP, CONTEXT_SHARE, MEMORY_LOCAL, 0xc06f] {
            assert_eq!(Generation::of_channel(class), None, "{class:#x}");
        }
    }

    #[test]
    fn both_words_of_a_ring_fit_into_one_load() {
        for generation in Generation::ALL {
            if let Some(get) = generation.ring_get_offset() {
                assert_eq!(get % 8, 0, "{generation:?}");
                assert_eq!(generation.ring_put_offset(), get + 4, "{generation:?}");
            }
        }
    }
}
