//! What this machine can do with AMD devices, and what is in the way.

mod powers;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::door::Door;
use super::node;
use super::own_calls::OwnCalls;
use super::site::{Site, SiteName};
use super::topology::{Gfx, Topology};
use super::way::Way;
pub use powers::Powers;

/// One thing that is so, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it is as it should be.
    pub ok: bool,
    /// What it is, and what to do about it if it is not.
    pub what: String,
}

/// Where things are; other places for tests.
#[derive(Clone, Debug)]
pub struct Places {
    /// KFD's folder in sysfs.
    pub sysfs: PathBuf,
    /// KFD's folder in debugfs.
    pub debugfs: PathBuf,
    /// The parameters of its module.
    pub parameters: PathBuf,
}

impl Places {
    /// Those of an emulated KFD in that folder.
    pub fn emulated(folder: &Path) -> Self {
        Self {
            sysfs: folder.join("sys"),
            debugfs: folder.join("debug"),
            parameters: folder.join("parameters"),
        }
    }
}

impl Default for Places {
    fn default() -> Self {
        Self {
            sysfs: PathBuf::from("/sys/class/kfd/kfd"),
            debugfs: PathBuf::from("/sys/kernel/debug/kfd"),
            parameters: PathBuf::from("/sys/module/amdgpu/parameters"),
        }
    }
}

/// Looks at a KFD.
pub fn look(name: &SiteName) -> Vec<Finding> {
    match name.open() {
        Ok(site) => {
            let mut findings = report(&*site.door, site.powers, &site.places);
            findings.extend(way(&site));
            findings
        }
        Err(error) => vec![no(explain_site(name, &error))],
    }
}

/// Why a site could not be opened.
pub fn explain_site(name: &SiteName, error: &io::Error) -> String {
    match name {
        SiteName::Kernel => explain_open(error),
        SiteName::Emulated(folder) => format!(
            "the emulated KFD in {} cannot be used ({error}); start it with: gpreempt-emu --kfd {}",
            folder.display(),
            folder.display()
        ),
    }
}

/// Everything that is known once there is a door.
pub fn report(door: &dyn Door, powers: Powers, places: &Places) -> Vec<Finding> {
    let mut findings = Vec::new();
    let abilities = match door.version() {
        Ok(version) => version.abilities(),
        Err(errno) => {
            let path = node::PATH;
            return vec![no(format!("{path} does not answer ({errno}): it is not AMD's"))];
        }
    };
    findings.push(Finding { ok: abilities.suspend, what: abilities.sentence() });
    findings.push(tracing(powers));
    if !abilities.suspend {
        findings.push(pausing(powers));
    }
    findings.extend(devices(places));
    findings.push(addresses(places));
    findings
}

/// Why the device could not be opened.
fn explain_open(error: &io::Error) -> String {
    let path = node::PATH;
    if error.kind() == io::ErrorKind::NotFound {
        return format!(
            "there is no {path}: no AMD GPU, or the amdgpu module is not loaded (modprobe amdgpu), \
             or a container without the device (--device {path})"
        );
    }
    if error.kind() == io::ErrorKind::PermissionDenied {
        return format!(
            "{path} may not be opened: run this as root, or join the group that owns it (render)"
        );
    }
    format!("{path} cannot be opened: {error}")
}

/// In which way queues are stopped, and why not in a better one.
fn way(site: &Site) -> Vec<Finding> {
    let in_use = site.way();
    let mut findings = vec![Finding {
        ok: in_use.way != Way::Nothing,
        what: format!("way: {} ({})", in_use.way, in_use.way.name()),
    }];
    // A stock kernel is nothing to complain about.
    let ok = site.own_calls == OwnCalls::Absent && in_use.way == Way::DebugTrap;
    let why = in_use.why_not_better;
    findings.extend(why.map(|why| Finding { ok, what: format!("no better way: {why}") }));
    let is_listed = site.places.debugfs.join("queues").exists();
    if in_use.way == Way::OwnCalls && !is_listed {
        findings.push(no(format!(
            "{} cannot be read: queues count as busy all the time; mount debugfs with: mount -t \
             debugfs debugfs /sys/kernel/debug",
            site.places.debugfs.join("queues").display()
        )));
    }
    findings
}

fn tracing(powers: Powers) -> Finding {
    match powers.tracing_problem() {
        None => yes("processes of all users can be traced, which suspending queues needs"),
        Some(problem) => no(problem),
    }
}

fn pausing(powers: Powers) -> Finding {
    if powers.may_checkpoint() {
        return yes("whole processes can be paused");
    }
    no("whole processes cannot be paused: that needs CAP_CHECKPOINT_RESTORE; run this as root")
}

fn devices(places: &Places) -> Vec<Finding> {
    let topology = match Topology::read(&places.sysfs) {
        Ok(topology) => topology,
        Err(error) => {
            let place = places.sysfs.display();
            return vec![no(format!("{place} cannot be read ({error}); is sysfs mounted?"))];
        }
    };
    if topology.devices().next().is_none() {
        return vec![no("KFD runs but has no GPU; the kernel's log (dmesg) says why")];
    }
    topology.devices().map(|node| device(node.gpu_id, node.gfx)).collect()
}

/// What a device makes of a debugger.
fn device(gpu_id: u32, gfx: Gfx) -> Finding {
    if !gfx.knows_debuggers() {
        return no(format!(
            "GPU {gpu_id} ({gfx}) is too old for suspending queues (gfx9 or newer); its processes \
             can only be paused as a whole"
        ));
    }
    if !gfx.debugs_several() {
        return no(format!(
            "GPU {gpu_id} ({gfx}) can suspend the queues of one process at a time; the others can \
             only be paused as a whole"
        ));
    }
    if gfx.masks_units() {
        return yes(format!(
            "GPU {gpu_id} ({gfx}) can suspend queues; a process under control has fewer compute \
             units there, because of a fault of this chip"
        ));
    }
    yes(format!("GPU {gpu_id} ({gfx}) can suspend queues"))
}

/// Whether queues can be watched before there is a session.
fn addresses(places: &Places) -> Finding {
    let file = places.debugfs.join("mqds");
    match fs::File::open(&file) {
        Ok(_) => yes("priorities and rings can be read without a session (debugfs)"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => no(format!(
            "{} may not be read: hardware priorities are not shown; run this as root",
            file.display()
        )),
        Err(_) => no(format!(
            "{} is not there: hardware priorities are not shown; mount debugfs with: mount -t \
             debugfs debugfs /sys/kernel/debug",
            file.display()
        )),
    }
}

fn yes(what: impl Into<String>) -> Finding {
    Finding { ok: true, what: what.into() }
}

fn no(what: impl Into<String>) -> Finding {
    Finding { ok: false, what: what.into() }
}

#[cfg(test)]
mod tests;
