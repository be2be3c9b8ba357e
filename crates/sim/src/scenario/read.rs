//! A scenario from TOML.

use std::path::Path;

use super::names::Names;
use super::{Scenario, after, estimate, fault, kernel, scheduler, task};
use crate::fields::{Field, Fields, ReadError, listed, quoted, with_root};
use crate::model::{DeviceModel, machine_kind, read_model};

pub(super) const KEYS: &[&str] = &[
    "name",
    "device",
    "machine",
    "devices",
    "seed",
    "duration_ms",
    "scheduler",
    "kernel",
    "task",
    "fault",
];

const DEVICES_MAX: u32 = 16;
const KERNELS_MAX: usize = 256;
const TASKS_MAX: usize = 256;
const FAULTS_MAX: usize = 256;

/// Reads a scenario. `file_name` is what errors call it. A device that is not built in is a
/// file; `resolve` gets its path as the scenario has it, relative to the scenario, and returns
/// its text or the reason why not.
///
/// # Errors
/// The first thing wrong with the text, or with the device file it names.
pub fn read_scenario(
    file_name: &str,
    text: &str,
    resolve: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Scenario, ReadError> {
    with_root(file_name, text, KEYS, |fields| scenario(file_name, fields, resolve))
}

fn scenario(
    file_name: &str,
    fields: &Fields<'_>,
    resolve: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Scenario, ReadError> {
    let name = fields.name("name")?;
    let model = device(file_name, &fields.required("device", &device_allowed())?, resolve)?;
    let machine = fields.optional("machine").map(|field| machine_kind(&field));
    let machine = machine.transpose()?.unwrap_or(model.machine);
    let devices = fields.u32("devices", 1..=DEVICES_MAX, 1)?;
    let seed = fields.u64("seed", 0..=u64::MAX, 1)?;
    let duration = fields.duration("duration_ms", 1..=task::MS_MAX, None)?;

    let scheduler = fields
        .optional("scheduler")
        .map(|field| scheduler::scheduler(&field.table(scheduler::KEYS)?))
        .transpose()?;

    let kernel_tables = some_tables(fields, "kernel", KERNELS_MAX, kernel::KEYS)?;
    let kernel_names = Names::read("kernel", &kernel_tables)?;
    let kernels = kernel_tables.iter().map(|table| kernel::kernel(table, &model));
    let kernels = kernels.collect::<Result<_, _>>()?;

    let task_tables = some_tables(fields, "task", TASKS_MAX, task::KEYS)?;
    let task_names = Names::read("task", &task_tables)?;
    let around = task::Surroundings { devices, kernels: &kernel_names, tasks: &task_names };
    let tasks = task_tables.iter().map(|table| task::task(table, &around));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    after::check(&tasks, &task_tables)?;

    let scheduled = scheduler.is_some();
    let around = fault::Surroundings { devices, tasks: &task_names, scheduled };
    let faults = fields.tables("fault", FAULTS_MAX, fault::KEYS)?;
    let faults = faults.iter().map(|table| fault::fault(table, &around));
    let faults = faults.collect::<Result<_, _>>()?;

    let scenario = Scenario {
        name,
        model,
        machine,
        devices,
        seed,
        duration,
        scheduler,
        kernels,
        tasks,
        faults,
    };
    estimate::check(&scenario, &task_tables)?;
    Ok(scenario)
}

/// Tables of which there must be one.
fn some_tables<'d>(
    fields: &Fields<'d>,
    key: &'static str,
    count_max: usize,
    known: &'static [&'static str],
) -> Result<Vec<Fields<'d>>, ReadError> {
    let tables = fields.tables(key, count_max, known)?;
    match tables.is_empty() {
        true => Err(fields.missing(key, &format!("at least one `[[{key}]]`"))),
        false => Ok(tables),
    }
}

/// The model that `field` names, built in or in a file.
fn device(
    scenario_file: &str,
    field: &Field<'_>,
    resolve: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<DeviceModel, ReadError> {
    let allowed = device_allowed();
    let name = field.text(&allowed)?;
    if let Some(model) = DeviceModel::built_in(name) {
        return Ok(model);
    }
    if !name.ends_with(".toml") {
        return Err(field.error(format!("is {}; must be {allowed}", quoted(name))));
    }
    let text = resolve(name)
        .map_err(|reason| field.error(format!("cannot read {}: {reason}", quoted(name))))?;
    read_model(&Path::new(scenario_file).with_file_name(name).to_string_lossy(), &text)
}

fn device_allowed() -> String {
    let names = listed(DeviceModel::built_in_names().iter().copied());
    format!("one of: {names}; or the path of a file that ends in .toml")
}
