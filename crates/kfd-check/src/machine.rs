//! The machine that is checked.

use std::fs;
use std::sync::Arc;

use gpreempt_device::amd::abi::version::Version;
use gpreempt_device::amd::door::{Door, KernelDoor};
use gpreempt_device::amd::probe::Places;
use gpreempt_device::amd::topology::Topology;

use crate::args::{Args, Listens};
use crate::verdict::{Verdict, skipped};

/// What is known of it before anything is checked.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The kernel's own name.
    pub(crate) kernel: String,
    /// The version of its KFD.
    pub(crate) version: Version,
    /// Whether KFD has a GPU.
    pub(crate) has_gpu: bool,
    /// Whether its settings may be changed.
    pub(crate) may_change: bool,
    /// Whom it should listen to.
    pub(crate) expected: Option<Listens>,
    /// What the door was opened for: every check goes through it.
    pub(crate) door: Arc<KernelDoor>,
}

impl Machine {
    /// Looks at it. Without KFD there is nothing to check, which is an error in a sentence.
    pub(crate) fn look(args: &Args) -> Result<Self, String> {
        let door = KernelDoor::open()
            .map_err(|error| format!("/dev/kfd: {error}; load the amdgpu module"))?;
        let version = door.version().map_err(|errno| format!("/dev/kfd: {errno}"))?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let topology = Topology::read(&Places::default().sysfs);
        Ok(Self {
            kernel: kernel.trim().to_owned(),
            version,
            has_gpu: topology.is_ok_and(|topology| topology.devices().next().is_some()),
            may_change: args.may_change,
            expected: args.expect,
            door: Arc::new(door),
        })
    }

    /// Whether a debugger can have sessions.
    pub(crate) fn has_sessions(&self) -> bool {
        self.version.abilities().suspend
    }

    /// For checks that leave traces.
    pub(crate) fn changes(&self) -> Verdict {
        if self.may_change {
            return Ok(());
        }
        skipped("it changes settings of this machine; --may-change permits that")
    }
}
