//! `[scheduler]`: who runs.

use gpreempt_core::config::{Aging, Config as CoreConfig, PolicyKind};
use gpreempt_core::time::Duration;

use super::{SchedulerConfig, priority};
use crate::fields::{Fields, ReadError};

pub(super) const KEYS: &[&str] = &[
    "policy",
    "interval_ms",
    "slice_ms",
    "preempt_timeout_ms",
    "hint_max_ms",
    "linger_max_us",
    "aging",
    "default_priority",
    "allow_untested_driver",
    "hold",
    "hold_max_ms",
];
pub(super) const AGING_KEYS: &[&str] = &["share_percent", "period_ms", "after_ms", "grant_ms"];

/// The longest of the scheduler's own times: 10 s.
pub(crate) const MS_MAX: u64 = 10_000;
/// The longest that a device is held without new work, and the usual.
const HOLD_MS_MAX: u64 = 1_000;
pub(crate) const HOLD_MAX: Duration = Duration::from_millis(50);
/// The longest times of aging: an hour.
pub(crate) const AGING_MS_MAX: u64 = 3_600_000;
/// A share is kept by turns, and a turn must be worth a switch.
const PERIOD_MS_MIN: u64 = 100;
const PERIOD_DEFAULT: Duration = Duration::from_millis(1_000);

/// Reads the table.
pub(super) fn read(fields: &Fields<'_>) -> Result<SchedulerConfig, ReadError> {
    let default = CoreConfig::default();
    let milliseconds = |duration: Duration| duration.as_micros() / 1_000;
    let interval = milliseconds(CoreConfig::INTERVAL_MIN)..=milliseconds(CoreConfig::INTERVAL_MAX);
    let names = || PolicyKind::ALL.into_iter().map(PolicyKind::name);
    let policy = fields.optional("policy").map(|field| field.choice(names(), policy));
    let aging = fields.optional("aging").map(|field| aging(&field.table(AGING_KEYS)?));
    let timeout = default.preempt_timeout;
    let core = CoreConfig {
        policy: policy.transpose()?.unwrap_or_default(),
        interval: fields.duration("interval_ms", interval, default.interval)?,
        slice: fields.duration("slice_ms", 1..=MS_MAX, default.slice)?,
        aging: aging.transpose()?,
        preempt_timeout: fields.duration("preempt_timeout_ms", 1..=MS_MAX, timeout)?,
        hint_max: fields.duration("hint_max_ms", 1..=MS_MAX, default.hint_max)?,
        linger_max: fields.duration("linger_max_us", 0..=MS_MAX * 1_000, default.linger_max)?,
    };
    // The ranges above are the scheduler's rules; should it get stricter, it has the last word.
    core.check().map_err(|error| fields.error(error.to_string()))?;
    let default_priority = fields.optional("default_priority");
    Ok(SchedulerConfig {
        core,
        default_priority: default_priority.map(|field| priority(&field)).transpose()?,
        allow_untested_driver: fields.bool("allow_untested_driver", false)?,
        hold: fields.bool("hold", true)?,
        hold_max: fields.duration("hold_max_ms", 1..=HOLD_MS_MAX, HOLD_MAX)?,
    })
}

/// The policy of that name; in a TOML file an underscore comes as naturally as a dash.
fn policy(name: &str) -> Option<PolicyKind> {
    PolicyKind::from_name(&name.replace('_', "-"))
}

/// Either a share, or the two times that make one.
fn aging(fields: &Fields<'_>) -> Result<Aging, ReadError> {
    let (key, share) = fields.exactly_one(&["share_percent", "after_ms"])?;
    let stranger = if key == "after_ms" { "period_ms" } else { "grant_ms" };
    if let Some(field) = fields.optional(stranger) {
        return Err(field.error(format!("has no meaning beside `{key}`")));
    }
    if key == "after_ms" {
        return Ok(Aging {
            after: fields.duration("after_ms", 1..=AGING_MS_MAX, None)?,
            grant: fields.duration("grant_ms", 1..=AGING_MS_MAX, None)?,
        });
    }
    let percent = share.u64(1..=50)?;
    let period = fields.duration("period_ms", PERIOD_MS_MIN..=AGING_MS_MAX, PERIOD_DEFAULT)?;
    let grant = Duration::from_nanos(period.as_nanos() / 100 * percent);
    Ok(Aging { after: period - grant, grant })
}
