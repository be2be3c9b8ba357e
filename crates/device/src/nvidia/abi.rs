//! The binary interface of NVIDIA's driver, as far as gpreempt uses it: numbers and layouts.
//!
//! This module makes no calls; [`super::rm`] and [`super::uvm`] do. None of the interface is
//! stable. Names, numbers and layouts are facts from the headers of NVIDIA's
//! open-gpu-kernel-modules (<https://github.com/NVIDIA/open-gpu-kernel-modules>, MIT license,
//! Copyright NVIDIA CORPORATION & AFFILIATES), read at 550.163.01, 570.211.01, 580.142 and
//! 595.45.04 and compared with all 83 public versions of these branches up to those; the comments
//! here are gpreempt's. Calls were made with 580 alone ([`Branch::was_run`]).
//!
//! | what | 550 | 570 | 580 | 595 |
//! |---|---|---|---|---|
//! | everything in [`escape`], [`status`] and [`control`] | same | same | same | same |
//! | [`class`]: Blackwell | none | same | same | same |
//! | everything in [`hold`] | not used | not used | used | not used |
//!
//! A block is declared once, with [`gpreempt_kfd::blocks!`]: the macro asserts size and offsets
//! when this crate is compiled, and `tests/abi_headers.rs` compares them, and every number, with a
//! driver's headers.

pub mod class;
pub mod control;
pub mod escape;
pub mod hold;
pub mod status;

use core::fmt;

pub use control::RmControl;
use gpreempt_kfd::layout;
pub use gpreempt_kfd::layout::Block;
pub use status::Status;

/// A branch of the driver. Within one, no block and no number that gpreempt uses differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Branch {
    R550,
    R570,
    R580,
    R595,
}

impl Branch {
    /// Every branch whose headers were compared with this code, oldest first.
    pub const ALL: [Self; 4] = [Self::R550, Self::R570, Self::R580, Self::R595];
    /// The branch on which holds were run: elsewhere some of their blocks have another size.
    pub(crate) const WITH_HOLDS: [Self; 1] = [Self::R580];

    /// The branch of a version such as `580.159.04`, if it is a known one.
    pub fn of(version: &str) -> Option<Self> {
        let (branch, rest) = version.trim().split_once('.')?;
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !rest.split('.').all(is_number) {
            return None;
        }
        Self::ALL.into_iter().find(|known| known.name() == branch)
    }

    /// Whether gpreempt ever ran on a driver of this branch. Of the others only the headers were
    /// read.
    pub const fn was_run(self) -> bool {
        matches!(self, Self::R580)
    }

    pub const fn can_hold(self) -> bool {
        matches!(self, Self::R580)
    }

    /// What version numbers of this branch begin with.
    pub const fn name(self) -> &'static str {
        match self {
            Self::R550 => "550",
            Self::R570 => "570",
            Self::R580 => "580",
            Self::R595 => "595",
        }
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the headers must say about a block and about a number.
pub type Layout = layout::Layout<[Branch]>;
pub type Number = layout::Number<[Branch]>;

/// What the headers must say about a control command: its number, and which block goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub c_name: &'static str,
    pub command: u32,
    pub layout: Layout,
}

/// Every block.
pub const BLOCKS: &[&[Layout]] = &[control::LAYOUTS, escape::LAYOUTS, hold::LAYOUTS];

/// Every number but those of control commands.
pub const NUMBERS: &[&[Number]] =
    &[class::NUMBERS, control::NUMBERS, escape::NUMBERS, hold::NUMBERS, status::NUMBERS];

/// Every control command.
pub const COMMANDS: &[Command] = control::COMMANDS;

/// Collects numbers in `NUMBERS`: `branches => { "expression in C" = value }`.
macro_rules! numbers {
    ($($branches:expr => { $($c_expression:literal = $value:expr),+ $(,)? })+) => {
        pub(crate) const NUMBERS: &[$crate::nvidia::abi::Number] =
            &[$($($crate::nvidia::abi::Number {
                c_expression: $c_expression,
                // CAST: what is collected here is unsigned and has at most 64 bits.
                value: $value as u64,
                versions: &$branches,
            }),+),+];
    };
}

pub(crate) use numbers;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_branch() {
        for (version, branch) in [
            ("550.163.01", Some(Branch::R550)),
            ("570.211.01", Some(Branch::R570)),
            ("580.159.04", Some(Branch::R580)),
            ("580.142", Some(Branch::R580)),
            ("580.142\n", Some(Branch::R580)),
            ("595.45.04", Some(Branch::R595)),
        ] {
            assert_eq!(Branch::of(version), branch, "{version}");
        }
        for version in
            ["", "580", "580.", "560.35.03", "5800.1", "0580.1", "580.x", "580..1", "580.1.", "-"]
        {
            assert_eq!(Branch::of(version), None, "{version}");
        }
    }

    #[test]
    fn one_branch_was_run() {
        let run: Vec<Branch> = Branch::ALL.into_iter().filter(|b| b.was_run()).collect();
        assert_eq!(run, [Branch::R580]);
    }

    #[test]
    fn every_branch_has_one_layout_for_each_type_that_it_uses() {
        for branch in Branch::ALL {
            for layout in BLOCKS.iter().copied().flatten() {
                let is_here =
                    |l: &&Layout| l.c_type == layout.c_type && l.versions.contains(&branch);
                let count = BLOCKS.iter().copied().flatten().filter(is_here).count();
                // Blocks of holds are known in the branch that holds alone.
                let is_used = branch.can_hold() || !hold::LAYOUTS.contains(layout);
                assert_eq!(count, usize::from(is_used), "{} in {branch}", layout.c_type);
            }
        }
    }
}
