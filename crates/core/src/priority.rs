//! Sixteen priorities, 0 (lowest) to 15 (highest).

use core::fmt;

/// How important a queue's work is: 0 (lowest) to 15 (highest).
///
/// # Invariants
/// The number is at most 15; the only way in is [`Priority::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

/// Which half of the priorities a queue is in: what devices with time slices distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// 0 to 7: runs in the gaps, loses nothing.
    Low,
    /// 8 to 15: runs now.
    High,
}

impl Priority {
    /// How many levels there are.
    pub const LEVELS: u8 = 16;
    /// The least important.
    pub const MIN: Self = Self(0);
    /// The most important.
    pub const MAX: Self = Self(Self::LEVELS - 1);
    /// What a task gets when nobody said anything: the middle of the low class.
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
