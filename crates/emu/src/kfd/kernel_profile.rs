//! What differs between kernels and devices.

use gpreempt_kfd::abi::version::Version;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KfdProfile {
    pub version: Version,
    /// Whether the process that started a session may use it without tracing (6.12.103).
    pub owner_may: bool,
    /// Whether a device has one debugger slot (before gfx9.4.2, and gfx10).
    pub one_debugged: bool,
    /// Whether the device supports debug sessions (gfx9 and later).
    pub devices_know_debuggers: bool,
    /// Whether single queues are unmapped (gfx11 and later) instead of replacing the run list.
    pub by_queue: bool,
    /// Whether it has the calls of the patches in `kernel/`.
    pub patched: bool,
}

impl Default for KfdProfile {
    fn default() -> Self {
        Self {
            version: Version { major: 1, minor: 17 },
            owner_may: true,
            one_debugged: false,
            devices_know_debuggers: true,
            by_queue: false,
            patched: false,
        }
    }
}

/// Selectable kernels: name, minor version of the interface, and `owner_may`.
const KERNELS: [(&str, u32, bool); 3] =
    [("6.1", 11, false), ("6.12.95", 17, false), ("6.12.103", 17, true)];

impl KfdProfile {
    /// The profile of a kernel with devices of a generation (90402 is gfx942).
    pub fn of(kernel: &str, gfx: u32) -> Option<Self> {
        let (_, minor, owner_may) = KERNELS.into_iter().find(|(name, ..)| *name == kernel)?;
        Some(Self {
            version: Version { major: 1, minor },
            owner_may,
            one_debugged: !matches!(gfx, 90_010 | 90_400..100_000 | 110_000..),
            devices_know_debuggers: gfx >= 90_000,
            by_queue: gfx >= 110_000,
            patched: false,
        })
    }

    pub fn kernels() -> impl Iterator<Item = &'static str> {
        KERNELS.into_iter().map(|(name, ..)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_generations_determine_the_profile() {
        assert_eq!(KfdProfile::of("6.12.103", 90_402), Some(KfdProfile::default()));
        let old = KfdProfile::of("6.12.95", 100_300).unwrap();
        assert!(!old.owner_may && old.one_debugged && !old.by_queue);
        let oldest = KfdProfile::of("6.1", 110_000).unwrap();
        assert!(oldest.version.minor == 11 && oldest.by_queue && !oldest.one_debugged);
        assert!(!KfdProfile::of("6.1", 80_003).unwrap().devices_know_debuggers);
        assert_eq!(KfdProfile::of("2.4", 90_402), None);
        assert_eq!(KfdProfile::kernels().count(), 3);
    }
}
