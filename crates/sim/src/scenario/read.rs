//! A scenario from TOML: the tables as they are written, checked and converted.
//!
//! serde checks types and ranges. Everything that depends on another value (names, the number of
//! devices, the device model) is checked by the `convert` of its table.

use std::collections::BTreeMap;
use std::path::Path;

use gpreempt_core::config::{Aging, Config};
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use serde::Deserialize;

use super::{
    Arrivals, FaultKind, FaultSpec, KernelSpec, PriorityChange, ProgramSource, RequestStep,
    Scenario, SchedulerSpec, TaskSpec, checks,
};
use crate::fields::{
    Budget, Document, FieldError, Int, Items, Name, Policy, PriorityLevel, ReadError, Table,
    Within, exactly_one, listed, nearest, quoted,
};
use crate::isa::Program;
use crate::kernels;
use crate::model::{DeviceModel, MEMORY_BYTES_MAX, MachineKind, read_model};

/// The longest time anything in a scenario may take or wait: an hour.
const MS_MAX: u64 = 3_600_000;
const US_MAX: u64 = MS_MAX * 1_000;
/// The longest of the scheduler's own times, and of CPU work after a launch: 10 s.
const SCHEDULER_US_MAX: u64 = 10_000_000;
/// The work of a kernel is handed over in nanoseconds in a register of 32 bits: 4 s.
const WORK_NS_MAX: u64 = 4_000_000_000;
/// More than any device has.
const MEMORY_MIB_MAX: u64 = MEMORY_BYTES_MAX >> 20;
/// More waves in one launch are a mistake.
const WAVES_MAX: u64 = 1_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScenario {
    name: Name,
    device: String,
    machine: Option<MachineKind>,
    devices: Option<Int<1, 16>>,
    seed: Option<Int<0, { u64::MAX }>>,
    duration_ms: Int<1, MS_MAX>,
    scheduler: Option<Table<RawScheduler>>,
    #[serde(default)]
    kernel: Items<Table<RawKernel>, 256>,
    #[serde(default)]
    task: Items<Table<RawTask>, 256>,
    #[serde(default)]
    fault: Items<Table<RawFault>, 256>,
}

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
    let document = Document::parse(file_name, text)?;
    let raw: RawScenario = document.read()?;
    let model = match DeviceModel::built_in(&raw.device) {
        Some(model) => model,
        None => {
            let text = device_text(&raw.device, resolve);
            let text = text.map_err(|error| document.locate(error.within("device")))?;
            let path = Path::new(file_name).with_file_name(&raw.device);
            read_model(&path.to_string_lossy(), &text)?
        }
    };
    raw.convert(model).map_err(|error| document.locate(error))
}

