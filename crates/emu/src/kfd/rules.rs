//! What differs between kernels and devices.

use gpreempt_kfd::abi::version::Version;

/// Which KFD it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which interface it has.
    pub version: Version,
    /// Whether whoever began a session may talk to it without being the tracer (6.12.103).
    pub owner_may: bool,
    /// Whether a device has room for one debugged process only (before gfx9.4.2, and gfx10).
    pub one_debugged: bool,
    /// Whether the device knows debuggers at all (gfx9 and later).
    pub devices_know_debuggers: bool,
    /// Whether single queues are taken off (gfx11 and later), or all of the device are remapped.
    pub by_queue: bool,
    /// Whether it has the calls of our own patches.
    pub own_calls: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            version: Version { major: 1, minor: 17 },
            owner_may: true,
            one_debugged: false,
            devices_know_debuggers: true,
            by_queue: false,
            own_calls: false,
        }
    }
}

/// Kernels that can be chosen: their names, the minor versions of their interface, and whether
/// whoever began a session may talk to it without being the tracer.
const KERNELS: [(&str, u32, bool); 3] =
    [("6.1", 11, false), ("6.12.95", 17, false), ("6.12.103", 17, true)];

impl Rules {
    /// Of a kernel by its version, with devices of a generation (90402 is gfx942). None if it is
    /// none of [`Rules::kernels`].
    pub fn of(kernel: &str, gfx: u32) -> Option<Self> {
        let (_, minor, owner_may) = KERNELS.into_iter().find(|(name, ..)| *name == kernel)?;
        Some(Self {
            version: Version { major: 1, minor },
            owner_may,
            one_debugged: !matches!(gfx, 90_010 | 90_400..100_000 | 110_000..),
            devices_know_debuggers: gfx >= 90_000,
            by_queue: gfx >= 110_000,
            own_calls: false,
        })
    }

    /// The kernels that can be chosen.
    pub fn kernels() -> impl Iterator<Item = &'static str> {
        KERNELS.into_iter().map(|(name, ..)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_generations_make_the_rules() {
        assert_eq!(Rules::of("6.12.103", 90_402), Some(Rules::default()));
        let old = Rules::of("6.12.95", 100_300).unwrap();
        assert!(!old.owner_may && old.one_debugged && !old.by_queue);
        let oldest = Rules::of("6.1", 110_000).unwrap();
        assert!(oldest.version.minor == 11 && oldest.by_queue && !oldest.one_debugged);
        assert!(!Rules::of("6.1", 80_003).unwrap().devices_know_debuggers);
        assert_eq!(Rules::of("2.4", 90_402), None);
        assert_eq!(Rules::kernels().count(), 3);
    }
}
