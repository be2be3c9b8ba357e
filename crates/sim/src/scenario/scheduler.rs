//! Who schedules.

use gpreempt_core::config::{Aging, Config, PolicyKind};

use super::SchedulerSpec;
use crate::fields::{Fields, ReadError};

pub(super) const KEYS: &[&str] = &[
    "policy",
    "interval_us",
    "slice_us",
    "aging",
    "preempt_timeout_us",
    "hint_max_us",
    "linger_max_us",
    "hold",
];
pub(super) const AGING_KEYS: &[&str] = &["after_ms", "grant_ms"];

/// The longest of the scheduler's own times: 10 s.
const US_MAX: u64 = 10_000_000;
const AGING_MS_MAX: u64 = 3_600_000;

/// Reads the table `scheduler`.
pub(super) fn scheduler(fields: &Fields<'_>) -> Result<SchedulerSpec, ReadError> {
    let default = Config::default();
    let interval = Config::INTERVAL_MIN.as_micros()..=Config::INTERVAL_MAX.as_micros();
    let policy = fields.optional("policy").map(|field| {
        field.choice(PolicyKind::ALL.into_iter().map(PolicyKind::name), PolicyKind::from_name)
    });
    let aging = fields.optional("aging").map(|field| aging(&field.table(AGING_KEYS)?));
    let config = Config {
        policy: policy.transpose()?.unwrap_or_default(),
        interval: fields.duration("interval_us", interval, default.interval)?,
        slice: fields.duration("slice_us", 1..=US_MAX, default.slice)?,
        aging: aging.transpose()?,
        preempt_timeout: fields.duration(
            "preempt_timeout_us",
            1..=US_MAX,
            default.preempt_timeout,
        )?,
        hint_max: fields.duration("hint_max_us", 1..=US_MAX, default.hint_max)?,
        linger_max: fields.duration("linger_max_us", 0..=US_MAX, default.linger_max)?,
    };
    // The ranges above are the scheduler's rules; should it get stricter, it has the last word.
    config.check().map_err(|error| fields.error(error.to_string()))?;
    Ok(SchedulerSpec { config, hold: fields.bool("hold", true)? })
}

fn aging(fields: &Fields<'_>) -> Result<Aging, ReadError> {
    Ok(Aging {
        after: fields.duration("after_ms", 1..=AGING_MS_MAX, None)?,
        grant: fields.duration("grant_ms", 1..=AGING_MS_MAX, None)?,
    })
}
