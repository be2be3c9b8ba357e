//! The NVIDIA kernel driver: whether it is loaded, its version, and whether gpreempt may make
//! changes through it.

use std::fs;
use std::path::Path;

use super::abi::Branch;
use super::sharing_constraints::{SharingConstraint, detect_constraints};

/// The driver that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub version: String,
    /// None if it is of no known branch.
    pub branch: Option<Branch>,
}

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("no NVIDIA driver is loaded; without one there is nothing to control")]
    Absent,
    #[error("NVIDIA driver {0} is loaded but /dev/nvidiactl is missing; pass the GPU through")]
    NoNode(String),
    #[error("NVIDIA driver {0} is unknown to this version of gpreempt; update gpreempt")]
    Unknown(String),
}

/// Why gpreempt changes nothing through the driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No driver, or no node of it.
    #[error("{0}")]
    Absent(String),
    /// A driver of an unknown branch.
    #[error("{0}")]
    Unknown(String),
    #[error(
        "NVIDIA driver {0} was never tested with gpreempt, so nothing was changed; to use it \
         anyway, add --allow-untested-driver"
    )]
    Untested(String),
    /// MIG or a sandbox.
    #[error("{0}")]
    Constraint(String),
}

/// A driver through which a session may make changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableDriver {
    pub version: String,
    /// What limits its use: one sentence each.
    pub notes: Vec<String>,
}

impl Driver {
    /// The driver of this machine.
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
}

/// The version of the driver, if gpreempt was run with its branch, or with `allow_untested` if its
/// branch is known.
pub fn driver_for_changes(allow_untested: bool) -> Result<String, GateError> {
    match Driver::find() {
        Ok(driver) => check_driver(driver, allow_untested),
        Err(error @ (DriverError::Absent | DriverError::NoNode(_))) => {
            Err(GateError::Absent(error.to_string()))
        }
        Err(error @ DriverError::Unknown(_)) => Err(GateError::Unknown(error.to_string())),
    }
}

/// The same for a private session, which a user starts by hand: it refuses MIG and sandboxes too.
pub fn for_private_session(allow_untested: bool) -> Result<UsableDriver, GateError> {
    let version = driver_for_changes(allow_untested)?;
    let mut notes = Vec::new();
    for constraint in detect_constraints() {
        match &constraint {
            SharingConstraint::InSandbox => {
                return Err(GateError::Constraint(constraint.sentence()));
            }
            SharingConstraint::Mig { .. } if !allow_untested => {
                return Err(GateError::Constraint(constraint.sentence()));
            }
            SharingConstraint::MpsServer { .. } => notes.push(constraint.sentence()),
            SharingConstraint::Mig { .. }
            | SharingConstraint::Display { .. }
            | SharingConstraint::Sandbox { .. } => {}
        }
    }
    Ok(UsableDriver { version, notes })
}

fn check_driver(driver: Driver, allow_untested: bool) -> Result<String, GateError> {
    let version = driver.version;
    match driver.branch {
        Some(branch) if branch.was_run() || allow_untested => Ok(version),
        Some(_) => Err(GateError::Untested(version)),
        None => Err(GateError::Unknown(DriverError::Unknown(version).to_string())),
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
    fn the_version_is_found_for_the_open_and_the_closed_driver() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release \
                    Build  (root@build)\nGCC version:  gcc version 12.2.0\n";
        assert_eq!(parse_version(open).as_deref(), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n";
        assert_eq!(parse_version(closed).as_deref(), Some("550.90.07"));
        assert_eq!(parse_version("GCC version: 12.2.0"), None);
    }

    #[test]
    fn changes_need_a_tested_driver() {
        let judged = |version: &str, allow| {
            let branch = Branch::of(version);
            check_driver(Driver { version: version.to_owned(), branch }, allow)
        };
        assert_eq!(judged("580.159.04", false), Ok("580.159.04".to_owned()));
        let untested = judged("570.1.1", false).unwrap_err();
        assert_eq!(untested, GateError::Untested("570.1.1".to_owned()));
        assert!(untested.to_string().contains("never tested"), "{untested}");
        assert!(judged("570.1.1", true).is_ok());
        let unknown = judged("610.2", true).unwrap_err().to_string();
        assert!(unknown.contains("610.2") && unknown.contains("update"), "{unknown}");
    }
}
