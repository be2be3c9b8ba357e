//! `gpreempt suspend --gpu GPU --everything`: a short lease for each process on one GPU, renewed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpreempt_device::amd::KfdLocation;
use gpreempt_device::amd::queue::queues_of;
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::nvidia::process_discovery::{GpuProcess, inspect_process};
use gpreempt_wire::client::Client;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use serde_json::json;

use crate::args::SuspendArgs;
use crate::failure::Failure;
use crate::output;
use crate::service::{self, ServiceClient};
use crate::signals::Stop;
use crate::suspend::{still_on, suspend};

/// How often new processes are suspended and leases are renewed: a third of the time of a lease.
const ROUND: Duration = Duration::from_millis(100);
/// Characters of a UUID that are enough to name a GPU.
const SHORT_NAME: usize = 8;

pub(crate) fn main(
    args: &SuspendArgs,
    mut service: ServiceClient,
    stop: &Stop,
) -> Result<(), Failure> {
    // PANIC: one option requires the other.
    let gpu = args.gpu.as_deref().expect("--everything requires --gpu");
    let until = args.time.map(|time| Instant::now() + time);
    let is_private = service.is_private();
    let suspender = GpuSuspender::new(&mut service.client, gpu, is_private);
    let result = suspender.and_then(|mut suspender| {
        let result = keep(args, (gpu, &mut suspender), until, stop);
        // Whatever happened, every process is resumed.
        let released = suspender.resume_all();
        let all = result?;
        released?;
        Ok(all)
    });
    service.end()?;
    print(args, "resumed", gpu, &result?, "was resumed")
}

/// Suspends until the time is over or a signal arrives. Returns the processes.
fn keep(
    args: &SuspendArgs,
    (gpu, suspender): (&str, &mut GpuSuspender<'_>),
    until: Option<Instant>,
    stop: &Stop,
) -> Result<BTreeSet<u32>, Failure> {
    let (mut known, mut reported) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let round = suspender.suspend_all(left)?;
        for (pid, why) in &round.refused {
            if reported.insert(*pid) {
                output::note(format_args!("{pid} was not suspended: {why}"));
            }
        }
        let new: BTreeSet<u32> = round.suspended.difference(&known).copied().collect();
        if !new.is_empty() {
            print(args, "stopped", gpu, &new, "is suspended")?;
        }
        known.extend(new);
        std::thread::sleep(left.unwrap_or(Duration::MAX).min(ROUND));
        if until.is_some_and(|until| until <= Instant::now()) || stop.is_set() {
            return Ok(known);
        }
    }
}

fn print(
    args: &SuspendArgs,
    line: &str,
    gpu: &str,
    pids: &BTreeSet<u32>,
    words: &str,
) -> Result<(), Failure> {
    if args.json {
        let line = json!({ "line": line, "gpu": gpu, "pids": pids, "time_ns": monotonic_ns() });
        return output::print(&format!("{line}\n"));
    }
    let text: String = pids.iter().map(|pid| format!("{pid} {words}\n")).collect();
    output::print(if text.is_empty() { "no process used that GPU\n" } else { &text })
}

/// One round: the suspended processes, and why others are not.
#[derive(Debug, Default)]
struct Round {
    suspended: BTreeSet<u32>,
    refused: BTreeMap<u32, String>,
}

/// Suspends the processes on one GPU.
struct GpuSuspender<'a> {
    client: &'a mut Client,
    uuid: String,
    suspended: BTreeSet<u32>,
}

impl<'a> GpuSuspender<'a> {
    fn new(client: &'a mut Client, gpu: &str, is_private: bool) -> Result<Self, Failure> {
        let snapshot = service::snapshot(client)?;
        let topology = Topology::read(&KfdLocation::from_environment().paths().sysfs);
        match find(&snapshot, &topology.unwrap_or_default(), gpu) {
            Some(uuid) => Ok(Self { client, uuid, suspended: BTreeSet::new() }),
            None => Err(unknown_gpu(&snapshot, gpu, is_private)),
        }
    }

    /// Suspends every process on the GPU, and renews the leases of those that are suspended.
    fn suspend_all(&mut self, left: Option<Duration>) -> Result<Round, Failure> {
        let snapshot = service::snapshot(self.client)?;
        let mut round = Round::default();
        for task in snapshot.tasks.iter().filter(|task| uses(task, &self.uuid, &snapshot)) {
            match suspend(self.client, service::process(task.pid)?, left) {
                Ok(()) => {
                    round.suspended.insert(task.pid);
                }
                Err(Failure::Input(why) | Failure::Run(why)) => {
                    round.refused.insert(task.pid, why);
                }
                Err(failure @ Failure::ReaderGone) => return Err(failure),
            }
        }
        let new: BTreeSet<u32> = round.suspended.difference(&self.suspended).copied().collect();
        if !new.is_empty() {
            // Recorded before the wait, so that they are resumed even if the wait fails.
            self.suspended.extend(&new);
            for (pid, why) in still_on(self.client, &new)? {
                round.suspended.remove(&pid);
                self.suspended.remove(&pid);
                round.refused.insert(pid, why);
            }
        }
        Ok(round)
    }

