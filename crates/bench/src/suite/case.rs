//! One case from TOML.

use gpreempt_core::config::PolicyKind;
use gpreempt_core::time::Duration;
use gpreempt_fields::{Fields, ReadError};

use super::{Backends, Case, Load, LongAndShort, load};
use crate::results::CurvePoint;

pub(super) const KEYS: &[&str] = &[
    "name",
    "title",
    "seconds",
    "short_seconds",
    "virtual_ms",
    "short_virtual_ms",
    "policy",
    "probe",
    "control",
    "modes",
    "only",
    "nvidia_short",
    "curve",
    "load",
];
const CURVE: &[&str] = &["name", "axis", "unit", "value"];

const LOADS_MAX: usize = 64;
/// The longest measurement of one case: gpreempt-load runs for 600 s.
const SECONDS_MAX: u64 = 500;
/// The longest simulation: 10 minutes of virtual time.
const MS_MAX: u64 = 600_000;

impl Case {
    /// Reads one table of `case`.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ReadError> {
        let tables = fields.tables("load", LOADS_MAX, load::KEYS)?;
        if tables.is_empty() {
            return Err(fields.missing("load", "at least one `[[case.load]]`"));
        }
        let mut loads = Vec::new();
        for table in &tables {
            loads.extend(Load::read(table)?);
        }
        for (index, load) in loads.iter().enumerate() {
            if loads[..index].iter().any(|other| other.name == load.name) {
                return Err(fields.error_at("load", format!("two are called {}", load.name)));
            }
        }
        let policy = fields.optional("policy").map(|field| {
            field.choice(PolicyKind::ALL.into_iter().map(PolicyKind::name), PolicyKind::from_name)
        });
        let point = fields.optional("curve").map(|field| point(&field.table(CURVE)?));
        Ok(Self {
            name: fields.name("name")?,
            title: fields.name("title")?,
            real: LongAndShort {
                long: seconds(fields, "seconds", 20)?,
                short: seconds(fields, "short_seconds", 6)?,
            },
            simulated: LongAndShort {
                long: fields.duration("virtual_ms", 1..=MS_MAX, Duration::from_millis(4_000))?,
                short: fields.duration(
                    "short_virtual_ms",
                    1..=MS_MAX,
                    Duration::from_millis(400),
                )?,
            },
            policy: policy.transpose()?.unwrap_or_default(),
            probed: fields.bool("probe", false)?,
            controlled: fields.bool("control", false)?,
            modes: super::read::names(fields, "modes")?,
            backends: backends(fields)?,
            is_in_nvidia_short: fields.bool("nvidia_short", true)?,
            point: point.transpose()?,
            loads,
        })
    }
}

fn seconds(fields: &Fields<'_>, key: &'static str, usual: u64) -> Result<Duration, ReadError> {
    Ok(Duration::from_millis(fields.u64(key, 1..=SECONDS_MAX, usual)? * 1_000))
}

fn backends(fields: &Fields<'_>) -> Result<Backends, ReadError> {
    let Some(field) = fields.optional("only") else { return Ok(Backends::All) };
    field.choice(["emulated", "nvidia"].into_iter(), |name| match name {
        "emulated" => Some(Backends::Emulated),
        "nvidia" => Some(Backends::Nvidia),
        _ => None,
    })
}

fn point(fields: &Fields<'_>) -> Result<CurvePoint, ReadError> {
    let unit = fields.optional("unit").map(|field| field.text("a unit").map(str::to_owned));
    // CAST: at most 53 bits.
    let value = fields.u64("value", 0..=1 << 52, None)? as f64;
    Ok(CurvePoint {
        curve: fields.name("name")?,
        axis: fields.name("axis")?,
        unit: unit.transpose()?.unwrap_or_default(),
        value,
    })
}
