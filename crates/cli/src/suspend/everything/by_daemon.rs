//! Through the daemon: a short lease for each process, which is renewed.

use std::collections::BTreeSet;
use std::time::Duration;

use gpreempt_device::amd::SiteName;
use gpreempt_device::amd::queue::queues_of;
use gpreempt_device::amd::topology::Topology;
use gpreempt_device::nvidia::survey::{GpuProcess, look};
use gpreempt_wire::client::Client;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};

use super::super::lease::{still_on, suspend};
use super::{Hand, Stopped};
use crate::daemon;
use crate::failure::Failure;

/// The daemon, and which GPU.
pub(super) struct ByDaemon {
    client: Client,
    uuid: String,
    stopped: BTreeSet<u32>,
}

impl ByDaemon {
    pub(super) fn new(mut client: Client, gpu: &str) -> Result<Self, Failure> {
        let snapshot = daemon::snapshot(&mut client)?;
        let named = |id: u32, uuid: &str| id.to_string() == gpu || uuid.eq_ignore_ascii_case(gpu);
        let found = snapshot.devices.iter().find(|device| named(device.id, &device.uuid));
        let Some(device) = found else {
            let all: Vec<&str> = snapshot.devices.iter().map(|d| d.uuid.as_str()).collect();
            return Err(Failure::input(format_args!(
                "gpreemptd knows no GPU {gpu}; it knows {}",
                if all.is_empty() { "none yet".to_owned() } else { all.join(", ") }
            )));
        };
        Ok(Self { client, uuid: device.uuid.clone(), stopped: BTreeSet::new() })
    }
}

impl Hand for ByDaemon {
    fn stop_all(&mut self, left: Option<Duration>) -> Result<Stopped, Failure> {
        let snapshot = daemon::snapshot(&mut self.client)?;
        let mut stopped = Stopped::default();
        for task in snapshot.tasks.iter().filter(|task| uses(task, &self.uuid, &snapshot)) {
            match suspend(&mut self.client, daemon::process(task.pid)?, left) {
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
            for (pid, why) in still_on(&mut self.client, &fresh)? {
                stopped.pids.remove(&pid);
                self.stopped.remove(&pid);
                stopped.refused.insert(pid, why);
            }
        }
        Ok(stopped)
    }

    fn let_all_go(&mut self) -> Result<(), Failure> {
        for pid in std::mem::take(&mut self.stopped) {
            // The lease may be over by now, or the process: then there is nothing to resume.
            let _ = self.client.expect_ok(&Request::Resume { process: daemon::process(pid)? });
        }
        Ok(())
    }
}

/// Whether a process uses a GPU. Of those that nobody schedules the daemon does not say it.
fn uses(task: &TaskSnapshot, uuid: &str, snapshot: &Snapshot) -> bool {
    let device = snapshot.devices.iter().find(|device| device.uuid == uuid);
    if !task.queues.is_empty() {
        return device.is_some_and(|device| task.queues.iter().any(|q| q.device == device.id));
    }
    let nvidia = || look(task.pid).map(|process| GpuProcess::uuids(&process)).unwrap_or_default();
    amd_uuids(task.pid).into_iter().chain(nvidia()).any(|used| used == uuid)
}

fn amd_uuids(pid: u32) -> Vec<String> {
    let sysfs = SiteName::from_environment().places().sysfs;
    let topology = Topology::read(&sysfs).unwrap_or_default();
    let queues = queues_of(&sysfs, pid).unwrap_or_default();
    let node = |gpu_id: u32| topology.device(gpu_id).map(|node| node.uuid());
    queues.iter().filter_map(|queue| node(queue.gpu_id)).collect()
}
