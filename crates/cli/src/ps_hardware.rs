//! `gpreempt ps` without a service, and `ps --hardware`: what drivers and kernel show by
//! themselves.
//!
//! Reads only, except that leftovers of sessions without a keeper are undone first.

use gpreempt_device::amd::KfdLocation;
use gpreempt_device::amd::probe::KfdPaths;
use gpreempt_device::amd::queue::{Kind, ListedQueue, queues_of, users};
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::change::undo;
use gpreempt_device::journal::{GpuChange, Journal, ProcessRecord};
use gpreempt_device::keeper;
use gpreempt_device::nvidia::change::switch_counts;
use gpreempt_device::nvidia::driver::{Driver, DriverError};
use gpreempt_device::nvidia::gpu::{self, Gpu};
use gpreempt_device::nvidia::process_discovery::{GpuProcess, gpu_processes};
use gpreempt_device::nvidia::rm_objects::{Client, Device, Engine, Group};
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use serde::Serialize;

use crate::args::PsArgs;
use crate::failure::Failure;
use crate::{driver_gate, output, service};

#[derive(Serialize)]
struct Row {
    pid: u32,
    start_ticks: u64,
    uid: u32,
    name: String,
    container: Option<String>,
    devices: Vec<String>,
    /// Its use of each of them.
    uses: Vec<Use>,
    groups: usize,
    channels: usize,
    /// Time slices of the compute groups.
    slices_us: Vec<u64>,
    /// Context switches away from it, and how many of them inside of a kernel.
    switches: Option<Switches>,
    state: State,
    /// Why the rest is unknown.
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

/// What a session of gpreempt changed.
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
    if let Some(path) = service::died_at().filter(|_| !args.hardware) {
        output::warn(args.json, &service::daemon_died_message(&path));
    }
    // Without a driver no process uses a GPU, which is an answer and no error.
    if !matches!(Driver::find(), Err(DriverError::Absent)) {
        driver_gate::for_reading(args.driver)?;
    }
    // Beside a service this command only reads.
    if !args.hardware {
        clean_up();
    }
    let processes =
        gpu_processes().map_err(|error| Failure::run(format_args!("no /proc: {error}")))?;
    let touched = touched_processes();
    let gpus = gpu::all();
    let rows: Vec<Row> = processes
        .iter()
        .map(|process| nvidia_row(process, &touched, &gpus))
        .chain(amd_rows(&KfdLocation::from_environment().paths(), &touched))
        // Monitoring tools, this command included, open the driver and run nothing.
        .filter(|row| args.all || row.groups > 0 || row.problem.is_some())
        .collect();
    if args.json {
        return output::print_json(&rows);
    }
    if rows.is_empty() {
        return output::print("No process uses a GPU, as far as this user may see.\n");
    }
    output::print(&text(&rows))
}

/// Undoes what sessions without a keeper left. A listing does not fail because of it: what
/// could not be undone is in the listing.
fn clean_up() {
    let Ok(journal) = Journal::open() else { return };
    let Ok(_lock) = journal.lock() else { return };
    let _ = keeper::clean_up(&journal, undo);
}

fn nvidia_row(process: &GpuProcess, touched: &[(ProcessKey, State)], gpus: &[Gpu]) -> Row {
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

/// Processes that a session of gpreempt has changed.
fn touched_processes() -> Vec<(ProcessKey, State)> {
    let sessions = Journal::open().and_then(|journal| journal.sessions()).unwrap_or_default();
    let state = |entry: &ProcessRecord| {
        let stopped = entry.changes.iter().any(GpuChange::is_stop);
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
    let mut text = output::table(&table);
    for row in rows {
        if let Some(problem) = &row.problem {
            text.push_str(&format!("{problem}\n"));
        }
    }
    text
}

/// A row for each process that the kernel lists; none without AMD devices.
fn amd_rows(places: &KfdPaths, touched: &[(ProcessKey, State)]) -> Vec<Row> {
    let topology = Topology::read(&places.sysfs).unwrap_or_default();
    let pids = users(&places.sysfs).unwrap_or_default().into_iter();
    // Processes that end meanwhile are omitted.
    let found = pids.filter_map(|pid| {
        Some((ProcessInfo::read(pid).ok()?, queues_of(&places.sysfs, pid).unwrap_or_default()))
    });
    found.map(|(info, queues)| amd_row(info, &queues, &topology, touched)).collect()
}

fn amd_row(
    info: ProcessInfo,
    queues: &[ListedQueue],
    topology: &Topology,
    touched: &[(ProcessKey, State)],
) -> Row {
    let is_used = |node: &&Node| queues.iter().any(|queue| queue.gpu_id == node.gpu_id);
    let used = || topology.devices().filter(is_used);
    Row {
        pid: info.key.pid,
        start_ticks: info.key.start_ticks,
        uid: info.uid,
        name: info.name,
        container: info.container,
        devices: used().map(Node::uuid).collect(),
        uses: used().map(|node| use_of(node, queues)).collect(),
        groups: compute(queues),
        channels: queues.len(),
        slices_us: Vec::new(),
        switches: None,
        state: State::of(info.key, touched),
        problem: None,
    }
}

/// The use of one device: a group is a compute queue, and every queue is a channel.
fn use_of(node: &Node, queues: &[ListedQueue]) -> Use {
    let here: Vec<ListedQueue> =
        queues.iter().filter(|queue| queue.gpu_id == node.gpu_id).copied().collect();
    let groups = compute(&here);
    let (uuid, pci) = (node.uuid(), Some(node.pci()));
    Use { uuid, pci, contexts: groups, groups, channels: here.len() }
}

fn compute(queues: &[ListedQueue]) -> usize {
    queues.iter().filter(|queue| queue.kind == Kind::Compute).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn processes_are_listed_with_what_they_have_on_each_device() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-ps-amd", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let places = KfdPaths::emulated(&root);
        assert!(amd_rows(&places, &[]).is_empty());
        let node = places.sysfs.join("topology/nodes/1");
        fs::create_dir_all(&node).unwrap();
        fs::write(node.join("gpu_id"), "77").unwrap();
        fs::write(node.join("properties"), "unique_id 5\nlocation_id 1280\n").unwrap();
        let own = ProcessInfo::read(std::process::id()).unwrap();
        for (queue, kind) in [(0, 0), (1, 0), (2, 1)] {
            let folder = places.sysfs.join(format!("proc/{}/queues/{queue}", own.key.pid));
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("gpuid", 77), ("type", kind), ("size", 4096)] {
                fs::write(folder.join(file), value.to_string()).unwrap();
            }
        }
        let rows = amd_rows(&places, &[(own.key, State::Stopped)]);
        assert_eq!((rows.len(), rows[0].groups, rows[0].channels), (1, 2, 3));
        assert_eq!((rows[0].pid, rows[0].state), (own.key.pid, State::Stopped));
        assert_eq!(rows[0].uses[0].pci.as_deref(), Some("0000:05:00.0"));
        fs::remove_dir_all(root).unwrap();
    }
}
