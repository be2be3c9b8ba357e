//! One program that uses the device.

use std::fmt;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use super::Arrivals;
use crate::results::Role;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Kernels of arithmetic.
    Kernels,
    /// Kernels whose result shows whether everything happened exactly once.
    Counter,
    /// One kernel that never ends.
    Endless,
    /// Copies from the host to the device.
    Copies,
    /// A PyTorch program: the name of what it does.
    Torch(String),
}

/// One program that uses the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    pub name: String,
    /// Whether its latency counts or its amount.
    pub role: Role,
    pub work: Work,
    pub priority: Priority,
    /// The weight under the fair policy.
    pub weight: u32,
    /// How long after it is due each request should be done.
    pub deadline: Option<Duration>,
    pub arrivals: Arrivals,
    /// Kernels (or copies) of a request.
    pub kernels: u32,
    /// How long one runs without other loads.
    pub kernel: Duration,
    /// Time on the processor after each.
    pub gap: Duration,
    /// Streams that take kernels in turn.
    pub streams: u32,
    /// Whether all kernels of a request are one CUDA graph.
    pub graph: bool,
    /// Whether its kernels are launched as cooperative ones.
    pub cooperative: bool,
    /// Whether its kernels fill all registers.
    pub full_registers: bool,
    /// Shared memory of each of its blocks.
    pub shared_kib: u32,
    pub copy_kib: u32,
    /// Memory that it allocates besides what its kernels use; 0 is none.
    pub memory_mib: u64,
    /// Whether that may be moved to the host.
    pub is_evictable: bool,
    pub start: Duration,
    /// How long it stays; none is to the end.
    pub lasts: Option<Duration>,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kernels, kernel, gap, .. } = self;
        let role = if self.role == Role::Lc { "LC" } else { "BE" };
        write!(f, "{name}: {role}, priority {}", self.priority.level())?;
        match &self.work {
            Work::Kernels | Work::Counter => write!(f, ", {kernels} x {kernel} kernels")?,
            Work::Endless => write!(f, ", a kernel without end")?,
            Work::Copies => write!(f, ", {kernels} x {} KiB copies", self.copy_kib)?,
            Work::Torch(what) => write!(f, ", PyTorch {what}")?,
        }
        if !gap.is_zero() {
            write!(f, ", {gap} between them")?;
        }
        for (is_so, text) in [
            (self.graph, ", as a CUDA graph"),
            (self.cooperative, ", cooperative"),
            (self.full_registers, ", all registers"),
        ] {
            if is_so {
                write!(f, "{text}")?;
            }
        }
        if self.memory_mib > 0 {
            let evictable = if self.is_evictable { ", evictable" } else { "" };
            write!(f, ", {} MiB of memory{evictable}", self.memory_mib)?;
        }
        if self.shared_kib > 0 {
            write!(f, ", {} KiB shared", self.shared_kib)?;
        }
        match self.arrivals {
            Arrivals::Periodic { every, .. } => write!(f, ", every {every}"),
            Arrivals::Poisson { mean } => write!(f, ", Poisson, {mean} apart"),
            Arrivals::Bursty { mean } => write!(f, ", in bursts, {mean} apart on average"),
            Arrivals::BackToBack { depth } => write!(f, ", back to back, {depth} in flight"),
        }
    }
}
