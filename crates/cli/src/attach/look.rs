//! The named processes on their devices, for a plan that changes nothing.

use gpreempt_core::event::SchedAttr;
use gpreempt_core::priority::Priority;
use gpreempt_device::amd::Site;
use gpreempt_device::nvidia::node::Node;
use gpreempt_device::nvidia::survey::{GpuProcess, look};
use gpreempt_device::process::ProcessInfo;

use crate::args::{AttachArgs, ChangeArgs};
use crate::failure::Failure;
use crate::{amd, driver_gate};

/// Which devices may be changed.
#[derive(Debug)]
struct Gates {
    nvidia: Result<(), Failure>,
    amd: Option<Site>,
}

impl Gates {
    /// Looks at the machine.
    ///
    /// # Errors
    /// Why NVIDIA's may not, if there are no others.
    fn look(args: &ChangeArgs) -> Result<Self, Failure> {
        let (nvidia, amd) = (driver_gate::for_changes(args), amd::find());
        match (nvidia, amd) {
            (Err(failure), None) => Err(failure),
            (nvidia, amd) => Ok(Self { nvidia, amd }),
        }
    }

    /// Looks at a process, on the devices that it uses.
    fn see(&self, pid: u32) -> Result<Seen, Failure> {
        if self.amd.is_some() && amd::is_user(pid) {
            return ProcessInfo::read(pid).map(Seen::Amd).map_err(Failure::input);
        }
        if let Err(Failure::Input(why) | Failure::Run(why)) = &self.nvidia {
            return Err(Failure::input(format_args!(
                "process {pid} does not use an AMD GPU, and {why}"
            )));
        }
        look(pid).map(Seen::Nvidia).map_err(Failure::input)
    }
}

/// A process, on the devices that it uses.
#[derive(Debug)]
pub(super) enum Seen {
    Nvidia(GpuProcess),
    Amd(ProcessInfo),
}

impl Seen {
    pub(super) const fn info(&self) -> &ProcessInfo {
        match self {
            Self::Nvidia(process) => &process.info,
            Self::Amd(info) => info,
        }
    }
}

/// The processes that the arguments name, and what they would get.
pub(super) fn targets(args: &AttachArgs) -> Result<Vec<(Seen, SchedAttr)>, Failure> {
    let gates = Gates::look(&args.driver)?;
    let mut targets: Vec<(Seen, SchedAttr)> = Vec::new();
    for target in &args.processes {
        let pid = target.pid;
        let process = gates.see(pid)?;
        if let Seen::Nvidia(process) = &process {
            if let Err(problem) = &process.clients {
                return Err(Failure::input(problem));
            }
            if process.nodes.iter().any(|held| held.node == Node::Modeset) {
                return Err(Failure::input(format_args!(
                    "process {pid} drives a display; with a priority it could freeze the screen"
                )));
            }
        }
        // PANIC: the arguments allow 0 to 15 only.
        let priority = Priority::new(target.priority.unwrap_or(args.priority)).expect("a priority");
        let weight = target.weight.unwrap_or(1);
        targets.push((process, SchedAttr { priority, weight, ..SchedAttr::default() }));
    }
    Ok(targets)
}
