//! A short lease for each process on a GPU, which is renewed.

use std::collections::BTreeSet;
use std::time::Duration;

use gpreempt_device::amd::SiteName;
use gpreempt_device::amd::queue::queues_of;
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::nvidia::survey::{GpuProcess, look};
use gpreempt_wire::client::Client;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};

use super::super::lease::{still_on, suspend};
use super::Stopped;
use crate::daemon;
use crate::failure::Failure;

/// How much of a name is enough to mean one.
const SHORT_NAME: usize = 8;

/// The service, and which GPU.
pub(super) struct Leases<'a> {
    client: &'a mut Client,
    uuid: String,
    stopped: BTreeSet<u32>,
}

impl<'a> Leases<'a> {
    pub(super) fn new(
        client: &'a mut Client,
        gpu: &str,
        is_private: bool,
    ) -> Result<Self, Failure> {
        let snapshot = daemon::snapshot(client)?;
        let topology = Topology::read(&SiteName::from_environment().places().sysfs);
        let topology = topology.unwrap_or_default();
        match find(&snapshot, &topology, gpu) {
            Some(uuid) => Ok(Self { client, uuid, stopped: BTreeSet::new() }),
            None => Err(explain(&snapshot, gpu, is_private)),
        }
    }

    /// Stops every process on the GPU that is not stopped yet, and keeps the others so.
    pub(super) fn stop_all(&mut self, left: Option<Duration>) -> Result<Stopped, Failure> {
        let snapshot = daemon::snapshot(self.client)?;
        let mut stopped = Stopped::default();
        for task in snapshot.tasks.iter().filter(|task| uses(task, &self.uuid, &snapshot)) {
            match suspend(self.client, daemon::process(task.pid)?, left) {
                Ok(()) => {
                    stopped.pids.insert(task.pid);
                }
                Err(Failure::Input(why) | Failure::Run(why)) => {
                    stopped.refused.insert(task.pid, why);
                }
                Err(failure @ Failure::ReaderGone) => return Err(failure),
            }
        }
        let fresh: BTreeSet<u32> = stopped.pids.difference(&self.stopped).copied().collect();
        if !fresh.is_empty() {
            // Whatever happens while they are waited for, they are let go of in the end.
            self.stopped.extend(&fresh);
            for (pid, why) in still_on(self.client, &fresh)? {
                stopped.pids.remove(&pid);
                self.stopped.remove(&pid);
                stopped.refused.insert(pid, why);
            }
        }
        Ok(stopped)
    }

    /// Lets every process on again.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        for pid in std::mem::take(&mut self.stopped) {
            // The lease may be over by now, or the process: then there is nothing to resume.
            let _ = self.client.expect_ok(&Request::Resume { process: daemon::process(pid)? });
        }
        Ok(())
    }
}

/// The GPU of that name: its number in `ps`, its UUID or enough of it, its place on the bus, its
/// number among those of KFD, or one that only an unscheduled process names.
fn find(snapshot: &Snapshot, topology: &Topology, gpu: &str) -> Option<String> {
    let known = || snapshot.devices.iter().map(|device| device.uuid.clone());
    let is_named = |uuid: &String| uuid.eq_ignore_ascii_case(gpu);
    let by_number = snapshot.devices.iter().find(|device| device.id.to_string() == gpu);
    let by_number = by_number.map(|device| device.uuid.clone());
    let kfd = |(index, node): &(usize, &Node)| node.pci() == gpu || index.to_string() == gpu;
    let by_place = || topology.devices().enumerate().find(kfd).map(|(_, node)| node.uuid());
    let short = |uuid: &String| gpu.len() >= SHORT_NAME && uuid.starts_with(gpu);
    let only = || {
        let mut alike = known().filter(short);
        alike.next().filter(|_| alike.next().is_none())
    };
    let untouched = || {
        let tasks = snapshot.tasks.iter().filter(|task| task.queues.is_empty());
        tasks.flat_map(|task| uuids_of(task.pid)).find(is_named)
    };
    let found = known().find(is_named).or(by_number);
    found
        .or_else(|| by_place().filter(|uuid| known().any(|known| known == *uuid)))
        .or_else(only)
        .or_else(untouched)
}

fn explain(snapshot: &Snapshot, gpu: &str, is_private: bool) -> Failure {
    let all: Vec<&str> = snapshot.devices.iter().map(|device| device.uuid.as_str()).collect();
    let all = if all.is_empty() { "none yet".to_owned() } else { all.join(", ") };
    let are_amd = snapshot.devices.iter().all(|device| device.kind == "amd");
    match (is_private, are_amd && !snapshot.devices.is_empty()) {
        (false, _) => Failure::input(format_args!("gpreemptd knows no GPU {gpu}; it knows {all}")),
        (true, true) => Failure::input(format_args!("there is no AMD GPU {gpu}; there are {all}")),
        (true, false) => Failure::input(format_args!("there is no GPU {gpu}; there are {all}")),
    }
}

/// Whether a process uses a GPU. Of one that is not scheduled the service does not say it.
fn uses(task: &TaskSnapshot, uuid: &str, snapshot: &Snapshot) -> bool {
    let device = snapshot.devices.iter().find(|device| device.uuid == uuid);
    if !task.queues.is_empty() {
        return device.is_some_and(|device| task.queues.iter().any(|q| q.device == device.id));
    }
    // An emulated GPU is not asked: a process that is suspended without need loses nothing.
    let is_emulated = device.is_some_and(|device| device.kind == "emulated");
    is_emulated || uuids_of(task.pid).iter().any(|used| used == uuid)
}

fn uuids_of(pid: u32) -> Vec<String> {
    let nvidia = look(pid).map(|process| GpuProcess::uuids(&process)).unwrap_or_default();
    amd_uuids(pid).into_iter().chain(nvidia).collect()
}

fn amd_uuids(pid: u32) -> Vec<String> {
    let sysfs = SiteName::from_environment().places().sysfs;
    let topology = Topology::read(&sysfs).unwrap_or_default();
    let queues = queues_of(&sysfs, pid).unwrap_or_default();
    let node = |gpu_id: u32| topology.device(gpu_id).map(|node| node.uuid());
    queues.iter().filter_map(|queue| node(queue.gpu_id)).collect()
}
