//! `gpreempt attach --dry-run`: what an attach would change. Reads only.

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_device::amd::queue::users;
use gpreempt_device::amd::{KfdInstance, KfdLocation};
use gpreempt_device::nvidia::node::Node;
use gpreempt_device::nvidia::process_discovery::{GpuProcess, inspect_process};
use gpreempt_device::process::ProcessInfo;
use serde::Serialize;

use crate::args::{AttachArgs, ChangeArgs};
use crate::failure::Failure;
use crate::{driver_gate, output};

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    name: &'a str,
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_budget_percent: Option<u16>,
    slice: Option<&'static str>,
    contexts: Vec<ContextRow<'a>>,
}

#[derive(Serialize)]
struct ContextRow<'a> {
    gpu: Option<&'a str>,
    client: u32,
    group: u32,
    channels: usize,
    slice_us: Option<u64>,
}

/// What a priority changes on GPUs without time slices.
const ON_AMD: &str = "off its AMD GPUs while a higher priority has work there";

pub(super) fn print(args: &AttachArgs) -> Result<(), Failure> {
    let targets = targets(args)?;
    let rows: Vec<Row<'_>> =
        targets.iter().map(|(process, priority)| row(process, *priority, args)).collect();
    if args.json {
        return output::print_json(&rows);
    }
    let mut text = String::new();
    for row in &rows {
        let Row { pid, name, priority, .. } = row;
        let what = row.slice.map_or_else(|| ON_AMD.to_owned(), |slice| format!("slice {slice}"));
        let budget = row.latency_budget_percent;
        let budget =
            budget.map_or(String::new(), |percent| format!(", latency budget {percent} %"));
        text.push_str(&format!("{pid} ({name}): priority {priority}{budget}, {what}\n"));
        for context in &row.contexts {
            let gpu = context.gpu.unwrap_or("unknown GPU");
            let ContextRow { group, channels, .. } = context;
            let slice = context.slice_us.map_or_else(|| "unknown".into(), |us| format!("{us} us"));
            text.push_str(&format!(
                "  {gpu}: group {group:#x}, {channels} channels, slice is {slice}\n"
            ));
        }
    }
    text.push_str("nothing was changed\n");
    output::print(&text)
}

fn row<'a>(process: &'a InspectedProcess, priority: Priority, args: &AttachArgs) -> Row<'a> {
    let latency_budget_percent = args.latency_budget.map(LatencyBudget::percent);
    let (pid, name) = (process.info().key.pid, process.info().name.as_str());
    let InspectedProcess::Nvidia(process) = process else {
        let (priority, contexts) = (priority.level(), Vec::new());
        return Row { pid, name, priority, latency_budget_percent, slice: None, contexts };
    };
    let slice = match priority.class() {
        Class::Low => "1 us; preempted during the turn of another low process",
        Class::High => "1 s, or 5 ms beside another high process",
    };
    let mut contexts = Vec::new();
    for client in process.clients.as_deref().unwrap_or_default() {
        for device in &client.devices {
            contexts.extend(device.contexts().map(|context| ContextRow {
                gpu: device.uuid.as_deref(),
                client: client.handle,
                group: context.compute.handle,
                channels: context.channels().len(),
                slice_us: context.compute.slice_us,
            }));
        }
    }
    let (priority, slice) = (priority.level(), Some(slice));
    Row { pid, name, priority, latency_budget_percent, slice, contexts }
}

/// The devices that may be changed.
#[derive(Debug)]
struct ChangeableDevices {
    nvidia: Result<(), Failure>,
    amd: Option<KfdInstance>,
}

impl ChangeableDevices {
    /// Fails with the reason why NVIDIA GPUs may not be changed, if there are no others.
    fn find(args: &ChangeArgs) -> Result<Self, Failure> {
        let (nvidia, amd) =
            (driver_gate::for_changes(args), KfdLocation::from_environment().open().ok());
        match (nvidia, amd) {
            (Err(failure), None) => Err(failure),
            (nvidia, amd) => Ok(Self { nvidia, amd }),
        }
    }

    /// Inspects a process on the devices that it uses.
    fn inspect(&self, pid: u32) -> Result<InspectedProcess, Failure> {
        if self.amd.is_some() && uses_amd(pid) {
            return ProcessInfo::read(pid).map(InspectedProcess::Amd).map_err(Failure::input);
        }
        if let Err(Failure::Input(why) | Failure::Run(why)) = &self.nvidia {
            return Err(Failure::input(format_args!(
                "process {pid} does not use an AMD GPU, and {why}"
            )));
        }
        inspect_process(pid).map(InspectedProcess::Nvidia).map_err(Failure::input)
    }
}

/// Whether the kernel lists a process as a user of AMD devices. It needs no permission.
fn uses_amd(pid: u32) -> bool {
    let places = KfdLocation::from_environment().paths();
    users(&places.sysfs).is_ok_and(|users| users.contains(&pid))
}

/// A process, on the devices that it uses.
#[derive(Debug)]
enum InspectedProcess {
    Nvidia(GpuProcess),
    Amd(ProcessInfo),
}

impl InspectedProcess {
    const fn info(&self) -> &ProcessInfo {
        match self {
            Self::Nvidia(process) => &process.info,
            Self::Amd(info) => info,
        }
    }
}

/// The processes that the arguments name, and the priorities that they would get.
fn targets(args: &AttachArgs) -> Result<Vec<(InspectedProcess, Priority)>, Failure> {
    let devices = ChangeableDevices::find(&args.driver)?;
    let mut targets = Vec::new();
    for target in &args.processes {
        let pid = target.pid;
        let process = devices.inspect(pid)?;
        if let InspectedProcess::Nvidia(process) = &process {
            if let Err(problem) = &process.clients {
                return Err(Failure::input(problem));
            }
            if process.nodes.iter().any(|held| held.node == Node::Modeset) {
                return Err(Failure::input(format_args!(
                    "process {pid} drives a display; a priority could freeze the screen"
                )));
            }
        }
        // PANIC: the arguments allow 0 to 15 only.
        let priority = Priority::new(target.priority.unwrap_or(args.priority)).expect("a priority");
        targets.push((process, priority));
    }
    Ok(targets)
}
