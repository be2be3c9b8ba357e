//! Sixteen priorities in two classes.

use core::fmt;

/// A priority, 0 (lowest) to 15 (highest).
///
/// # Invariants
/// The number is at most 15; the only way in is [`Priority::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

/// The half of the priorities: what devices with time slices distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// 0 to 7: best-effort; preempted while a high queue has work, resumed where it stopped.
    Low,
    /// 8 to 15: latency-critical; runs immediately.
    High,
}

impl Priority {
    /// The number of levels.
    pub const LEVELS: u8 = 16;
    /// The lowest priority.
    pub const MIN: Self = Self(0);
    /// The highest priority.
    pub const MAX: Self = Self(Self::LEVELS - 1);
    /// The priority of tasks without an explicit one: the middle of the low class.
    pub const DEFAULT: Self = Self(4);

    /// Level `level`, if there is such a level.
    pub const fn new(level: u8) -> Option<Self> {
        if level < Self::LEVELS { Some(Self(level)) } else { None }
    }

    /// The level as a number.
    pub const fn level(self) -> u8 {
        self.0
    }

    /// The half this priority belongs to.
    pub const fn class(self) -> Class {
        if self.0 >= Self::LEVELS / 2 { Class::High } else { Class::Low }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixteen_levels_in_two_classes() {
        assert_eq!(Priority::new(16), None);
        assert_eq!(Priority::new(15), Some(Priority::MAX));
        assert_eq!(Priority::new(7).map(Priority::class), Some(Class::Low));
        assert_eq!(Priority::new(8).map(Priority::class), Some(Class::High));
    }
}
