//! What goes wrong.

use gpreempt_core::time::Duration;

use super::names::Names;
use super::task::{MS_MAX, US_MAX};
use super::{FaultKind, FaultSpec};
use crate::fields::{Fields, ReadError};

pub(super) const KEYS: &[&str] = &["kind", "at_ms", "lasts_ms", "task", "device", "by_us"];

/// What people write, and the key that says more about it.
const KINDS: [(&str, Option<&str>); 8] = [
    ("preempt-timeout", None),
    ("observation-lost", None),
    ("observation-late", Some("by_us")),
    ("task-death", Some("task")),
    ("scheduler-crash", None),
    ("device-reset", Some("device")),
    ("clock-ahead", Some("by_us")),
    ("clock-behind", Some("by_us")),
];

/// What a fault may refer to.
#[derive(Debug)]
pub(super) struct Surroundings<'s> {
    /// How many devices there are.
    pub(super) devices: u32,
    /// Every task.
    pub(super) tasks: &'s Names,
    /// Whether anybody schedules.
    pub(super) scheduled: bool,
}

/// Reads one table of `fault`.
pub(super) fn fault(
    fields: &Fields<'_>,
    around: &Surroundings<'_>,
) -> Result<FaultSpec, ReadError> {
    let names = || KINDS.iter().map(|(name, _)| *name);
    let field = fields.required("kind", "the kind of fault")?;
    let (name, detail) =
        field.choice(names(), |name| KINDS.into_iter().find(|(known, _)| *known == name))?;
    for key in ["task", "device", "by_us"] {
        if Some(key) != detail && fields.optional(key).is_some() {
            return Err(fields.error_at(key, format!("is not used by `{name}`")));
        }
    }
    if name == "scheduler-crash" && !around.scheduled {
        return Err(fields.error_at("kind", "there is no scheduler; must have `[scheduler]` too"));
    }
    let by = || fields.duration("by_us", 1..=US_MAX, None);
    let kind = match name {
        "preempt-timeout" => FaultKind::PreemptTimeout,
        "observation-lost" => FaultKind::ObservationLost,
        "observation-late" => FaultKind::ObservationLate(by()?),
        "task-death" => {
            let task = fields.required("task", "the name of a task")?;
            FaultKind::TaskDeath(around.tasks.find(&task)?)
        }
        "scheduler-crash" => FaultKind::SchedulerCrash,
        "device-reset" => {
            FaultKind::DeviceReset(fields.u32("device", 0..=around.devices - 1, None)?)
        }
        "clock-ahead" => FaultKind::ClockAhead(by()?),
        _ => FaultKind::ClockBehind(by()?),
    };
    Ok(FaultSpec {
        at: fields.duration("at_ms", 0..=MS_MAX, None)?,
        lasts: fields.duration("lasts_ms", 0..=MS_MAX, Duration::ZERO)?,
        kind,
    })
}
