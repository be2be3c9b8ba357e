//! Published designs, done to processes from outside, to compare with.

mod slices;

use gpreempt_device::nvidia::driver::{Driver, DriverError};

use crate::args::{PeerArgs, PeerCommand};
use crate::failure::Failure;

/// Runs one of them.
pub(crate) fn main(args: &PeerArgs) -> Result<(), Failure> {
    match &args.command {
        PeerCommand::Slices(args) => slices::main(args),
    }
}

/// Refuses drivers our calls were never tried on.
pub(crate) fn writable_driver() -> Result<(), Failure> {
    let driver = Driver::find().map_err(|error| match error {
        DriverError::Absent | DriverError::NoNode(_) => Failure::Skipped(error.to_string()),
        DriverError::Unknown(_) => Failure::input(error),
    })?;
    match driver.branch {
        Some(branch) if branch.was_run() => Ok(()),
        Some(_) => Err(Failure::input(format_args!(
            "NVIDIA driver {} was never tried with gpreempt, so nothing is changed there",
            driver.version
        ))),
        None => Err(Failure::input(DriverError::Unknown(driver.version))),
    }
}
