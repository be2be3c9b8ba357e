//! What one request does.

use gpreempt_core::time::Duration;

use super::RequestStep;
use super::names::Names;
use crate::fields::{Fields, ReadError};

pub(super) const KEYS: &[&str] = &["kernel", "count", "sync", "cpu_us"];

const STEPS_MAX: usize = 1_000;
const COUNT_MAX: u32 = 100_000;
/// The longest a task works on its own processor after a launch: 10 s.
const CPU_US_MAX: u64 = 10_000_000;

/// Reads the array `request` of a task.
pub(super) fn request(task: &Fields<'_>, kernels: &Names) -> Result<Vec<RequestStep>, ReadError> {
    let steps = task.tables("request", STEPS_MAX, KEYS)?;
    if steps.is_empty() {
        return Err(task.error_at("request", "is empty; must have at least one step"));
    }
    steps.iter().map(|fields| step(fields, kernels)).collect()
}

fn step(fields: &Fields<'_>, kernels: &Names) -> Result<RequestStep, ReadError> {
    Ok(RequestStep {
        kernel: kernels.find(&fields.required("kernel", "the name of a kernel")?)?,
        count: fields.u32("count", 1..=COUNT_MAX, 1)?,
        sync: fields.bool("sync", true)?,
        cpu: fields.duration("cpu_us", 0..=CPU_US_MAX, Duration::ZERO)?,
    })
}
