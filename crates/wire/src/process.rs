//! The process that a message is about, and changes of its scheduling attributes.

use std::fmt;
use std::num::NonZeroU32;

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;

use crate::codec::{Field, Reader};
use crate::message::DecodeError;

/// A process.
///
/// # Invariants
/// The pid is at most `i32::MAX`, which is the kernel's limit; if it is 0, so is the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pid: u32,
    start_ticks: u64,
}

const PID_MAX: u32 = i32::MAX.unsigned_abs();

impl Process {
    /// The sender of the message. A program in a container names itself by it, because it does not
    /// know the pid that it has outside.
    pub const SENDER: Self = Self { pid: 0, start_ticks: 0 };

    /// The process with that pid that started so many clock ticks after boot (field 22 of
    /// `/proc/PID/stat`); with 0 ticks, the process that has the pid now. Pid 0 is
    /// [`Self::SENDER`]. None if no process can have these numbers.
    pub const fn new(pid: u32, start_ticks: u64) -> Option<Self> {
        if pid > PID_MAX || (pid == 0 && start_ticks != 0) {
            None
        } else {
            Some(Self { pid, start_ticks })
        }
    }

    /// The pid; 0 for the sender.
    pub const fn pid(self) -> u32 {
        self.pid
    }

    /// The start time in clock ticks after boot; 0 for the process that has the pid now.
    pub const fn start_ticks(self) -> u64 {
        self.start_ticks
    }
}

impl Field for Process {
    const BYTES: usize = 16;

    fn put(&self, body: &mut Vec<u8>) {
        self.pid.put(body);
        0_u32.put(body);
        self.start_ticks.put(body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let pid = u32::take(name, reader)?;
        reader.zeros(4)?;
        let rule = "a pid of at most 31 bits; its start is 0 if the pid is 0";
        let process = Self::new(pid, u64::take(name, reader)?);
        process.ok_or_else(|| DecodeError::field(name, rule))
    }
}

/// [`Process::SENDER`] stands for none, where no message can be about its sender.
impl Field for Option<Process> {
    const BYTES: usize = Process::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        self.unwrap_or(Process::SENDER).put(body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let process = Process::take(name, reader)?;
        Ok(Some(process).filter(|process| *process != Process::SENDER))
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::SENDER { f.write_str("sender") } else { self.pid.fmt(f) }
    }
}

/// The scheduling attributes of a process that change; the others stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedAttrChange {
    /// The new priority.
    pub priority: Option<Priority>,
    /// The new weight under the fair policy.
    pub weight: Option<NonZeroU32>,
    /// The new time from the arrival of a request to its deadline; `Some(0)` removes the deadline.
    pub deadline_us: Option<u64>,
    /// How much slower the process may become; `Some` of zero makes it as fast as possible.
    pub latency_budget: Option<LatencyBudget>,
    /// Whether its GPU memory may move to the host when processes with a higher priority need room.
    pub evictable: Option<bool>,
}

const PRIORITY: u8 = 1;
const WEIGHT: u8 = 2;
const DEADLINE: u8 = 4;
const LATENCY_BUDGET: u8 = 8;
const HAS_EVICTABLE: u8 = 16;
const IS_EVICTABLE: u8 = 32;

/// Which attributes are present, then all of them; absent ones are zero.
impl Field for SchedAttrChange {
    const BYTES: usize = 16;

    fn put(&self, body: &mut Vec<u8>) {
        let bit = |is_present: bool, bit: u8| if is_present { bit } else { 0 };
        let present = bit(self.priority.is_some(), PRIORITY)
            | bit(self.weight.is_some(), WEIGHT)
            | bit(self.deadline_us.is_some(), DEADLINE)
            | bit(self.latency_budget.is_some(), LATENCY_BUDGET)
            | bit(self.evictable.is_some(), HAS_EVICTABLE)
            | bit(self.evictable == Some(true), IS_EVICTABLE);
        present.put(body);
        self.priority.map_or(0, Priority::level).put(body);
        self.latency_budget.unwrap_or_default().put(body);
        self.weight.map_or(0, NonZeroU32::get).put(body);
        self.deadline_us.unwrap_or(0).put(body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let present = u8::take("present", reader)?;
        let known = PRIORITY | WEIGHT | DEADLINE | LATENCY_BUDGET | HAS_EVICTABLE | IS_EVICTABLE;
        if present & !known != 0 {
            return Err(DecodeError::field("present", "made of the bits 1, 2, 4, 8, 16 and 32"));
        }
        let has = |bit: u8| present & bit != 0;
        let priority = Priority::take("priority", reader)?;
        let latency_budget = LatencyBudget::take("latency_budget", reader)?;
        let weight = NonZeroU32::new(u32::take("weight", reader)?);
        let deadline_us = u64::take("deadline_us", reader)?;
        if has(WEIGHT) && weight.is_none() {
            return Err(DecodeError::field("weight", "at least 1"));
        }
        // A value that is said to be absent is a mistake of the sender, which an error reveals.
        let is_consistent = (has(PRIORITY) || priority == Priority::MIN)
            && (has(WEIGHT) || weight.is_none())
            && (has(DEADLINE) || deadline_us == 0)
            && (has(LATENCY_BUDGET) || latency_budget.is_zero())
            && (has(HAS_EVICTABLE) || !has(IS_EVICTABLE));
        if !is_consistent {
            return Err(DecodeError::field("attributes", "zero where `present` lacks their bit"));
        }
        Ok(Self {
            priority: has(PRIORITY).then_some(priority),
            weight,
            deadline_us: has(DEADLINE).then_some(deadline_us),
            latency_budget: has(LATENCY_BUDGET).then_some(latency_budget),
            evictable: has(HAS_EVICTABLE).then_some(has(IS_EVICTABLE)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_attributes_are_zero_and_present_ones_are_within_limits() {
        let read = |bytes: [u8; 16]| -> Result<SchedAttrChange, DecodeError> {
            SchedAttrChange::take("change", &mut Reader::new(&bytes, 16, false)?)
        };
        assert_eq!(read([0; 16]), Ok(SchedAttrChange::default()));
        for (at, byte, present, refused) in [
            (1, 16, PRIORITY, "priority"),
            (1, 3, 0, "attributes"),
            (4, 0, WEIGHT, "weight"),
            (4, 1, 0, "attributes"),
            (15, 1, 0, "attributes"),
            (2, 1, 0, "attributes"),
            (3, 2, LATENCY_BUDGET, "latency_budget"),
            (3, 2, 0, "latency_budget"),
            (0, 32, 0, "attributes"),
            (0, 64, 64, "present"),
        ] {
            let mut bytes = [0; 16];
            bytes[0] = present;
            bytes[at] = byte;
            let error = read(bytes).unwrap_err();
            assert!(matches!(error, DecodeError::Field { field, .. } if field == refused), "{at}");
        }
    }

    #[test]
    fn latency_budgets_up_to_400_per_cent_are_read() {
        for (bytes, percent) in [([0, 0], Some(0)), ([0x90, 1], Some(400)), ([0x91, 1], None)] {
            let mut body = [0; 16];
            body[0] = LATENCY_BUDGET;
            body[2..4].copy_from_slice(&bytes);
            let mut reader = Reader::new(&body, 16, false).unwrap();
            let budget = SchedAttrChange::take("change", &mut reader).ok();
            let budget = budget.and_then(|change| change.latency_budget);
            assert_eq!(budget.map(LatencyBudget::percent), percent);
        }
    }
}