/// The text of the device file called `name`.
fn device_text(
    name: &str,
    resolve: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<String, FieldError> {
    let written = quoted(name);
    if !name.ends_with(".toml") {
        let names = listed(DeviceModel::built_in_names().iter().copied());
        return Err(FieldError::here(format!(
            "is {written}; must be one of: {names}; or the path of a file that ends in .toml"
        )));
    }
    resolve(name).map_err(|reason| FieldError::here(format!("cannot read {written}: {reason}")))
}

impl RawScenario {
    fn convert(self, model: DeviceModel) -> Result<Scenario, FieldError> {
        let (kernels, tasks) = (self.kernel.0, self.task.0);
        for (key, is_empty) in [("kernel", kernels.is_empty()), ("task", tasks.is_empty())] {
            if is_empty {
                let message = format!("is missing; must be at least one `[[{key}]]`");
                return Err(FieldError::at(key, message));
            }
        }
        let kernel_names = Names::new("kernel", kernels.iter().map(|kernel| &kernel.0.name))?;
        let task_names = Names::new("task", tasks.iter().map(|task| &task.0.name))?;
        let scheduler = self.scheduler.map(|table| table.0.convert().within("scheduler"));
        let scheduler = scheduler.transpose()?;
        let devices = self.devices.map_or(1, Int::u32);

        let kernel = |(index, kernel): (usize, Table<RawKernel>)| {
            kernel.0.convert(&model).within_item("kernel", index)
        };
        let kernels = kernels.into_iter().enumerate().map(kernel).collect::<Result<_, _>>()?;
        let task = |(index, task): (usize, Table<RawTask>)| {
            let task = task.0.convert(devices, &kernel_names, &task_names);
            task.within_item("task", index)
        };
        let tasks = tasks.into_iter().enumerate().map(task).collect::<Result<Vec<_>, _>>()?;
        checks::dependencies(&tasks)?;
        let fault = |(index, fault): (usize, Table<RawFault>)| {
            let fault = fault.0.convert(devices, &task_names, scheduler.is_some());
            fault.within_item("fault", index)
        };
        let faults = self.fault.0.into_iter().enumerate().map(fault).collect::<Result<_, _>>()?;

        let scenario = Scenario {
            name: self.name.0,
            machine: self.machine.unwrap_or(model.machine),
            model,
            devices,
            seed: self.seed.map_or(1, |seed| seed.0),
            duration: self.duration_ms.ms(),
            scheduler,
            kernels,
            tasks,
            faults,
        };
        checks::memory(&scenario)?;
        checks::amount_of_work(&scenario)?;
        Ok(scenario)
    }
}

/// The names of all kernels or of all tasks, each with its index.
struct Names {
    what: &'static str,
    index: BTreeMap<String, usize>,
}

impl Names {
    fn new<'n>(
        what: &'static str,
        names: impl Iterator<Item = &'n Name>,
    ) -> Result<Self, FieldError> {
        let mut index = BTreeMap::new();
        for (number, name) in names.enumerate() {
            if let Some(earlier) = index.insert(name.0.clone(), number) {
                let message =
                    format!("{} is already the name of {what}[{earlier}]", quoted(&name.0));
                return Err(FieldError::at("name", message).within_item(what, number));
            }
        }
        Ok(Self { what, index })
    }

    /// The index of the one called `name`, which is the value of `key`.
    fn find(&self, key: &str, name: &str) -> Result<usize, FieldError> {
        self.index.get(name).copied().ok_or_else(|| {
            let names = || self.index.keys().map(String::as_str);
            let advice = match nearest(name, names()) {
                Some(meant) => format!("did you mean {}?", quoted(meant)),
                None => format!("must be one of: {}", listed(names())),
            };
            let message = format!("no {} is called {}; {advice}", self.what, quoted(name));
            FieldError::at(key, message)
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScheduler {
    policy: Option<Policy>,
    interval_us: Option<Int<INTERVAL_US_MIN, INTERVAL_US_MAX>>,
    slice_us: Option<Int<1, SCHEDULER_US_MAX>>,
    aging: Option<Table<RawAging>>,
    preempt_timeout_us: Option<Int<1, SCHEDULER_US_MAX>>,
    hint_max_us: Option<Int<1, SCHEDULER_US_MAX>>,
    linger_max_us: Option<Int<0, SCHEDULER_US_MAX>>,
    hold: Option<bool>,
    swap_turn_ms: Option<Int<1, MS_MAX>>,
}

const INTERVAL_US_MIN: u64 = Config::INTERVAL_MIN.as_micros();
const INTERVAL_US_MAX: u64 = Config::INTERVAL_MAX.as_micros();

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAging {
    after_ms: Int<1, MS_MAX>,
    grant_ms: Int<1, MS_MAX>,
}

impl RawScheduler {
    fn convert(self) -> Result<SchedulerSpec, FieldError> {
        let default = Config::default();
        let aging = self
            .aging
            .map(|table| Aging { after: table.0.after_ms.ms(), grant: table.0.grant_ms.ms() });
        let config = Config {
            policy: self.policy.map_or(default.policy, |policy| policy.0),
            interval: self.interval_us.map_or(default.interval, Int::us),
            slice: self.slice_us.map_or(default.slice, Int::us),
            aging,
            preempt_timeout: self.preempt_timeout_us.map_or(default.preempt_timeout, Int::us),
            hint_max: self.hint_max_us.map_or(default.hint_max, Int::us),
            linger_max: self.linger_max_us.map_or(default.linger_max, Int::us),
            min_share: default.min_share,
        };
        // The ranges above are the scheduler's; should it get stricter, its error is shown.
        config.check().map_err(|error| FieldError::here(error.to_string()))?;
        let (hold, swap_turn) = (self.hold.unwrap_or(true), self.swap_turn_ms.map(Int::ms));
        Ok(SchedulerSpec { config, hold, swap_turn })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKernel {
    name: Name,
    program: Option<String>,
    asm: Option<String>,
    us: Option<Int<1, { WORK_NS_MAX / 1_000 }>>,
    ns: Option<Int<1, WORK_NS_MAX>>,
    groups: Int<1, WAVES_MAX>,
    waves: Option<Int<1, WAVES_MAX>>,
}

impl RawKernel {
    fn convert(self, model: &DeviceModel) -> Result<KernelSpec, FieldError> {
        exactly_one([("program", self.program.is_some()), ("asm", self.asm.is_some())])?;
        exactly_one([("us", self.us.is_some()), ("ns", self.ns.is_some())])?;
        let program = match (self.program, self.asm) {
            (Some(name), _) if kernels::built_in(&name).is_none() => {
                let names = listed(kernels::built_in_names());
                let message = format!("is {}; must be one of: {names}", quoted(&name));
                return Err(FieldError::at("program", message));
            }
            (Some(name), _) => ProgramSource::BuiltIn(name),
            (None, text) => {
                let text = text.unwrap_or_default();
                // The machine assembles the text again when it needs the program.
                Program::assemble("asm", &text).map_err(|error| {
                    let message = format!("line {} of the program: {}", error.line, error.message);
                    FieldError::at("asm", message)
                })?;
                ProgramSource::Assembly(text)
            }
        };
        let (groups, waves) = (self.groups.u32(), self.waves.map_or(1, Int::u32));
        // The waves of a work-group share a compute unit, so more than fit on one never start.
        if waves > model.waves_per_unit {
            let max = model.waves_per_unit;
            let message = format!("is {waves}; must be an integer from 1 to {max}");
            return Err(FieldError::at("waves", message));
        }
        if u64::from(groups) * u64::from(waves) > WAVES_MAX {
            let message =
                format!("{groups} groups of {waves} waves; must be at most {WAVES_MAX} waves");
            return Err(FieldError::at("groups", message));
        }
        let work = self.us.map(Int::us).or_else(|| self.ns.map(Int::ns)).unwrap_or_default();
        Ok(KernelSpec { name: self.name.0, program, work, groups, waves })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTask {
    name: Name,
    priority: Option<PriorityLevel>,
    weight: Option<Int<1, 1_000>>,
    deadline_us: Option<Int<1, US_MAX>>,
    latency_budget: Option<Budget>,
    gang: Option<Name>,
    devices: Option<Items<Int<0, 15>, 16>>,
    memory_mib: Option<Int<1, MEMORY_MIB_MAX>>,
    evictable: Option<bool>,
    queues: Option<Int<1, 64>>,
    start_ms: Option<Int<0, MS_MAX>>,
    after: Option<String>,
    arrivals: Table<RawArrivals>,
    requests: Option<Int<1, 1_000_000_000>>,
    #[serde(default)]
    request: Items<Table<RawStep>, 1_000>,
    hint_us: Option<Int<1, US_MAX>>,
    #[serde(default)]
    changes: Items<Table<RawChange>, 1_000>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStep {
    kernel: String,
    count: Option<Int<1, 100_000>>,
    sync: Option<bool>,
    cpu_us: Option<Int<0, SCHEDULER_US_MAX>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChange {
    at_ms: Int<0, MS_MAX>,
    priority: PriorityLevel,
}

impl RawTask {
    fn convert(self, devices: u32, kernels: &Names, tasks: &Names) -> Result<TaskSpec, FieldError> {
        if self.request.0.is_empty() {
            return Err(FieldError::at("request", "is empty; must have at least one step"));
        }
        let step = |(index, Table(step)): (usize, Table<RawStep>)| {
            Ok(RequestStep {
                kernel: kernels.find("kernel", &step.kernel).within_item("request", index)?,
                count: step.count.map_or(1, Int::u32),
                sync: step.sync.unwrap_or(true),
                cpu: step.cpu_us.map_or(Duration::ZERO, Int::us),
            })
        };
        Ok(TaskSpec {
            name: self.name.0,
            priority: self.priority.map_or(Priority::DEFAULT, |level| level.0),
            weight: self.weight.map_or(1, Int::u32),
            deadline: self.deadline_us.map(Int::us),
            latency_budget: self.latency_budget.map_or(LatencyBudget::ZERO, |budget| budget.0),
            gang: self.gang.map(|gang| gang.0),
            devices: task_devices(self.devices, devices)?,
            memory: self.memory_mib.map_or(0, |mib| mib.0 << 20),
            is_evictable: self.evictable.unwrap_or(false),
            queues: self.queues.map_or(1, Int::u32),
            start: self.start_ms.map_or(Duration::ZERO, Int::ms),
            after: self.after.map(|name| tasks.find("after", &name)).transpose()?,
            arrivals: self.arrivals.0.convert().within("arrivals")?,
            requests_max: self.requests.map(|count| count.0),
            request: self.request.0.into_iter().enumerate().map(step).collect::<Result<_, _>>()?,
            hint: self.hint_us.map(Int::us),
            changes: changes(self.changes)?,
        })
    }
}

fn task_devices(
    written: Option<Items<Int<0, 15>, 16>>,
    count: u32,
) -> Result<Vec<u32>, FieldError> {
    let Some(written) = written else { return Ok(vec![0]) };
    let mut devices = Vec::new();
    for (index, device) in written.0.into_iter().map(Int::u32).enumerate() {
        let message = match device {
            _ if device >= count => {
                format!("is {device}; must be an integer from 0 to {}", count - 1)
            }
            _ if devices.contains(&device) => format!("is {device} again; must be distinct"),
            _ => {
                devices.push(device);
                continue;
            }
        };
        return Err(FieldError::here(message).within_item("devices", index));
    }
    match devices.is_empty() {
        true => Err(FieldError::at("devices", "is empty; must have at least one device")),
        false => Ok(devices),
    }
}

fn changes(written: Items<Table<RawChange>, 1_000>) -> Result<Vec<PriorityChange>, FieldError> {
    let mut changes: Vec<PriorityChange> = Vec::new();
    for (index, Table(change)) in written.0.into_iter().enumerate() {
        let at = change.at_ms.ms();
        if changes.last().is_some_and(|last| at <= last.at) {
            let message = "is not later than the one before; must be ascending";
            return Err(FieldError::at("at_ms", message).within_item("changes", index));
        }
        changes.push(PriorityChange { at, priority: change.priority.0 });
    }
    Ok(changes)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawArrivals {
    every_us: Option<Int<1, US_MAX>>,
    phase_us: Option<Int<0, US_MAX>>,
    poisson_us: Option<Int<1, US_MAX>>,
    trace_us: Option<Items<Int<0, US_MAX>, 100_000>>,
    back_to_back: Option<Int<1, 1_000>>,
}

impl RawArrivals {
    fn convert(self) -> Result<Arrivals, FieldError> {
        let kind = exactly_one([
            ("every_us", self.every_us.is_some()),
            ("poisson_us", self.poisson_us.is_some()),
            ("trace_us", self.trace_us.is_some()),
            ("back_to_back", self.back_to_back.is_some()),
        ])?;
        if kind != "every_us" && self.phase_us.is_some() {
            return Err(FieldError::at("phase_us", "is used only with `every_us`"));
        }
        if let Some(every) = self.every_us {
            let phase = self.phase_us.map_or(Duration::ZERO, Int::us);
            return Ok(Arrivals::Periodic { every: every.us(), phase });
        }
        if let Some(mean) = self.poisson_us {
            return Ok(Arrivals::Poisson { mean: mean.us() });
        }
        if let Some(depth) = self.back_to_back {
            return Ok(Arrivals::BackToBack { depth: depth.u32() });
        }
        let times = self.trace_us.unwrap_or_default().0;
        if times.is_empty() {
            return Err(FieldError::at("trace_us", "is empty; must have at least one entry"));
        }
        if let Some(index) = (1..times.len()).find(|index| times[*index].0 < times[index - 1].0) {
            let (time, last) = (times[index].0, times[index - 1].0);
            let message = format!("is {time} after {last}; must be ascending");
            return Err(FieldError::here(message).within_item("trace_us", index));
        }
        Ok(Arrivals::Trace(times.into_iter().map(Int::us).collect()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFault {
    kind: RawFaultKind,
    at_ms: Int<0, MS_MAX>,
    lasts_ms: Option<Int<0, MS_MAX>>,
    task: Option<String>,
    device: Option<Int<0, 15>>,
    by_us: Option<Int<1, US_MAX>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawFaultKind {
    PreemptTimeout,
    ObservationLost,
    ObservationLate,
    TaskDeath,
    SchedulerCrash,
    DeviceReset,
    ClockAhead,
    ClockBehind,
}

impl RawFaultKind {
    /// The name in the file, and the key that says more about a fault of this kind.
    fn name_and_detail(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::PreemptTimeout => ("preempt-timeout", None),
            Self::ObservationLost => ("observation-lost", None),
            Self::ObservationLate => ("observation-late", Some("by_us")),
            Self::TaskDeath => ("task-death", Some("task")),
            Self::SchedulerCrash => ("scheduler-crash", None),
            Self::DeviceReset => ("device-reset", Some("device")),
            Self::ClockAhead => ("clock-ahead", Some("by_us")),
            Self::ClockBehind => ("clock-behind", Some("by_us")),
        }
    }
}

impl RawFault {
    fn convert(
        self,
        devices: u32,
        tasks: &Names,
        is_scheduled: bool,
    ) -> Result<FaultSpec, FieldError> {
        let (name, detail) = self.kind.name_and_detail();
        for (key, is_there) in [
            ("task", self.task.is_some()),
            ("device", self.device.is_some()),
            ("by_us", self.by_us.is_some()),
        ] {
            if is_there && Some(key) != detail {
                return Err(FieldError::at(key, format!("is not used by `{name}`")));
            }
        }
        let missing = |key: &str, allowed: &str| {
            FieldError::at(key, format!("is missing; must be {allowed}"))
        };
        let by = || {
            let allowed = format!("an integer from 1 to {US_MAX}");
            self.by_us.map(Int::us).ok_or_else(|| missing("by_us", &allowed))
        };
        let kind = match self.kind {
            RawFaultKind::PreemptTimeout => FaultKind::PreemptTimeout,
            RawFaultKind::ObservationLost => FaultKind::ObservationLost,
            RawFaultKind::ObservationLate => FaultKind::ObservationLate(by()?),
            RawFaultKind::TaskDeath => {
                let task = self.task.ok_or_else(|| missing("task", "the name of a task"))?;
                FaultKind::TaskDeath(tasks.find("task", &task)?)
            }
            RawFaultKind::SchedulerCrash if !is_scheduled => {
                let message = "there is no scheduler; must have `[scheduler]` too";
                return Err(FieldError::at("kind", message));
            }
            RawFaultKind::SchedulerCrash => FaultKind::SchedulerCrash,
            RawFaultKind::DeviceReset => {
                let allowed = format!("an integer from 0 to {}", devices - 1);
                let device = self.device.ok_or_else(|| missing("device", &allowed))?.u32();
                if device >= devices {
                    let message = format!("is {device}; must be {allowed}");
                    return Err(FieldError::at("device", message));
                }
                FaultKind::DeviceReset(device)
            }
            RawFaultKind::ClockAhead => FaultKind::ClockAhead(by()?),
            RawFaultKind::ClockBehind => FaultKind::ClockBehind(by()?),
        };
        let lasts = self.lasts_ms.map_or(Duration::ZERO, Int::ms);
        Ok(FaultSpec { at: self.at_ms.ms(), lasts, kind })
    }
}