    fn resume_all(&mut self) -> Result<(), Failure> {
        for pid in std::mem::take(&mut self.suspended) {
            // The lease or the process may have ended: then there is nothing to resume.
            let _ = self.client.expect_ok(&Request::Resume { process: service::process(pid)? });
        }
        Ok(())
    }
}

/// The UUID of the GPU with that name: its number in `ps`, its UUID or the beginning of it, its PCI
/// address, its number among those of KFD, or a UUID that only an unscheduled process uses.
fn find(snapshot: &Snapshot, topology: &Topology, gpu: &str) -> Option<String> {
    let known = || snapshot.devices.iter().map(|device| device.uuid.clone());
    let is_named = |uuid: &String| uuid.eq_ignore_ascii_case(gpu);
    let by_number = snapshot.devices.iter().find(|device| device.id.to_string() == gpu);
    let by_number = by_number.map(|device| device.uuid.clone());
    let kfd = |(index, node): &(usize, &Node)| node.pci() == gpu || index.to_string() == gpu;
    let by_address = || topology.devices().enumerate().find(kfd).map(|(_, node)| node.uuid());
    let short = |uuid: &String| gpu.len() >= SHORT_NAME && uuid.starts_with(gpu);
    let only = || {
        let mut alike = known().filter(short);
        alike.next().filter(|_| alike.next().is_none())
    };
    let unscheduled = || {
        let tasks = snapshot.tasks.iter().filter(|task| task.queues.is_empty());
        tasks.flat_map(|task| uuids_of(task.pid)).find(is_named)
    };
    let found = known().find(is_named).or(by_number);
    found
        .or_else(|| by_address().filter(|uuid| known().any(|known| known == *uuid)))
        .or_else(only)
        .or_else(unscheduled)
}

/// The number of a GPU in the service.
pub(crate) fn number_of(client: &mut Client, gpu: &str) -> Result<u32, Failure> {
    let snapshot = service::snapshot(client)?;
    let topology = Topology::read(&KfdLocation::from_environment().paths().sysfs);
    let uuid = find(&snapshot, &topology.unwrap_or_default(), gpu);
    let device = snapshot.devices.iter().find(|device| Some(&device.uuid) == uuid.as_ref());
    device.map(|device| device.id).ok_or_else(|| unknown_gpu(&snapshot, gpu, false))
}

fn unknown_gpu(snapshot: &Snapshot, gpu: &str, is_private: bool) -> Failure {
    let all: Vec<&str> = snapshot.devices.iter().map(|device| device.uuid.as_str()).collect();
    let all = if all.is_empty() { "none yet".to_owned() } else { all.join(", ") };
    let are_amd = snapshot.devices.iter().all(|device| device.kind == "amd");
    match (is_private, are_amd && !snapshot.devices.is_empty()) {
        (false, _) => Failure::input(format_args!("gpreemptd knows no GPU {gpu}; it knows {all}")),
        (true, true) => Failure::input(format_args!("there is no AMD GPU {gpu}; there are {all}")),
        (true, false) => Failure::input(format_args!("there is no GPU {gpu}; there are {all}")),
    }
}

/// Whether a process uses a GPU. The service knows it of scheduled processes only.
fn uses(task: &TaskSnapshot, uuid: &str, snapshot: &Snapshot) -> bool {
    let device = snapshot.devices.iter().find(|device| device.uuid == uuid);
    if !task.queues.is_empty() {
        return device.is_some_and(|device| task.queues.iter().any(|q| q.device == device.id));
    }
    // Emulated GPUs do not list it: a process that is suspended without need loses nothing.
    let is_emulated = device.is_some_and(|device| device.kind == "emulated");
    is_emulated || uuids_of(task.pid).iter().any(|used| used == uuid)
}

fn uuids_of(pid: u32) -> Vec<String> {
    let sysfs = KfdLocation::from_environment().paths().sysfs;
    let topology = Topology::read(&sysfs).unwrap_or_default();
    let queues = queues_of(&sysfs, pid).unwrap_or_default();
    let amd = queues.iter().filter_map(|queue| topology.device(queue.gpu_id).map(Node::uuid));
    let nvidia =
        inspect_process(pid).map(|process| GpuProcess::uuids(&process)).unwrap_or_default();
    amd.chain(nvidia).collect()
}
