//! The right block where branches differ. The driver refuses a block of another branch's size.

use zerocopy::FromZeros;

use crate::nvidia::abi::branch::Branch;
use crate::nvidia::abi::{r550, r570, r580, r595};

/// Puts a group on the device's list, or takes it off.
#[derive(Clone, Copy, Debug)]
pub enum GroupSchedule {
    /// 550 and 570.
    R550(r550::GroupSchedule),
    /// 580 and 595.
    R580(r580::GroupSchedule),
}

impl GroupSchedule {
    /// On or off.
    pub fn new(branch: Branch, enable: bool) -> Self {
        match branch {
            Branch::R550 | Branch::R570 => Self::R550(r550::GroupSchedule::new(enable)),
            Branch::R580 | Branch::R595 => Self::R580(r580::GroupSchedule::new(enable)),
        }
    }
}

/// The engines of a device.
#[derive(Clone, Copy, Debug)]
pub enum Engines {
    /// 550.
    R550(r550::Engines),
    /// 570, 580 and 595.
    R570(r570::Engines),
}

impl Engines {
    /// The question.
    pub fn ask(branch: Branch) -> Self {
        match branch {
            Branch::R550 => Self::R550(r550::Engines::new_zeroed()),
            Branch::R570 | Branch::R580 | Branch::R595 => Self::R570(r570::Engines::new_zeroed()),
        }
    }

    /// The kinds of engines in the answer.
    pub fn kinds(&self) -> &[u32] {
        let (count, list) = match self {
            Self::R550(engines) => (engines.count, engines.list.as_slice()),
            Self::R570(engines) => (engines.count, engines.list.as_slice()),
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        &list[..count.min(list.len())]
    }
}

/// The name of a device's model.
#[derive(Clone, Copy, Debug)]
pub enum DeviceName {
    /// 550, 570 and 580.
    R550(r550::DeviceName),
    /// 595.
    R595(r595::DeviceName),
}

impl DeviceName {
    /// The question.
    pub fn ask(branch: Branch) -> Self {
        match branch {
            Branch::R550 | Branch::R570 | Branch::R580 => Self::R550(r550::DeviceName::ask()),
            Branch::R595 => Self::R595(r595::DeviceName::ask()),
        }
    }

    /// The answer; what is not ASCII in it becomes a question mark.
    pub fn name(&self) -> String {
        let ascii = match self {
            Self::R550(name) => &name.ascii,
            Self::R595(name) => &name.ascii,
        };
        let end = ascii.iter().position(|byte| *byte == 0).unwrap_or(ascii.len());
        let is_shown = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        ascii[..end].iter().map(|b| if is_shown(b) { char::from(*b) } else { '?' }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::abi::control::RmControl;
    use crate::nvidia::abi::table::{Block, Layout};

    /// The layout of a block, and its command.
    fn about<C: RmControl>(_: &C) -> (Layout, u32) {
        (<C as Block>::LAYOUT, C::COMMAND)
    }

    #[test]
    fn every_branch_gets_its_own_block() {
        for branch in Branch::ALL {
            let chosen = [
                match GroupSchedule::new(branch, true) {
                    GroupSchedule::R550(block) => about(&block),
                    GroupSchedule::R580(block) => about(&block),
                },
                match Engines::ask(branch) {
                    Engines::R550(block) => about(&block),
                    Engines::R570(block) => about(&block),
                },
                match DeviceName::ask(branch) {
                    DeviceName::R550(block) => about(&block),
                    DeviceName::R595(block) => about(&block),
                },
            ];
            for (layout, _) in chosen {
                assert!(layout.branches.contains(&branch), "{branch}: {}", layout.c_type);
            }
            assert_eq!(chosen.map(|(_, command)| command), [0xa06c_0101, 0x2080_0170, 0x2080_0110]);
        }
    }

    #[test]
    fn a_name_ends_at_its_zero() {
        let mut block = r595::DeviceName::ask();
        block.ascii[..5].copy_from_slice(b"H2\x01 0");
        assert_eq!(DeviceName::R595(block).name(), "H2? 0");
        block.ascii = [b'x'; 64];
        assert_eq!(DeviceName::R595(block).name().len(), 64);
    }

    #[test]
    fn a_count_beyond_the_list_is_cut() {
        let mut block = r550::Engines::new_zeroed();
        block.count = u32::MAX;
        assert_eq!(Engines::R550(block).kinds().len(), 64);
        block.count = 2;
        block.list[1] = 9;
        assert_eq!(Engines::R550(block).kinds(), [0, 9]);
    }
}
