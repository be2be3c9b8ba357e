//! The numbers that make one device differ from another.
//!
//! A model is data, read from TOML; two are built in. What was measured and what was only read in
//! documents is part of the model, so that a report can say so.

mod built_in;
mod read;

use gpreempt_core::time::Duration;

pub(crate) use read::machine_kind;
pub use read::read_model;

/// How a device can be taken away from running work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineKind {
    /// Not at all: work runs to its end in the order it came.
    None,
    /// The original GPreempt and REEF: flag, empty the ring, kill the waves, submit again.
    Reset,
    /// NVIDIA: channel groups on a runlist, time slices, instruction-level save.
    Tsg,
    /// AMD: waves saved to memory on request, rings untouched.
    Cwsr,
}

impl MachineKind {
    /// Every machine, weakest first.
    pub const ALL: [Self; 4] = [Self::None, Self::Reset, Self::Tsg, Self::Cwsr];

    /// The name people write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Reset => "reset",
            Self::Tsg => "tsg",
            Self::Cwsr => "cwsr",
        }
    }

    /// The machine of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What one device looks like from the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// What people call it.
    pub name: String,
    /// Where the numbers come from, in one sentence.
    pub source: String,
    /// Whether the numbers were measured on the hardware.
    pub measured: bool,
    /// How it preempts, unless a scenario says otherwise.
    pub machine: MachineKind,
    /// Compute units (NVIDIA: streaming multiprocessors).
    pub compute_units: u32,
    /// Waves that fit on a compute unit at once.
    pub waves_per_unit: u32,
    /// Busy time of one ordinary instruction.
    pub instruction_ns: u32,
    /// From the doorbell to the packet being fetched.
    pub submit: Duration,
    /// From a kernel's last wave to its client knowing.
    pub complete: Duration,
    /// Packets of one queue that may be fetched and not finished (`device_cap` of the papers).
    pub fetch_depth: u32,
    /// Saving and restoring a context.
    pub context: ContextCost,
    /// Calls that control the device.
    pub control: ControlCost,
    /// Channel groups and their slices.
    pub tsg: TsgModel,
    /// Hardware queue slots.
    pub cwsr: CwsrModel,
    /// The steps of a reset.
    pub reset: ResetModel,
}

/// What it costs to take a context off the device and to bring one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextCost {
    /// Saving when nothing is resident.
    pub save: Duration,
    /// Restoring when nothing was resident.
    pub restore: Duration,
    /// State of one resident wave.
    pub wave_bytes: u64,
    /// Bytes saved in a microsecond.
    pub save_bytes_per_us: u64,
    /// Bytes restored in a microsecond.
    pub restore_bytes_per_us: u64,
}

/// What a call costs the one who makes it, before the hardware does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlCost {
    /// Stop a queue.
    pub preempt: Duration,
    /// Let it go on.
    pub resume: Duration,
    /// Change a slice.
    pub set_slice: Duration,
}

/// A runlist with time slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsgModel {
    /// The slice a group has when nobody set one.
    pub slice: Duration,
    /// How often the hold watcher looks at the rings of the important queues.
    pub hold_poll: Duration,
    /// How long an important queue must be quiet before its hold is released.
    pub hold_quiet: Duration,
    /// How long a hold may stand without new work.
    pub hold_max: Duration,
    /// From placing a hold to the hardware seeing it, and the same for releasing it.
    pub hold_latency: Duration,
}

/// Hardware queue slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CwsrModel {
    /// Queues that can be mapped at once.
    pub queue_slots: u32,
    /// How long a set of queues stays mapped while others wait for a slot.
    pub quantum: Duration,
}

/// The three steps of the original GPreempt and of REEF, and the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetModel {
    /// Setting the flag that makes queued kernels return at once.
    pub flag: Duration,
    /// Emptying the ring.
    pub clear: Duration,
    /// Killing the running waves.
    pub kill: Duration,
    /// Submitting one packet again.
    pub resubmit: Duration,
}
