//! A device as the emulator describes it.

use gpreempt_core::capability::{Capabilities, Level, Mechanism};
use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration;

use super::WireError;
use super::body;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which one.
    pub device: DeviceId,
    /// What people call it.
    pub name: String,
    /// Compute units.
    pub compute_units: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Whether a look at a ring can tell that fetched work still runs.
    pub can_tell_running: bool,
}

const HOLD: u32 = 1;
const HARDWARE_PRIORITY: u32 = 2;
const CAN_TELL_RUNNING: u32 = 4;
const NAME_BYTES: usize = 32;

impl DeviceInfo {
    pub(super) fn body(&self) -> body::Device {
        let Capabilities { mechanism, level, preempt_cost, resume_cost, quiet, .. } =
            self.capabilities;
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.capabilities.hold, HOLD)
            | flag(self.capabilities.hardware_priority, HARDWARE_PRIORITY)
            | flag(self.can_tell_running, CAN_TELL_RUNNING);
        let mut name = [0; NAME_BYTES];
        let kept = shortened(&self.name).as_bytes();
        name[..kept.len()].copy_from_slice(kept);
        body::Device {
            device: self.device.0.into(),
            compute_units: self.compute_units.into(),
            mechanism: match mechanism {
                Mechanism::Stop => 0,
                Mechanism::Slice => 1,
                Mechanism::Watch => 2,
            }
            .into(),
            level: match level {
                Level::Gate => 1,
                Level::Park => 2,
                Level::Switch => 3,
            }
            .into(),
            preempt_ns: preempt_cost.as_nanos().into(),
            resume_ns: resume_cost.as_nanos().into(),
            quiet_ns: quiet.as_nanos().into(),
            flags: flags.into(),
            name_bytes: u32::try_from(kept.len()).unwrap_or(0).into(),
            name,
        }
    }

    pub(super) fn from_body(kind: u16, body: &body::Device) -> Result<Self, WireError> {
        let wrong = WireError::Value(kind);
        let length = usize::try_from(body.name_bytes.get()).map_err(|_| wrong)?;
        let name = body.name.get(..length).ok_or(wrong)?;
        let name = std::str::from_utf8(name).map_err(|_| wrong)?.to_owned();
        let flags = body.flags.get();
        let mechanism = match body.mechanism.get() {
            0 => Mechanism::Stop,
            1 => Mechanism::Slice,
            2 => Mechanism::Watch,
            _ => return Err(wrong),
        };
        let level = match body.level.get() {
            1 => Level::Gate,
            2 => Level::Park,
            3 => Level::Switch,
            _ => return Err(wrong),
        };
        Ok(Self {
            device: DeviceId(body.device.get()),
            name,
            compute_units: body.compute_units.get(),
            capabilities: Capabilities {
                mechanism,
                level,
                preempt_cost: Duration::from_nanos(body.preempt_ns.get()),
                resume_cost: Duration::from_nanos(body.resume_ns.get()),
                quiet: Duration::from_nanos(body.quiet_ns.get()),
                hold: flags & HOLD != 0,
                hardware_priority: flags & HARDWARE_PRIORITY != 0,
            },
            can_tell_running: flags & CAN_TELL_RUNNING != 0,
        })
    }
}

/// As much of a name as fits, in whole characters.
fn shortened(name: &str) -> &str {
    let end = (0..=NAME_BYTES.min(name.len())).rev().find(|&at| name.is_char_boundary(at));
    &name[..end.unwrap_or(0)]
}
