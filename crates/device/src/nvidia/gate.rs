//! Whether anything may be changed through NVIDIA's driver on this machine.

use super::driver::{Driver, DriverError};
use super::surroundings::{Surrounding, look_around};

/// Why nothing may be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// There is no driver to talk to.
    #[error("{0}")]
    Absent(String),
    /// There is one whose calls are not known.
    #[error("{0}")]
    Unknown(String),
    /// There is one that gpreempt was never run with.
    #[error(
        "NVIDIA driver {0} was never tried with gpreempt, so nothing was changed; if you want to \
         be the first, add --allow-untested-driver"
    )]
    Untested(String),
    /// MIG or a sandbox.
    #[error("{0}")]
    Surrounding(String),
}

/// What a session that may use the driver has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The version of the driver.
    pub version: String,
    /// What limits the use of it: one sentence each.
    pub notes: Vec<String>,
}

/// The version of the driver, if gpreempt was run with it, or on request if its calls are known.
///
/// # Errors
/// If there is none, or it is not to be used.
pub fn driver_for_changes(allow_untested: bool) -> Result<String, GateError> {
    match Driver::find() {
        Ok(driver) => judge(driver, allow_untested),
        Err(error @ (DriverError::Absent | DriverError::NoNode(_))) => {
            Err(GateError::Absent(error.to_string()))
        }
        Err(error @ DriverError::Unknown(_)) => Err(GateError::Unknown(error.to_string())),
    }
}

/// The same for a private session, which a user starts by hand: MIG and sandboxes count too.
///
/// # Errors
/// As [`driver_for_changes`], and if MIG is on or this is a sandbox.
pub fn for_private_session(allow_untested: bool) -> Result<Passed, GateError> {
    let version = driver_for_changes(allow_untested)?;
    let mut notes = Vec::new();
    for surrounding in look_around() {
        match &surrounding {
            Surrounding::InSandbox => return Err(GateError::Surrounding(surrounding.sentence())),
            Surrounding::Mig { .. } if !allow_untested => {
                return Err(GateError::Surrounding(surrounding.sentence()));
            }
            Surrounding::MpsServer { .. } => notes.push(surrounding.sentence()),
            Surrounding::Mig { .. } | Surrounding::Display { .. } | Surrounding::Sandbox { .. } => {
            }
        }
    }
    Ok(Passed { version, notes })
}

fn judge(driver: Driver, allow_untested: bool) -> Result<String, GateError> {
    let version = driver.version;
    match driver.branch {
        Some(branch) if branch.was_run() || allow_untested => Ok(version),
        Some(_) => Err(GateError::Untested(version)),
        None => Err(GateError::Unknown(DriverError::Unknown(version).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::abi::branch::Branch;

    #[test]
    fn changes_need_a_driver_that_was_tried() {
        let judged = |version: &str, allow| {
            let branch = Branch::of(version);
            judge(Driver { version: version.to_owned(), branch }, allow)
        };
        assert_eq!(judged("580.159.04", false), Ok("580.159.04".to_owned()));
        let untested = judged("570.1.1", false).unwrap_err();
        assert_eq!(untested, GateError::Untested("570.1.1".to_owned()));
        assert!(untested.to_string().contains("never tried"), "{untested}");
        assert!(judged("570.1.1", true).is_ok());
        let unknown = judged("610.2", true).unwrap_err().to_string();
        assert!(unknown.contains("610.2") && unknown.contains("update"), "{unknown}");
    }
}
