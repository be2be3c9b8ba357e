//! `gpreempt ps`: who uses the GPUs.

mod amd;
mod scheduled;

use std::io::Write;

use gpreempt_device::act::undo;
use gpreempt_device::amd::SiteName;
use gpreempt_device::journal::{Act, Entry, Journal};
use gpreempt_device::keeper;
use gpreempt_device::nvidia::act::switch_counts;
use gpreempt_device::nvidia::discover::{Client, Device, Engine, Group};
use gpreempt_device::nvidia::driver::{Driver, DriverError};
use gpreempt_device::nvidia::gpu::{self, Gpu};
use gpreempt_device::nvidia::survey::{GpuProcess, survey};
use gpreempt_device::process::ProcessKey;
use serde::Serialize;

pub(crate) use scheduled::{devices_of, state_name, waiting};

use crate::args::PsArgs;
use crate::failure::Failure;
use crate::{daemon, driver_gate, output, text_table};

#[derive(Serialize)]
struct Row {
    pid: u32,
    start_ticks: u64,
    uid: u32,
    name: String,
    container: Option<String>,
    devices: Vec<String>,
    /// What it has on each of them.
    uses: Vec<Use>,
    groups: usize,
    channels: usize,
    /// Of the compute groups, in microseconds.
    slices_us: Vec<u64>,
    /// Times it was taken off its GPUs, and how many of those in the middle of a kernel.
    switches: Option<Switches>,
    state: State,
    /// Why nothing more is known.
    problem: Option<String>,
}

/// A process's use of one GPU.
#[derive(Serialize)]
struct Use {
    uuid: String,
    pci: Option<String>,
    contexts: usize,
    groups: usize,
    channels: usize,
}

#[derive(Serialize)]
struct Switches {
    saves: u64,
    saves_instruction: u64,
}

/// What we did to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Nothing.
    Untouched,
    /// It has a priority.
    Attached,
    /// It is off its GPUs.
    Stopped,
}

impl State {
    fn of(process: ProcessKey, touched: &[(ProcessKey, Self)]) -> Self {
        let found = touched.iter().find(|(key, _)| *key == process);
        found.map_or(Self::Untouched, |(_, state)| *state)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Untouched => "-",
            Self::Attached => "attached",
            Self::Stopped => "stopped",
        }
    }
}

pub(crate) fn main(args: &PsArgs) -> Result<(), Failure> {
    let client = if args.hardware { None } else { daemon::find()? };
    if let Some(client) = client {
        return scheduled::main(client, args);
    }
    if let Some(path) = daemon::died_at().filter(|_| !args.hardware) {
        warn(args, &daemon::obituary(&path));
    }
    // Without a driver nobody uses a GPU, which is an answer and no error.
    if !matches!(Driver::find(), Err(DriverError::Absent)) {
        driver_gate::for_reading(args.driver)?;
    }
    // Beside a service this command only reads.
    if !args.hardware {
        clean_up();
    }
    let processes = survey().map_err(|error| Failure::run(format_args!("no /proc: {error}")))?;
    let touched = touched_processes();
    let gpus = gpu::all();
    let rows: Vec<Row> = processes
        .iter()
        .map(|process| row(process, &touched, &gpus))
        .chain(amd::rows(&SiteName::from_environment().places(), &touched))
        // Tools that only look, such as monitors and ourselves, have nothing that runs.
        .filter(|row| args.all || row.groups > 0 || row.problem.is_some())
        .collect();
    if args.json {
        return output::print_json(&rows);
    }
    if rows.is_empty() {
        return output::print("No process uses a GPU, as far as we are shown.\n");
    }
    output::print(&text(&rows))
}

