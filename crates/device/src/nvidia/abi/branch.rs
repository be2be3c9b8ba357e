//! Branches of NVIDIA's driver: what a version number says about layouts.

use core::fmt;

/// A branch of the driver. Within one, no block and no number that we use differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Branch {
    /// 550.x
    R550,
    /// 570.x
    R570,
    /// 580.x
    R580,
    /// 595.x
    R595,
}

impl Branch {
    /// Every branch whose headers were compared with this code, oldest first.
    pub const ALL: [Self; 4] = [Self::R550, Self::R570, Self::R580, Self::R595];

    /// The branch of a version such as `580.159.04`, if it is one of ours.
    pub fn of(version: &str) -> Option<Self> {
        let (branch, rest) = version.trim().split_once('.')?;
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !rest.split('.').all(is_number) {
            return None;
        }
        Self::ALL.into_iter().find(|known| known.name() == branch)
    }

    /// Whether this project ever ran on a driver of this branch. Of the others only the headers
    /// were read.
    pub const fn was_run(self) -> bool {
        match self {
            Self::R580 => true,
            Self::R550 | Self::R570 | Self::R595 => false,
        }
    }

    /// Whether a group can be held here: what that takes was run on this branch, and in others
    /// some of its blocks have another size.
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
    }

    #[test]
    fn what_is_no_version_of_a_known_branch_has_none() {
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
}
