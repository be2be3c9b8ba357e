//! Which drivers we talk to.

use std::io::Write;

use gpreempt_device::nvidia::driver::{Driver, DriverError};
use gpreempt_device::nvidia::gate::for_private_session;

use crate::args::{ChangeArgs, ReadArgs};
use crate::failure::Failure;

/// Lets those through that may be told something: drivers our calls were tried on, and on request
/// those whose headers we know.
pub(crate) fn for_changes(args: &ChangeArgs) -> Result<(), Failure> {
    let passed = for_private_session(args.allow_untested_driver).map_err(Failure::input)?;
    passed.notes.iter().for_each(|note| warn(note));
    Ok(())
}

/// Says something that does not stop us.
fn warn(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "gpreempt: note: {sentence}");
}

/// Lets those through that may be asked something: drivers whose headers we know, and on request
/// any.
pub(crate) fn for_reading(args: ReadArgs) -> Result<(), Failure> {
    let driver = Driver::find().map_err(Failure::input)?;
    judge_reading(&driver, args)
}

fn judge_reading(driver: &Driver, args: ReadArgs) -> Result<(), Failure> {
    if driver.branch.is_some() || args.force {
        return Ok(());
    }
    Err(Failure::input(format_args!(
        "{}, or add --force to look anyway; nothing will be changed",
        DriverError::Unknown(driver.version.clone())
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::nvidia::abi::branch::Branch;

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
        assert_eq!(message(judge_reading(&driver("595.45"), ReadArgs::default())), "ok");
        let refused = message(judge_reading(&driver("610.2"), ReadArgs::default()));
        assert!(refused.contains("610.2") && refused.contains("--force"), "{refused}");
        assert_eq!(message(judge_reading(&driver("610.2"), ReadArgs { force: true })), "ok");
    }
}
