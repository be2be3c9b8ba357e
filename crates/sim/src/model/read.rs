//! A device model from TOML.

use gpreempt_core::time::Duration;

use super::{ContextCost, ControlCost, CwsrModel, DeviceModel, MachineKind, ResetModel, TsgModel};
use crate::fields::{Field, Fields, ReadError, listed, quoted, with_root};

const KEYS: &[&str] = &[
    "base",
    "name",
    "source",
    "measured",
    "machine",
    "compute_units",
    "waves_per_unit",
    "instruction_ns",
    "submit_ns",
    "complete_ns",
    "fetch_depth",
    "context",
    "control",
    "tsg",
    "cwsr",
    "reset",
];
const CONTEXT_KEYS: &[&str] =
    &["save_ns", "restore_ns", "wave_bytes", "save_bytes_per_us", "restore_bytes_per_us"];
const CONTROL_KEYS: &[&str] = &["preempt_ns", "resume_ns", "set_slice_ns"];
const TSG_KEYS: &[&str] =
    &["slice_ns", "hold_poll_ns", "hold_quiet_ns", "hold_max_ns", "hold_latency_ns"];
const CWSR_KEYS: &[&str] = &["queue_slots", "quantum_ns"];
const RESET_KEYS: &[&str] = &["flag_ns", "clear_ns", "kill_ns", "resubmit_ns"];

/// The longest that any step of a device may take: 10 s.
const STEP_NS_MAX: u64 = 10_000_000_000;
/// More than any device moves in a microsecond.
const BYTES_PER_US_MAX: u64 = 1_000_000_000_000;
const WAVE_BYTES_MAX: u64 = 1_000_000_000;

/// Reads a device model. Keys it leaves out come from the built-in model called `base`; without
/// a base, every key is needed.
///
/// # Errors
/// The first thing wrong with the text.
pub fn read_model(file_name: &str, text: &str) -> Result<DeviceModel, ReadError> {
    with_root(file_name, text, KEYS, |fields| {
        let base = fields.optional("base").map(|field| base(&field)).transpose()?;
        model(fields, base.as_ref())
    })
}

fn base(field: &Field<'_>) -> Result<DeviceModel, ReadError> {
    field.choice(DeviceModel::built_in_names().iter().copied(), DeviceModel::built_in)
}

fn model(fields: &Fields<'_>, base: Option<&DeviceModel>) -> Result<DeviceModel, ReadError> {
    Ok(DeviceModel {
        name: text(fields, "name", base.map(|base| format!("{}, changed", base.name)))?,
        source: text(fields, "source", base.map(|base| format!("{}, changed", base.source)))?,
        // Numbers somebody changed are not those that were measured, unless he says so.
        measured: fields.bool("measured", base.map(|_| false))?,
        machine: machine(fields, base.map(|base| base.machine))?,
        compute_units: fields.u32(
            "compute_units",
            1..=4096,
            base.map(|base| base.compute_units),
        )?,
        waves_per_unit: fields.u32(
            "waves_per_unit",
            1..=64,
            base.map(|base| base.waves_per_unit),
        )?,
        instruction_ns: fields.u32(
            "instruction_ns",
            1..=1_000_000,
            base.map(|base| base.instruction_ns),
        )?,
        submit: step(fields, "submit_ns", base.map(|base| base.submit))?,
        complete: step(fields, "complete_ns", base.map(|base| base.complete))?,
        fetch_depth: fields.u32("fetch_depth", 1..=1024, base.map(|base| base.fetch_depth))?,
        context: part(fields, "context", CONTEXT_KEYS, base.map(|base| base.context), context)?,
        control: part(fields, "control", CONTROL_KEYS, base.map(|base| base.control), control)?,
        tsg: part(fields, "tsg", TSG_KEYS, base.map(|base| base.tsg), tsg)?,
        cwsr: part(fields, "cwsr", CWSR_KEYS, base.map(|base| base.cwsr), cwsr)?,
        reset: part(fields, "reset", RESET_KEYS, base.map(|base| base.reset), reset)?,
    })
}

/// One of the tables: read if it is there, the base's if not, an error if there is neither.
fn part<T: Copy>(
    fields: &Fields<'_>,
    key: &'static str,
    known: &'static [&'static str],
    base: Option<T>,
    read: impl FnOnce(&Fields<'_>, Option<T>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    match (fields.optional(key), base) {
        (None, Some(base)) => Ok(base),
        (None, None) => {
            let allowed = format!("a table of: {}", listed(known.iter().copied()));
            Err(fields.missing(key, &allowed))
        }
        (Some(field), base) => read(&field.table(known)?, base),
    }
}

