//! AMD devices, for commands without a daemon.

use gpreempt_device::amd::queue::users;
use gpreempt_device::amd::{Site, SiteName};

/// Whether a process uses AMD devices, as far as that is shown. It asks nobody's permission.
pub(crate) fn is_user(pid: u32) -> bool {
    let places = SiteName::from_environment().places();
    users(&places.sysfs).is_ok_and(|users| users.contains(&pid))
}

/// The devices, if there are any that can be used.
pub(crate) fn find() -> Option<Site> {
    SiteName::from_environment().open().ok()
}
