//! A process that has KFD open because its parent had.

use std::os::fd::AsFd;
use std::process::ExitCode;

use gpreempt_device::amd::door::{Door, KernelDoor};

use super::{say, told};

/// Asks for the version through its input.
pub(crate) fn play() -> ExitCode {
    let version = std::io::stdin().as_fd().try_clone_to_owned().map(|file| {
        let door = KernelDoor::new(file);
        told(door.version().map(drop))
    });
    say(&version.unwrap_or_else(|error| error.to_string()));
    ExitCode::SUCCESS
}