fn context(fields: &Fields<'_>, base: Option<ContextCost>) -> Result<ContextCost, ReadError> {
    let rate = 1..=BYTES_PER_US_MAX;
    Ok(ContextCost {
        save: step(fields, "save_ns", base.map(|base| base.save))?,
        restore: step(fields, "restore_ns", base.map(|base| base.restore))?,
        wave_bytes: fields.u64(
            "wave_bytes",
            1..=WAVE_BYTES_MAX,
            base.map(|base| base.wave_bytes),
        )?,
        save_bytes_per_us: fields.u64(
            "save_bytes_per_us",
            rate.clone(),
            base.map(|base| base.save_bytes_per_us),
        )?,
        restore_bytes_per_us: fields.u64(
            "restore_bytes_per_us",
            rate,
            base.map(|base| base.restore_bytes_per_us),
        )?,
    })
}

fn control(fields: &Fields<'_>, base: Option<ControlCost>) -> Result<ControlCost, ReadError> {
    Ok(ControlCost {
        preempt: step(fields, "preempt_ns", base.map(|base| base.preempt))?,
        resume: step(fields, "resume_ns", base.map(|base| base.resume))?,
        set_slice: step(fields, "set_slice_ns", base.map(|base| base.set_slice))?,
    })
}

fn tsg(fields: &Fields<'_>, base: Option<TsgModel>) -> Result<TsgModel, ReadError> {
    Ok(TsgModel {
        slice: period(fields, "slice_ns", base.map(|base| base.slice))?,
        hold_poll: period(fields, "hold_poll_ns", base.map(|base| base.hold_poll))?,
        hold_quiet: period(fields, "hold_quiet_ns", base.map(|base| base.hold_quiet))?,
        hold_max: period(fields, "hold_max_ns", base.map(|base| base.hold_max))?,
        hold_latency: step(fields, "hold_latency_ns", base.map(|base| base.hold_latency))?,
    })
}

fn cwsr(fields: &Fields<'_>, base: Option<CwsrModel>) -> Result<CwsrModel, ReadError> {
    Ok(CwsrModel {
        queue_slots: fields.u32("queue_slots", 1..=1024, base.map(|base| base.queue_slots))?,
        quantum: period(fields, "quantum_ns", base.map(|base| base.quantum))?,
    })
}

fn reset(fields: &Fields<'_>, base: Option<ResetModel>) -> Result<ResetModel, ReadError> {
    Ok(ResetModel {
        flag: step(fields, "flag_ns", base.map(|base| base.flag))?,
        clear: step(fields, "clear_ns", base.map(|base| base.clear))?,
        kill: step(fields, "kill_ns", base.map(|base| base.kill))?,
        resubmit: step(fields, "resubmit_ns", base.map(|base| base.resubmit))?,
    })
}

/// What something takes; a step may take no time.
fn step(
    fields: &Fields<'_>,
    key: &'static str,
    base: Option<Duration>,
) -> Result<Duration, ReadError> {
    fields.duration(key, 0..=STEP_NS_MAX, base)
}

/// What something is repeated after or limited to, which cannot be no time.
fn period(
    fields: &Fields<'_>,
    key: &'static str,
    base: Option<Duration>,
) -> Result<Duration, ReadError> {
    fields.duration(key, 1..=STEP_NS_MAX, base)
}

fn machine(fields: &Fields<'_>, base: Option<MachineKind>) -> Result<MachineKind, ReadError> {
    match (fields.optional("machine"), base) {
        (Some(field), _) => machine_kind(&field),
        (None, Some(base)) => Ok(base),
        (None, None) => Err(fields.missing("machine", &format!("one of: {}", machine_names()))),
    }
}

/// The machine that a field names.
pub(crate) fn machine_kind(field: &Field<'_>) -> Result<MachineKind, ReadError> {
    field.choice(MachineKind::ALL.into_iter().map(MachineKind::name), MachineKind::from_name)
}

fn machine_names() -> String {
    listed(MachineKind::ALL.into_iter().map(MachineKind::name))
}

/// A sentence of a reasonable length.
fn text(fields: &Fields<'_>, key: &'static str, base: Option<String>) -> Result<String, ReadError> {
    const ALLOWED: &str = "1 to 500 characters on one line";
    let Some(field) = fields.optional(key) else {
        return base.ok_or_else(|| fields.missing(key, ALLOWED));
    };
    let text = field.text(ALLOWED)?;
    let fits = (1..=500).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    match fits {
        true => Ok(text.to_owned()),
        false => Err(field.error(format!("is {}; must be {ALLOWED}", quoted(text)))),
    }
}

#[cfg(test)]
mod tests;
