//! The driver's calls to the devices: replaces run lists, or maps and unmaps single queues.

use std::collections::BTreeSet;

use gpreempt_core::id::QueueId;
use gpreempt_sim::external_gpu::CallId;

use super::Driver;
use crate::kfd::driver_env::DriverEnv;

impl Driver {
    /// Updates the devices after queues of a process changed. Where the hardware schedules from a
    /// run list, the whole list is replaced, once per device.
    pub(super) fn apply(
        &mut self,
        env: &mut DriverEnv<'_>,
        pid: u32,
        names: &[u32],
    ) -> BTreeSet<CallId> {
        if self.profile.by_queue {
            return self.move_queues(env, pid, names);
        }
        let Some(process) = self.processes.get(&pid) else { return BTreeSet::new() };
        let queues = names.iter().filter_map(|name| process.queues.get(name));
        let devices = queues.map(|queue| queue.entry.gpu_id).collect();
        self.remap(env, &devices)
    }

    pub(super) fn apply_all(&mut self, env: &mut DriverEnv<'_>, pid: u32) -> BTreeSet<CallId> {
        let names = self.processes.get(&pid).map(|process| process.names());
        self.apply(env, pid, &names.unwrap_or_default())
    }

    /// Replaces the run lists of devices, if they have one. Returns the calls that have not
    /// completed.
    pub(super) fn remap(
        &mut self,
        env: &mut DriverEnv<'_>,
        devices: &BTreeSet<u32>,
    ) -> BTreeSet<CallId> {
        let mut calls = BTreeSet::new();
        if self.profile.by_queue {
            return calls;
        }
        for &gpu_id in devices {
            let mut runlist: BTreeSet<QueueId> = BTreeSet::new();
            for process in self.processes.values_mut() {
                let names = process.names();
                for name in names {
                    let Some(queue) = process.queues.get(&name) else { continue };
                    if queue.entry.gpu_id != gpu_id {
                        continue;
                    }
                    let (may_run, device_id) = (process.may_run(queue), queue.device_id);
                    if may_run {
                        runlist.insert(device_id);
                    }
                    if let Some(queue) = process.queues.get_mut(&name) {
                        queue.is_on = may_run;
                    }
                }
            }
            *self.remaps.entry(gpu_id).or_default() += 1;
            let call = self.next_call();
            if !env.devices.remap(call, gpu_id, runlist) {
                calls.insert(call);
            }
        }
        calls
    }

    fn move_queues(
        &mut self,
        env: &mut DriverEnv<'_>,
        pid: u32,
        names: &[u32],
    ) -> BTreeSet<CallId> {
        let mut moves = Vec::new();
        if let Some(process) = self.processes.get_mut(&pid) {
            for name in names {
                let Some(queue) = process.queues.get(name) else { continue };
                let may_run = process.may_run(queue);
                if let Some(queue) = process.queues.get_mut(name)
                    && queue.is_on != may_run
                {
                    queue.is_on = may_run;
                    moves.push((queue.device_id, may_run));
                }
            }
        }
        let mut calls = BTreeSet::new();
        for (queue, on) in moves {
            let call = self.next_call();
            if !env.devices.move_queue(call, queue, on) {
                calls.insert(call);
            }
        }
        calls
    }

    fn next_call(&mut self) -> CallId {
        self.last_call += 1;
        CallId(self.last_call)
    }
}
