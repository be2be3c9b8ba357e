//! The exceptions that KFD reports to a debugger: a set of codes in 64 bits.

use std::fmt;
use std::ops::BitOr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::table::SINCE_13;

/// A set of exceptions (`KFD_EC_MASK`).
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Exceptions(pub u64);

impl Exceptions {
    pub const NONE: Self = Self(0);
    /// A queue was created. KFD refuses to suspend it until a call clears this exception.
    pub const QUEUE_NEW: Self = Self::of(31);
    /// A queue was destroyed.
    pub const QUEUE_DELETE: Self = Self::of(32);
    /// The process registers or unregisters its runtime and may wait for the debugger's reply.
    pub const RUNTIME: Self = Self::of(RUNTIME_CODE);
    /// What a debug session subscribes to. KFD reports all other exceptions to the process's own
    /// runtime, as it does without a debugger.
    pub const WANTED: Self = Self(Self::QUEUE_NEW.0 | Self::QUEUE_DELETE.0 | Self::RUNTIME.0);

    const fn of(code: u32) -> Self {
        Self(1 << (code - 1))
    }

    /// Whether the two sets intersect.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Exceptions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Exceptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exceptions({:#x})", self.0)
    }
}

super::table::numbers! {
    constants {
        RUNTIME_CODE: u32 = 48, "EC_PROCESS_RUNTIME" in SINCE_13;
    }

    "KFD_EC_MASK(EC_QUEUE_NEW)" in SINCE_13 => Exceptions::QUEUE_NEW.0;
    "KFD_EC_MASK(EC_DEVICE_QUEUE_DELETE)" in SINCE_13 => Exceptions::QUEUE_DELETE.0;
    "KFD_EC_MASK(EC_PROCESS_RUNTIME)" in SINCE_13 => Exceptions::RUNTIME.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_sets_of_codes() {
        let both = Exceptions::QUEUE_NEW | Exceptions::RUNTIME;
        assert_eq!(both.without(Exceptions::RUNTIME), Exceptions::QUEUE_NEW);
        assert!(both.has(Exceptions::RUNTIME) && !both.has(Exceptions::QUEUE_DELETE));
        assert!(!both.has(Exceptions::NONE));
        assert_eq!(format!("{both:?}"), "Exceptions(0x800040000000)");
    }
}
