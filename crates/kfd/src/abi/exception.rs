//! What KFD tells a debugger about: a set of codes in 64 bits.

use std::fmt;
use std::ops::BitOr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A set of exceptions (`KFD_EC_MASK`).
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Exceptions(pub u64);

impl Exceptions {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A queue was made (`EC_QUEUE_NEW`). Until somebody takes note, it cannot be suspended.
    pub const QUEUE_NEW: Self = Self::of(31);
    /// A queue is gone (`EC_DEVICE_QUEUE_DELETE`).
    pub const QUEUE_DELETE: Self = Self::of(32);
    /// The process begins or ends its runtime and may wait for an answer (`EC_PROCESS_RUNTIME`).
    pub const RUNTIME: Self = Self::of(RUNTIME_CODE);
    /// What a session wants to be told. All others go on to the process's own runtime, as they do
    /// without a debugger.
    pub const WANTED: Self = Self(Self::QUEUE_NEW.0 | Self::QUEUE_DELETE.0 | Self::RUNTIME.0);

    /// The set of one code.
    const fn of(code: u32) -> Self {
        Self(1 << (code - 1))
    }

    /// Whether it has anything of another set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// What is not in another set.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The code of [`Exceptions::RUNTIME`].
pub const RUNTIME_CODE: u32 = 48;

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
    "KFD_EC_MASK(EC_QUEUE_NEW)" in super::table::SINCE_13 => Exceptions::QUEUE_NEW.0,
    "KFD_EC_MASK(EC_DEVICE_QUEUE_DELETE)" in super::table::SINCE_13 => Exceptions::QUEUE_DELETE.0,
    "KFD_EC_MASK(EC_PROCESS_RUNTIME)" in super::table::SINCE_13 => Exceptions::RUNTIME.0,
    "EC_PROCESS_RUNTIME" in super::table::SINCE_13 => RUNTIME_CODE,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sets() {
        let both = Exceptions::QUEUE_NEW | Exceptions::RUNTIME;
        assert_eq!(both.without(Exceptions::RUNTIME), Exceptions::QUEUE_NEW);
        assert!(both.has(Exceptions::RUNTIME) && !both.has(Exceptions::QUEUE_DELETE));
        assert!(!both.has(Exceptions::NONE));
        assert_eq!(format!("{both:?}"), "Exceptions(0x800040000000)");
    }
}
