//! What a device can do and what that costs: asked once, when the device appears.

use crate::time::Duration;

/// How deep a preempt reaches (the levels of the XSched interface).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// New submissions wait; what is submitted runs.
    Gate,
    /// The device stops fetching; the running kernel ends first.
    Park,
    /// The running kernel is saved in the middle.
    Switch,
}

/// How the device can be made to prefer one queue over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// By stopping the others: one command for each queue that has to go.
    Stop,
    /// By time slices: the hardware switches by itself. Stopping is there too, for order among
    /// important queues and because several tiny slices starve each other.
    Slice,
    /// Not at all. The scheduler watches and reports.
    Watch,
}

/// A device's abilities and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How preference is expressed.
    pub mechanism: Mechanism,
    /// How deep a preempt reaches.
    pub level: Level,
    /// From the preempt command to the queue being off.
    pub preempt_cost: Duration,
    /// From the resume command to the queue running again.
    pub resume_cost: Duration,
    /// How long a ring must look empty before its queue counts as idle.
    pub quiet: Duration,
    /// Whether the backend can hold the device across gaps of an important queue.
    pub hold: bool,
    /// Whether queues have a priority in hardware that is worth setting.
    pub hardware_priority: bool,
}

impl Capabilities {
    /// What one round trip costs: off and on again.
    pub fn round_trip(&self) -> Duration {
        self.preempt_cost + self.resume_cost
    }
}
