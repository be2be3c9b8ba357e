//! Who launches.

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use super::arrivals::{self, arrivals};
use super::names::Names;
use super::request::request;
use super::{PriorityChange, TaskSpec};
use crate::fields::{Fields, ReadError};

pub(super) const KEYS: &[&str] = &[
    "name",
    "priority",
    "weight",
    "deadline_us",
    "gang",
    "devices",
    "queues",
    "start_ms",
    "after",
    "arrivals",
    "requests",
    "request",
    "hint_us",
    "changes",
];
pub(super) const CHANGE_KEYS: &[&str] = &["at_ms", "priority"];

/// The longest time anything in a scenario may take or wait: an hour.
pub(super) const MS_MAX: u64 = 3_600_000;
/// The same.
pub(super) const US_MAX: u64 = MS_MAX * 1_000;

const REQUESTS_MAX: u64 = 1_000_000_000;
const CHANGES_MAX: usize = 1_000;

/// What a task may refer to.
#[derive(Debug)]
pub(super) struct Surroundings<'s> {
    /// How many devices there are.
    pub(super) devices: u32,
    /// Every kernel.
    pub(super) kernels: &'s Names,
    /// Every task.
    pub(super) tasks: &'s Names,
}

/// Reads one table of `task`.
pub(super) fn task(fields: &Fields<'_>, around: &Surroundings<'_>) -> Result<TaskSpec, ReadError> {
    let requests_max = fields.optional("requests").map(|field| field.u64(1..=REQUESTS_MAX));
    let shape = fields.required("arrivals", "a table with one kind of arrivals")?;
    Ok(TaskSpec {
        name: fields.name("name")?,
        priority: priority(fields, Priority::DEFAULT)?,
        weight: fields.u32("weight", 1..=1_000, 1)?,
        deadline: fields.optional_duration("deadline_us", 1..=US_MAX)?,
        gang: fields.optional("gang").map(|field| field.name()).transpose()?,
        devices: devices(fields, around.devices)?,
        queues: fields.u32("queues", 1..=64, 1)?,
        start: fields.duration("start_ms", 0..=MS_MAX, Duration::ZERO)?,
        after: fields.optional("after").map(|field| around.tasks.find(&field)).transpose()?,
        arrivals: arrivals(&shape.table(arrivals::KEYS)?)?,
        requests_max: requests_max.transpose()?,
        request: request(fields, around.kernels)?,
        hint: fields.optional_duration("hint_us", 1..=US_MAX)?,
        changes: changes(fields)?,
    })
}

fn priority(
    fields: &Fields<'_>,
    default: impl Into<Option<Priority>>,
) -> Result<Priority, ReadError> {
    let default = default.into().map(|priority| u32::from(priority.level()));
    let level = fields.u32("priority", 0..=u32::from(Priority::MAX.level()), default)?;
    let level = u8::try_from(level).ok().and_then(Priority::new);
    Ok(level.expect("the range is that of the priorities"))
}

fn devices(fields: &Fields<'_>, count: u32) -> Result<Vec<u32>, ReadError> {
    let Some(field) = fields.optional("devices") else {
        return Ok(vec![0]);
    };
    let mut devices = Vec::new();
    for item in field.items("integers", usize::try_from(count).unwrap_or(usize::MAX))? {
        let device = item.u64(0..=u64::from(count) - 1)?;
        let device = u32::try_from(device).expect("it is less than a number of 32 bits");
        if devices.contains(&device) {
            return Err(item.error(format!("is {device} again; must be distinct")));
        }
        devices.push(device);
    }
    match devices.is_empty() {
        true => Err(field.error("is empty; must have at least one device")),
        false => Ok(devices),
    }
}

fn changes(fields: &Fields<'_>) -> Result<Vec<PriorityChange>, ReadError> {
    let mut changes: Vec<PriorityChange> = Vec::new();
    for table in fields.tables("changes", CHANGES_MAX, CHANGE_KEYS)? {
        let at = table.duration("at_ms", 0..=MS_MAX, None)?;
        if changes.last().is_some_and(|last| at <= last.at) {
            let message = "is not later than the one before; must be ascending";
            return Err(table.error_at("at_ms", message));
        }
        changes.push(PriorityChange { at, priority: priority(&table, None)? });
    }
    Ok(changes)
}
