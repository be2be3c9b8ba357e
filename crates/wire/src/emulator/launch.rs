//! One launch of a kernel, as a program writes it into a ring of the emulated GPU.
//!
//! ```text
//!   0  u32  magic, so that the device never takes an empty slot for a launch
//!   4  u32  kernel: index in the table of loaded programs
//!   8  u32  work-groups          12  u32  waves in each
//!  16  u32  arguments[4]: region, number, work in nanoseconds, bytes of the region
//!  32  u64  number of the launch in its queue, counted by the client
//!  40  u64  zero: the simulator keeps the time of the doorbell here
//!  48  16 bytes of zero
//! ```
//!
//! The simulator reads the same layout; a test of the emulator compares the two.

/// Bytes of a packet in a ring.
pub const PACKET_BYTES: usize = 64;

/// How many kernels the emulated GPU has loaded: launches name them by numbers from 0 on.
pub const KERNEL_COUNT: u32 = 5;

const MAGIC: u32 = 0x5047_4b31;

/// One launch of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The number of the kernel, below [`KERNEL_COUNT`].
    pub kernel: u32,
    /// Work-groups.
    pub groups: u32,
    /// Waves in each.
    pub waves: u32,
    /// The address of its region in memory.
    pub region: u32,
    /// The size of the region.
    pub region_bytes: u32,
    /// What the kernel mixes into its result.
    pub number: u32,
    /// How long each wave is busy.
    pub work_ns: u32,
}

impl Launch {
    /// The packet, as launch number `launch` of its queue.
    pub fn encode(&self, launch: u64) -> [u8; PACKET_BYTES] {
        let Self { kernel, groups, waves, region, region_bytes, number, work_ns } = *self;
        let words = [MAGIC, kernel, groups, waves, region, number, work_ns, region_bytes];
        let mut bytes = [0; PACKET_BYTES];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&launch.to_le_bytes());
        bytes
    }
}
