//! The scheduler inside of a patched KFD: it looks at the queues of each device in rounds and takes
//! those off that something more important keeps from running.
//!
//! The kernel decides with a policy in C, this with `core`; a table of cases checks that the two
//! decide alike (`kernel/vectors`).

mod node;

use std::collections::BTreeMap;
use std::fmt::Write;

use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::block::QueueType;
use gpreempt_sim::external_gpu::CallId;

use super::preempt::Touched;
use super::queue::Queue;
use super::{Driver, Process};
use crate::kfd::parameters::Parameters;
use crate::kfd::world::World;
use node::Node;

/// The scheduler of every device.
#[derive(Debug, Default)]
pub(super) struct Schedulers {
    parameters: Parameters,
    nodes: BTreeMap<u32, Node>,
    next_round: Option<Instant>,
    /// Updates that are not through: whose they are, and since when.
    updates: BTreeMap<CallId, (u32, Instant)>,
}

/// A queue as it is at the beginning of a round.
#[derive(Clone, Copy, Debug)]
struct View {
    pid: u32,
    name: u32,
    queue: QueueId,
    priority: Priority,
    /// Somebody else keeps it off.
    is_kept_off: bool,
    /// Whether it could be taken off.
    obeys: bool,
}

impl Driver {
    /// The settings of the scheduler. Switching it off lets everybody on again.
    pub fn parameters(&self) -> Parameters {
        self.schedulers.parameters
    }

    /// Changes them.
    pub fn set_parameters(&mut self, world: &mut World<'_>, parameters: Parameters) {
        let was_enabled = self.schedulers.parameters.enable;
        self.schedulers.parameters = parameters;
        self.changes += 1;
        if parameters.enable {
            self.schedulers.next_round.get_or_insert(world.now);
        } else if was_enabled {
            self.release_scheduled(world);
        }
    }

    /// When the next round is.
    pub fn next_round(&self) -> Option<Instant> {
        self.schedulers.next_round
    }

    /// Makes a round on every device, if it is time.
    pub fn schedule(&mut self, world: &mut World<'_>) {
        if self.schedulers.next_round.is_none_or(|at| at > world.now) {
            return;
        }
        let interval = Duration::from_millis(self.schedulers.parameters.interval_ms.into());
        self.schedulers.next_round = Some(world.now + interval);
        let mut gpu_ids: Vec<u32> = self.schedulers.nodes.keys().copied().collect();
        let queues = self.processes.values().flat_map(|process| process.queues.values());
        gpu_ids.extend(queues.map(|queue| queue.entry.gpu_id));
        gpu_ids.sort_unstable();
        gpu_ids.dedup();
        for gpu_id in gpu_ids {
            self.round(world, gpu_id);
        }
    }

    /// An update of a runlist is through: what it took is what a switch costs.
    pub fn note_update(&mut self, call: CallId, now: Instant) {
        let Some((gpu_id, since)) = self.schedulers.updates.remove(&call) else { return };
        if let Some(node) = self.schedulers.nodes.get_mut(&gpu_id) {
            node.measure(now.since(since));
        }
    }

    fn round(&mut self, world: &mut World<'_>, gpu_id: u32) {
        let views = self.views(gpu_id);
        let parameters = self.schedulers.parameters;
        let node = self.schedulers.nodes.entry(gpu_id).or_default();
        let ring = |queue| world.devices.ring(queue);
        node.decide(world.now, &parameters, &views, ring);
        let mut touched = Touched::new();
        for view in &views {
            let is_off = node.is_off(view.queue);
            let process = self.processes.get_mut(&view.pid);
            let queue = process.and_then(|process| process.queues.get_mut(&view.name));
            if let Some(queue) = queue.filter(|queue| queue.is_scheduled_off != is_off) {
                queue.is_scheduled_off = is_off;
                touched.entry(view.pid).or_default().push(view.name);
            }
        }
        if touched.is_empty() {
            return;
        }
        let calls = self.apply_touched(world, &touched);
        if let Some(node) = self.schedulers.nodes.get_mut(&gpu_id) {
            node.count_update();
        }
        self.changes += 1;
        self.schedulers.updates.extend(calls.into_iter().map(|call| (call, (gpu_id, world.now))));
    }

    /// The queues of a device that can be scheduled.
    fn views(&self, gpu_id: u32) -> Vec<View> {
        let mut views = Vec::new();
        for (&pid, process) in &self.processes {
            for (&name, queue) in &process.queues {
                let is_aql = queue.entry.queue_type == QueueType::ComputeAql as u32;
                if queue.entry.gpu_id != gpu_id || !is_aql || queue.is_leaving {
                    continue;
                }
                views.push(View {
                    pid,
                    name,
                    queue: queue.device_id,
                    priority: logical_priority(process, queue),
                    is_kept_off: process.is_kept_off(queue),
                    obeys: queue.check_obedience().is_ok(),
                });
            }
        }
        views
    }

    /// Lets everybody on again whom the scheduler keeps off.
    fn release_scheduled(&mut self, world: &mut World<'_>) {
        let mut touched = Touched::new();
        for (&pid, process) in &mut self.processes {
            for (&name, queue) in &mut process.queues {
                if std::mem::take(&mut queue.is_scheduled_off) {
                    touched.entry(pid).or_default().push(name);
                }
            }
        }
        self.schedulers.next_round = None;
        self.schedulers.updates.clear();
        for node in self.schedulers.nodes.values_mut() {
            node.reset();
        }
        self.apply_touched(world, &touched);
    }

    /// What debugfs shows of the scheduler.
    pub fn scheduler_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(text, "enabled {}", u32::from(self.schedulers.parameters.enable));
        for (gpu_id, node) in &self.schedulers.nodes {
            let _ = writeln!(text, "gpu_id {gpu_id}");
            node.show(&mut text);
        }
        text
    }
}

impl Process {
    /// Whether somebody else than the scheduler keeps a queue off.
    fn is_kept_off(&self, queue: &Queue) -> bool {
        queue.preempt_owner().is_some()
            || queue.is_suspended
            || queue.percentage == 0
            || self.evictions > 0
    }
}

fn logical_priority(process: &Process, queue: &Queue) -> Priority {
    let level = queue.logical_priority.or(process.logical_priority);
    level.and_then(Priority::new).unwrap_or(Priority::DEFAULT)
}

#[cfg(test)]
mod tests;
