//! NVIDIA: channel groups on a runlist, one on the engine at a time.
//!
//! As measured: a group without work is switched out at once, even for microseconds; a group with
//! work is switched out when its slice is over and another has work; a slice begins when the
//! context is loaded, so two groups with tiny slices spend all their time switching; every change
//! of the runlist ends the current slice; a hold counts as work.

use std::collections::BTreeSet;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use super::queue::Residency;
use super::{Gpu, Notice};
use crate::event_queue::SimEvent;

#[derive(Debug, Default)]
pub(crate) struct Runlist {
    order: Vec<QueueId>,
    current: Option<QueueId>,
    /// The target of the switch in progress; the inner none: no group.
    switching: Option<Option<QueueId>>,
    epoch: u64,
    loaded_at: Instant,
    /// Whether the end of the current slice is scheduled.
    slice_awaited: bool,
    /// Groups that are being stopped.
    pub(super) stopping: BTreeSet<QueueId>,
}

impl Runlist {
    pub(super) fn add(&mut self, id: QueueId) {
        self.order.push(id);
    }

    /// The group whose waves may be on the units.
    pub(super) fn resident(&self) -> Option<QueueId> {
        self.current.filter(|_| self.switching.is_none())
    }
}

impl Gpu {
    /// The group on the engine, and since when.
    pub(crate) fn loaded(&self, device: usize) -> Option<(QueueId, Instant)> {
        let runlist = &self.devices[device].runlist;
        runlist.resident().map(|id| (id, runlist.loaded_at))
    }

    fn is_runnable(&self, id: QueueId) -> bool {
        self.queues.get(&id).is_some_and(|queue| {
            !queue.stopped && (queue.execution.is_some() || !queue.fetched.is_empty() || queue.held)
        })
    }

    /// The next group with work after the current one, in runlist order.
    fn next_runnable(&self, device: usize) -> Option<QueueId> {
        let runlist = &self.devices[device].runlist;
        let at = runlist.current.and_then(|id| runlist.order.iter().position(|&q| q == id));
        let start = at.map_or(0, |at| at + 1);
        let count = runlist.order.len();
        (0..count)
            .map(|offset| runlist.order[(start + offset) % count])
            .find(|&id| Some(id) != runlist.current && self.is_runnable(id))
    }

    pub(super) fn consider_runlist(&mut self, device: usize) {
        self.report_stopped(device);
        if self.devices[device].runlist.switching.is_some() {
            return;
        }
        let next = self.next_runnable(device);
        let Some(current) = self.devices[device].runlist.current else {
            if next.is_some() {
                self.begin_switch(device, next);
            }
            return;
        };
        if !self.is_runnable(current) {
            let stopped = self.queues.get(&current).is_none_or(|queue| queue.stopped);
            // An idle context stays loaded until another group has work.
            if next.is_some() || stopped {
                self.begin_switch(device, next);
            }
            return;
        }
        let runlist = &mut self.devices[device].runlist;
        if next.is_some() && !runlist.slice_awaited {
            runlist.slice_awaited = true;
            let epoch = runlist.epoch;
            let slice = self.queues.get(&current).map_or(Duration::ZERO, |queue| queue.slice);
            let slice = slice.as_nanos().max(1);
            let now = self.event_queue.now();
            let into = now.since(self.devices[device].runlist.loaded_at).as_nanos() % slice;
            let left = Duration::from_nanos(slice - into);
            self.event_queue.after(left, SimEvent::SliceOver { device, epoch });
        }
    }

    pub(crate) fn slice_over(&mut self, device: usize, epoch: u64) {
        let runlist = &mut self.devices[device].runlist;
        if runlist.epoch != epoch || runlist.switching.is_some() {
            return;
        }
        runlist.slice_awaited = false;
        let next = self.next_runnable(device);
        if next.is_some() {
            self.begin_switch(device, next);
        }
    }

    /// Every change of the runlist ends the slice of the current group.
    pub(super) fn runlist_changed(&mut self, device: usize) {
        let epoch = self.devices[device].runlist.epoch;
        self.slice_over(device, epoch);
        self.consider_runlist(device);
        self.dispatch(device);
    }

    fn begin_switch(&mut self, device: usize, to: Option<QueueId>) {
        let now = self.event_queue.now();
        let from = self.devices[device].runlist.current;
        let mut takes = Duration::ZERO;
        if let Some(from) = from
            && let Some(queue) = self.queues.get_mut(&from)
        {
            queue.epoch += 1;
            queue.residency = Residency::Saving;
            let waves = queue.resident_waves();
            queue.preemptions = queue.preemptions.saturating_add(u32::from(waves > 0));
            self.preemptions += u64::from(waves > 0);
            if let Some(execution) = queue.execution.as_mut() {
                queue.leaving = (execution.save(now), execution.packet.waves);
            }
            takes += self.save_time(waves);
            self.track(from);
        }
        if let Some(to) = to
            && let Some(queue) = self.queues.get_mut(&to)
        {
            queue.residency = Residency::Restoring;
            let waves = queue.saved_waves();
            takes += self.restore_time(waves);
            self.track(to);
        }
        let runlist = &mut self.devices[device].runlist;
        runlist.epoch += 1;
        runlist.slice_awaited = false;
        runlist.switching = Some(to);
        let epoch = runlist.epoch;
        self.event_queue.after(takes, SimEvent::Switched { device, epoch });
    }

    pub(crate) fn switched(&mut self, device: usize, epoch: u64) {
        let now = self.event_queue.now();
        let runlist = &mut self.devices[device].runlist;
        if runlist.epoch != epoch {
            return;
        }
        let Some(to) = runlist.switching.take() else { return };
        let from = std::mem::replace(&mut runlist.current, to);
        runlist.loaded_at = now;
        if let Some(from) = from {
            self.release_units(from);
            if let Some(queue) = self.queues.get_mut(&from) {
                queue.residency = Residency::Out;
            }
            self.track(from);
        }
        if let Some(to) = to
            && let Some(queue) = self.queues.get_mut(&to)
        {
            queue.residency = Residency::In;
            queue.epoch += 1;
        }
        self.dispatch(device);
        self.consider_runlist(device);
        if let Some(to) = to {
            self.track(to);
        }
    }

    /// Reports groups that were being stopped and are off the engine.
    fn report_stopped(&mut self, device: usize) {
        let runlist = &mut self.devices[device].runlist;
        if runlist.stopping.is_empty() {
            return;
        }
        let (current, switching) = (runlist.current, runlist.switching);
        let off: Vec<QueueId> = runlist
            .stopping
            .iter()
            .copied()
            .filter(|&id| Some(id) != current && switching != Some(Some(id)))
            .collect();
        for id in off {
            self.devices[device].runlist.stopping.remove(&id);
            self.notices.push_back(Notice::Stopped(id));
        }
    }

    pub(super) fn leave_runlist(&mut self, device: usize, id: QueueId) {
        let runlist = &mut self.devices[device].runlist;
        runlist.order.retain(|&other| other != id);
        runlist.stopping.remove(&id);
        if runlist.current == Some(id) {
            runlist.current = None;
        }
        if runlist.switching == Some(Some(id)) {
            runlist.switching = Some(None);
        }
        self.runlist_changed(device);
    }
}
