//! What can be launched.

use super::{KernelSpec, ProgramSource};
use crate::fields::{Field, Fields, ReadError};
use crate::isa::Program;
use crate::kernels;
use crate::model::DeviceModel;

pub(super) const KEYS: &[&str] = &["name", "program", "asm", "us", "ns", "groups", "waves"];

/// A kernel that is busy longer is a mistake, and its nanoseconds no longer fit into the register
/// they are handed over in: 4 s.
const WORK_NS_MAX: u64 = 4_000_000_000;
/// More waves in one launch are a mistake.
const WAVES_MAX: u32 = 1_000_000;

/// Reads one table of `kernel`.
pub(super) fn kernel(fields: &Fields<'_>, model: &DeviceModel) -> Result<KernelSpec, ReadError> {
    let program = match fields.exactly_one(&["program", "asm"])? {
        ("asm", field) => ProgramSource::Assembly(assembly(&field)?),
        (_, field) => ProgramSource::BuiltIn(built_in(&field)?),
    };
    let (unit, _) = fields.exactly_one(&["us", "ns"])?;
    let work_max = if unit == "us" { WORK_NS_MAX / 1_000 } else { WORK_NS_MAX };
    let groups = fields.u32("groups", 1..=WAVES_MAX, None)?;
    // The waves of a work-group share a compute unit, so more than fit on one never start.
    let waves = fields.u32("waves", 1..=model.waves_per_unit, 1)?;
    if groups.saturating_mul(waves) > WAVES_MAX {
        let message =
            format!("{groups} groups of {waves} waves; must be at most {WAVES_MAX} waves");
        return Err(fields.error_at("groups", message));
    }
    Ok(KernelSpec {
        name: fields.name("name")?,
        program,
        work: fields.duration(unit, 1..=work_max, None)?,
        groups,
        waves,
    })
}

fn built_in(field: &Field<'_>) -> Result<String, ReadError> {
    field.choice(kernels::built_in_names(), |name| kernels::built_in(name).map(|_| name.to_owned()))
}

/// Text that assembles; the machine assembles it again when it needs it.
fn assembly(field: &Field<'_>) -> Result<String, ReadError> {
    let text = field.text("the text of a program")?;
    match Program::assemble("asm", text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            let message = format!("line {} of the program: {}", error.line, error.message);
            Err(field.error(message))
        }
    }
}
