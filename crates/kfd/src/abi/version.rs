//! The interface version of a KFD, and what it supports.

use std::fmt;

/// The version that KFD reports. The major number has always been 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// The first that can pause a process (`AMDKFD_IOC_CRIU_OP`).
    pub const PAUSE: Self = Self { major: 1, minor: 7 };
    /// The first that can suspend queues (`AMDKFD_IOC_DBG_TRAP`).
    pub const DEBUG: Self = Self { major: 1, minor: 13 };
    /// The newest whose header was compared with the tables of this crate.
    pub const CHECKED: Self = Self { major: 1, minor: 17 };

    pub fn abilities(self) -> Abilities {
        let is_known = self.major == 1;
        Abilities {
            version: self,
            suspend: is_known && self >= Self::DEBUG,
            pause: is_known && self >= Self::PAUSE,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    pub version: Version,
    pub suspend: bool,
    pub pause: bool,
}

impl Abilities {
    /// A sentence for `gpreempt doctor`.
    pub fn sentence(&self) -> String {
        let version = self.version;
        match (self.suspend, self.pause) {
            (true, _) if version > Version::CHECKED => format!(
                "KFD {version} can suspend single queues; it is newer than the newest version that \
                 was checked ({})",
                Version::CHECKED
            ),
            (true, _) => format!("KFD {version} can suspend single queues"),
            (false, true) => format!(
                "KFD {version} cannot suspend single queues (that needs {}, Linux 6.5): a whole \
                 process can be paused, which needs root",
                Version::DEBUG
            ),
            (false, false) => format!(
                "KFD {version} can neither suspend queues nor pause processes; use Linux 6.5 or \
                 newer"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(minor: u32) -> Abilities {
        Version { major: 1, minor }.abilities()
    }

    #[test]
    fn older_interfaces_offer_less_and_say_so() {
        assert!(!of(6).pause && !of(6).suspend);
        assert!(of(11).pause && !of(11).suspend);
        assert!(of(14).suspend && of(17).suspend && of(18).suspend);
        assert!(!Version { major: 2, minor: 0 }.abilities().suspend);
        assert!(of(11).sentence().contains("KFD 1.11 cannot suspend single queues"));
        assert!(
            of(18).sentence().contains("newer than the newest version that was checked (1.17)")
        );
        assert!(of(3).sentence().contains("use Linux 6.5"));
    }
}
