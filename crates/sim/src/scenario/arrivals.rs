//! When requests arrive.

use gpreempt_core::time::Duration;

use super::Arrivals;
use super::task::US_MAX;
use crate::fields::{Field, Fields, ReadError};

pub(super) const KEYS: &[&str] =
    &["every_us", "phase_us", "poisson_us", "trace_us", "back_to_back"];

const TRACE_ENTRIES_MAX: usize = 100_000;
const DEPTH_MAX: u32 = 1_000;

/// Reads the table `arrivals` of a task.
pub(super) fn arrivals(fields: &Fields<'_>) -> Result<Arrivals, ReadError> {
    let (kind, field) =
        fields.exactly_one(&["every_us", "poisson_us", "trace_us", "back_to_back"])?;
    if kind != "every_us" && fields.optional("phase_us").is_some() {
        return Err(fields.error_at("phase_us", "is used only with `every_us`"));
    }
    match kind {
        "every_us" => Ok(Arrivals::Periodic {
            every: fields.duration("every_us", 1..=US_MAX, None)?,
            phase: fields.duration("phase_us", 0..=US_MAX, Duration::ZERO)?,
        }),
        "poisson_us" => {
            Ok(Arrivals::Poisson { mean: fields.duration("poisson_us", 1..=US_MAX, None)? })
        }
        "trace_us" => trace(&field).map(Arrivals::Trace),
        _ => Ok(Arrivals::BackToBack { depth: fields.u32("back_to_back", 1..=DEPTH_MAX, None)? }),
    }
}

fn trace(field: &Field<'_>) -> Result<Vec<Duration>, ReadError> {
    let items = field.items("integers", TRACE_ENTRIES_MAX)?;
    if items.is_empty() {
        return Err(field.error("is empty; must have at least one entry"));
    }
    let mut times = Vec::with_capacity(items.len());
    let mut last = 0;
    for item in items {
        let time = item.u64(0..=US_MAX)?;
        if time < last {
            return Err(item.error(format!("is {time} after {last}; must be ascending")));
        }
        last = time;
        times.push(Duration::from_micros(time));
    }
    Ok(times)
}
