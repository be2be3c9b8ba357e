//! Which NVIDIA drivers may be read and changed.

use gpreempt_device::nvidia::driver::for_private_session;
use gpreempt_device::nvidia::driver::{Driver, DriverError};

use crate::args::{ChangeArgs, ReadArgs};
use crate::failure::Failure;
use crate::output;

/// Accepts drivers on which the calls of gpreempt were tested, and on request those whose headers
/// are known.
pub(crate) fn for_changes(args: &ChangeArgs) -> Result<(), Failure> {
    let passed = for_private_session(args.allow_untested_driver).map_err(Failure::input)?;
    passed.notes.iter().for_each(|note| output::note(format_args!("note: {note}")));
    Ok(())
}

/// Accepts drivers whose headers are known, and on request any.
pub(crate) fn for_reading(args: ReadArgs) -> Result<(), Failure> {
    let driver = Driver::find().map_err(Failure::input)?;
    check_reading(&driver, args)
}

fn check_reading(driver: &Driver, args: ReadArgs) -> Result<(), Failure> {
    if driver.branch.is_some() || args.force {
        return Ok(());
    }
    Err(Failure::input(format_args!(
        "{}, or add --force to read anyway; nothing will be changed",
        DriverError::Unknown(driver.version.clone())
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::nvidia::abi::Branch;

    fn driver(version: &str) -> Driver {
        Driver { version: version.to_owned(), branch: Branch::of(version) }
    }

    fn message(result: Result<(), Failure>) -> String {
        match result {
            Ok(()) => "ok".to_owned(),
            Err(Failure::Input(message)) => message,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn reading_an_unknown_driver_has_to_be_forced() {
        assert_eq!(message(check_reading(&driver("595.45"), ReadArgs::default())), "ok");
        let refused = message(check_reading(&driver("610.2"), ReadArgs::default()));
        assert!(refused.contains("610.2") && refused.contains("--force"), "{refused}");
        assert_eq!(message(check_reading(&driver("610.2"), ReadArgs { force: true })), "ok");
    }
}
