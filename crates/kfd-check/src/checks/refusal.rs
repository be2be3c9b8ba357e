//! Kernels without sessions.

use gpreempt_device::amd::session::Session;
use rustix::io::Errno;

use super::session::door;
use crate::actor::Actor;
use crate::machine::Machine;
use crate::tracing::untouched;
use crate::verdict::{Verdict, failed, same, says};

/// A session is refused in a sentence, and nothing is different.
pub(super) fn attach(machine: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    match Session::attach(door(machine), target.pid()) {
        Err(error) => says(&error.to_string(), &["no interface to suspend queues", "Linux 6.5"])?,
        Ok(_) => return failed("there is a session"),
    }
    untouched(target.pid())?;
    target.does("version")?;
    target.leave()
}

/// Runtimes do not announce themselves there.
pub(super) fn runtime(_: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let refused = format!("errno {}", Errno::NOTTY.raw_os_error());
    same("begin", target.ask("begin")?, refused)?;
    target.leave()
}