/// Says something beside the listing, in the same language.
fn warn(args: &PsArgs, warning: &str) {
    let line = match args.json {
        true => serde_json::json!({ "warning": warning }).to_string(),
        false => format!("gpreempt: {warning}"),
    };
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Undoes what sessions without a keeper left behind. A listing does not fail because of it: what
/// could not be undone is in the listing.
fn clean_up() {
    let Ok(journal) = Journal::open() else { return };
    let Ok(_lock) = journal.lock() else { return };
    let _ = keeper::clean_up(&journal, undo);
}

fn row(process: &GpuProcess, touched: &[(ProcessKey, State)], gpus: &[Gpu]) -> Row {
    let clients: &[Client] = process.clients.as_deref().unwrap_or_default();
    let devices = || clients.iter().flat_map(|client| client.devices.iter());
    let groups = || devices().flat_map(|device| device.groups.iter());
    let compute = |group: &&Group| group.engine == Engine::Compute;
    Row {
        pid: process.info.key.pid,
        start_ticks: process.info.key.start_ticks,
        uid: process.info.uid,
        name: process.info.name.clone(),
        container: process.info.container.clone(),
        devices: devices().filter_map(|device| device.uuid.clone()).collect(),
        uses: devices().filter_map(|device| Use::of(device, gpus)).collect(),
        groups: groups().count(),
        channels: groups().map(|group| group.channels.len()).sum(),
        slices_us: groups().filter(compute).filter_map(|group| group.slice_us).collect(),
        switches: switches(process.info.key, clients),
        state: State::of(process.info.key, touched),
        problem: process.clients.as_ref().err().map(ToString::to_string),
    }
}

impl Use {
    fn of(device: &Device, gpus: &[Gpu]) -> Option<Self> {
        let uuid = device.uuid.clone()?;
        let pci = gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.pci.clone());
        Some(Self {
            uuid,
            pci,
            contexts: device.contexts().count(),
            groups: device.groups.len(),
            channels: device.groups.iter().map(|group| group.channels.len()).sum(),
        })
    }
}

/// How often the hardware switched away from a process, over all of its compute groups.
fn switches(process: ProcessKey, clients: &[Client]) -> Option<Switches> {
    let mut total = None;
    for client in clients {
        for device in &client.devices {
            let Some(subdevice) = device.subdevice else { continue };
            for group in device.groups.iter().filter(|group| group.engine == Engine::Compute) {
                let counts = switch_counts(process, client.handle, subdevice, group.handle);
                let Ok(counts) = counts else { continue };
                let sum = total.get_or_insert(Switches { saves: 0, saves_instruction: 0 });
                sum.saves += u64::from(counts.saves);
                sum.saves_instruction += u64::from(counts.saves_instruction);
            }
        }
    }
    total
}

/// Processes that some session of ours has changed.
fn touched_processes() -> Vec<(ProcessKey, State)> {
    let sessions = Journal::open().and_then(|journal| journal.sessions()).unwrap_or_default();
    let state = |entry: &Entry| {
        let stopped = entry.acts.iter().any(Act::is_stop);
        if stopped { State::Stopped } else { State::Attached }
    };
    sessions
        .iter()
        .flat_map(|session| session.entries().unwrap_or_default())
        .map(|entry| (entry.process, state(&entry)))
        .collect()
}

fn text(rows: &[Row]) -> String {
    let heads = ["name", "pid", "uid", "gpu", "groups", "channels", "slice", "state"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for row in rows {
        let gpus: Vec<&str> =
            row.devices.iter().map(|uuid| uuid.get(..12).unwrap_or(uuid)).collect();
        let slices: Vec<String> = row.slices_us.iter().map(|us| format!("{us}us")).collect();
        table.push(vec![
            row.name.clone(),
            row.pid.to_string(),
            row.uid.to_string(),
            gpus.join(","),
            row.groups.to_string(),
            row.channels.to_string(),
            slices.join(","),
            row.state.name().to_owned(),
        ]);
    }
    let mut text = text_table::render(&table);
    for row in rows {
        if let Some(problem) = &row.problem {
            text.push_str(&format!("{problem}\n"));
        }
    }
    text
}
