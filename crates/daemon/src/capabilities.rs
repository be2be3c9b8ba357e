//! The daemon's capabilities: it gives up, at its start, those that its devices do not need.
//!
//! A service manager may have done so already; a privileged container has not. The keeper inherits
//! the same set, because it undoes what the daemon did. `NEEDED` is the table of
//! docs/internals/privileges.md, and a test compares both.

use std::io;

use gpreempt_device::amd::KfdLocation;
use gpreempt_device::amd::stop_method::PatchedCalls;
use gpreempt_device::registry::Selection;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Where a capability is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Always,
    Amd,
    /// AMD with the patched kernel of `kernel/`.
    PatchedAmd,
    /// Emulated GPUs, whose sockets and folders belong to other users.
    Emulated,
}

/// A capability, where it is needed, and its name.
const NEEDED: &[(CapabilitySet, Scope, &str)] = &[
    (CapabilitySet::SYS_PTRACE, Scope::Always, "CAP_SYS_PTRACE"),
    (CapabilitySet::DAC_READ_SEARCH, Scope::Always, "CAP_DAC_READ_SEARCH"),
    (CapabilitySet::SYS_NICE, Scope::Always, "CAP_SYS_NICE"),
    (CapabilitySet::CHECKPOINT_RESTORE, Scope::Amd, "CAP_CHECKPOINT_RESTORE"),
    (CapabilitySet::SYS_ADMIN, Scope::PatchedAmd, "CAP_SYS_ADMIN"),
    (CapabilitySet::DAC_OVERRIDE, Scope::Emulated, "CAP_DAC_OVERRIDE"),
];

/// Gives up all capabilities but those that the devices need. Call it before the first thread
/// starts: the kernel keeps capabilities for each thread.
///
/// # Errors
/// If the kernel refuses to reduce them, which it never has a reason to.
pub fn drop_unneeded(devices: &Selection) -> io::Result<()> {
    let needed = needed(devices, is_patched(devices));
    for unneeded in CapabilitySet::all().difference(needed).iter() {
        match remove_capability_from_bounding_set(unneeded) {
            // Without CAP_SETPCAP, which a service manager removed, the rest of what it left
            // stays for programs that the daemon starts. An older kernel has fewer capabilities.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let sets = capabilities(None)?;
    let sets = CapabilitySets {
        effective: sets.effective & needed,
        permitted: sets.permitted & needed,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    Ok(set_no_new_privs(true)?)
}

fn needed(devices: &Selection, is_patched: bool) -> CapabilitySet {
    let is_emulated = !devices.emulated.is_empty() || !devices.emulated_kfd.is_empty();
    let is_amd = devices.amd || !devices.emulated_kfd.is_empty();
    let is_needed = |scope| match scope {
        Scope::Always => true,
        Scope::Amd => is_amd,
        Scope::PatchedAmd => is_patched,
        Scope::Emulated => is_emulated,
    };
    let needed = NEEDED.iter().filter(|(_, scope, _)| is_needed(*scope));
    needed.map(|(capability, ..)| *capability).collect()
}

/// Whether the KFD has the calls of the patched kernel. An emulated one may get them later.
fn is_patched(devices: &Selection) -> bool {
    let is_usable = || {
        let kfd = KfdLocation::Kernel.open();
        kfd.is_ok_and(|kfd| kfd.patched_calls == PatchedCalls::Usable)
    };
    !devices.emulated_kfd.is_empty() || devices.amd && is_usable()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_device_needs_its_own_capabilities() {
        let always =
            CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_NICE;
        let nvidia = Selection { nvidia: true, ..Selection::default() };
        assert_eq!(needed(&nvidia, false), always);
        let amd = Selection { amd: true, ..Selection::default() };
        assert_eq!(needed(&amd, false), always | CapabilitySet::CHECKPOINT_RESTORE);
        assert!(needed(&amd, true).contains(CapabilitySet::SYS_ADMIN));
        let emulated = Selection { emulated: vec!["emu".into()], ..Selection::default() };
        assert_eq!(needed(&emulated, false), always | CapabilitySet::DAC_OVERRIDE);
    }

    #[test]
    fn the_document_lists_every_capability() {
        let page = include_str!("../../../docs/internals/privileges.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `CAP_"));
        let listed: Vec<String> =
            rows.map(|row| format!("CAP_{}", row.split('`').next().unwrap())).collect();
        let needed: Vec<&str> = NEEDED.iter().map(|(.., name)| *name).collect();
        assert_eq!(listed, needed);
    }
}
