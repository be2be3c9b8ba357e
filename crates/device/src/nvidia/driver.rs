//! The NVIDIA kernel driver: is it there, which version, and what does that mean for us.

use std::fs;
use std::path::Path;

use super::abi::branch::Branch;

/// The driver that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its version, such as `580.159.04`.
    pub version: String,
    /// Which of the branches we know it belongs to.
    pub branch: Option<Branch>,
}

/// Why there is no driver to talk to.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// None is loaded.
    #[error("no NVIDIA driver is loaded; without one there is nothing to control")]
    Absent,
    /// One is loaded, but we do not see its nodes.
    #[error("NVIDIA driver {0} is loaded but /dev/nvidiactl is missing; pass the GPU through")]
    NoNode(String),
    /// One is loaded that nobody has checked our calls against.
    #[error("NVIDIA driver {0} is unknown to this version of gpreempt; update gpreempt")]
    Unknown(String),
}

impl Driver {
    /// The driver of this machine.
    ///
    /// # Errors
    /// If there is none, or it cannot be reached.
    pub fn find() -> Result<Self, DriverError> {
        let version = fs::read_to_string("/sys/module/nvidia/version")
            .map(|text| text.trim().to_owned())
            .or_else(|_| {
                fs::read_to_string("/proc/driver/nvidia/version")
                    .map(|text| parse_version(&text).unwrap_or_default())
            })
            .ok()
            .filter(|version| !version.is_empty())
            .ok_or(DriverError::Absent)?;
        if !Path::new("/dev/nvidiactl").exists() {
            return Err(DriverError::NoNode(version));
        }
        Ok(Self { branch: Branch::of(&version), version })
    }

    /// The branch, if our calls were checked against its headers.
    ///
    /// # Errors
    /// If they were not.
    pub fn known_branch(&self) -> Result<Branch, DriverError> {
        self.branch.ok_or_else(|| DriverError::Unknown(self.version.clone()))
    }
}

/// The version in the text of /proc/driver/nvidia/version.
fn parse_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_ascii_whitespace()
        .find(|word| {
            let mut parts = word.split('.');
            let numeric = parts
                .clone()
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
            numeric && parts.next().is_some_and(|major| major.len() == 3) && word.contains('.')
        })
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_both_flavours() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release \
                    Build  (root@build)\nGCC version:  gcc version 12.2.0\n";
        assert_eq!(parse_version(open).as_deref(), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n";
        assert_eq!(parse_version(closed).as_deref(), Some("550.90.07"));
        assert_eq!(parse_version("GCC version: 12.2.0"), None);
    }
}
