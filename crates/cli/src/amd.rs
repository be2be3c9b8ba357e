//! AMD devices, for commands without a daemon.

use gpreempt_device::amd::probe::explain_site;
use gpreempt_device::amd::queue::users;
use gpreempt_device::amd::{Site, SiteName};

use crate::failure::Failure;

/// Whether a process uses AMD devices, as far as that is shown. It asks nobody's permission.
pub(crate) fn is_user(pid: u32) -> bool {
    let places = SiteName::from_environment().places();
    users(&places.sysfs).is_ok_and(|users| users.contains(&pid))
}

/// The devices, if there are any that can be used.
pub(crate) fn find() -> Option<Site> {
    SiteName::from_environment().open().ok()
}

/// What to say of a process that uses no AMD device where NVIDIA's cannot be had: if there are AMD
/// devices, that is it.
pub(crate) fn explain_stranger(pid: u32, failure: Failure) -> Failure {
    if find().is_none() {
        return failure;
    }
    Failure::input(format_args!(
        "process {pid} uses no AMD GPU, and NVIDIA's cannot be controlled here; `gpreempt ps` \
         lists who uses one"
    ))
}

/// The devices, for a process that uses them.
pub(crate) fn require() -> Result<Site, Failure> {
    let name = SiteName::from_environment();
    name.open().map_err(|error| Failure::input(explain_site(&name, &error)))
}
