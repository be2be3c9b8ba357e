//! The state of one scheduled context: its RM objects, the changes in force, and its rings.
//!
//! Methods that need a control call return it as an order for the worker of the context's device.

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;

use super::ContextOptions;
use super::switch_counters::{SwitchCounterCheck, SwitchTotals};
use super::worker::{ContextHandles, Job};
use crate::controller::PendingCompletion;
use crate::nvidia::change::{self, NvidiaChange};
use crate::nvidia::hold::HoldSite;
use crate::nvidia::process_discovery::GpuProcess;
use crate::nvidia::ring::Rings;
use crate::nvidia::rm::Handle;
use crate::nvidia::rm_objects::Group;
use crate::process::ProcessKey;

/// What a queue of the scheduler is.
#[derive(Debug)]
pub(super) enum QueueState {
    Context(Box<ContextState>),
    /// A placeholder for all unmanaged processes of a device. It needs no calls.
    Unmanaged(TaskId),
}

#[derive(Debug)]
pub(super) struct ContextState {
    task: TaskId,
    pub(super) process: ProcessKey,
    pub(super) device: usize,
    client: Handle,
    subdevice: Handle,
    device_handle: Handle,
    uuid: String,
    /// The compute group, and the copy groups of the context.
    groups: Vec<Group>,
    original_us: u64,
    set_us: Option<u64>,
    /// Every time slice that gpreempt ever set: an inspection that finds another one has found the
    /// program's own.
    ever_set_us: Vec<u64>,
    stop: NvidiaChange,
    is_off: bool,
    rings: Option<Rings>,
    /// The last reading of the rings.
    ring: RingView,
    pub(super) switches: SwitchCounterCheck,
}

/// The contexts of a process, each with the GPU it is on.
pub(super) fn context_states(task: TaskId, process: &GpuProcess) -> Vec<(String, ContextState)> {
    let mut found = Vec::new();
    for client in process.clients.as_deref().unwrap_or_default() {
        for device in &client.devices {
            let (Some(uuid), Some(subdevice)) = (&device.uuid, device.subdevice) else { continue };
            for context in device.contexts() {
                let Some(original_us) = context.compute.slice_us else { continue };
                let groups = std::iter::once(context.compute).chain(context.copies).cloned();
                let state = ContextState {
                    task,
                    process: process.info.key,
                    device: 0,
                    client: client.handle,
                    subdevice,
                    device_handle: device.handle,
                    uuid: uuid.clone(),
                    groups: groups.collect(),
                    original_us,
                    set_us: None,
                    ever_set_us: Vec::new(),
                    stop: change::stop(client.handle, subdevice, &context),
                    is_off: false,
                    rings: None,
                    ring: RingView::default(),
                    switches: SwitchCounterCheck::default(),
                };
                found.push((uuid.clone(), state));
            }
        }
    }
    found
}

impl QueueState {
    pub(super) fn task(&self) -> TaskId {
        match self {
            Self::Context(context) => context.task,
            Self::Unmanaged(task) => *task,
        }
    }

    pub(super) fn context(&self) -> Option<&ContextState> {
        match self {
            Self::Context(context) => Some(context),
            Self::Unmanaged(_) => None,
        }
    }

    pub(super) fn context_mut(&mut self) -> Option<&mut ContextState> {
        match self {
            Self::Context(context) => Some(context),
            Self::Unmanaged(_) => None,
        }
    }

    /// What its rings show. A queue whose rings cannot be read counts as busy: priorities are kept
    /// and no process starves, at the price of turns for processes that do not need them.
    pub(super) fn observe(&mut self) -> Option<RingView> {
        let busy = RingView { put: 1, get: 0, running: None };
        let Self::Context(context) = self else { return Some(busy) };
        let Some(rings) = &mut context.rings else { return Some(busy) };
        context.ring = rings.read()?.ring;
        Some(context.switches.apply(context.ring, context.is_off))
    }
}

impl ContextState {
    /// What identifies a context from one inspection to the next.
    pub(super) fn identity(&self) -> Option<(ProcessKey, Handle, Handle)> {
        Some((self.process, self.client, self.groups.first()?.handle))
    }

    /// The place of its rings.
    pub(super) fn ring_objects(&self) -> Option<(&[Handle], &[Handle])> {
        self.groups.first().map(|group| (&group.channels[..], &group.pages[..]))
    }

    pub(super) fn set_rings(&mut self, rings: Rings) {
        self.rings = Some(rings);
    }

    /// Stops it. `fence` is gpreempt's channel of idle fences in it.
    pub(super) fn stop(&mut self, queue: QueueId, fence: Option<Handle>) -> Job {
        self.is_off = true;
        let (process, change) = (self.process, self.stop.with_channel(fence).into());
        let baseline = self.switches.baseline();
        Job::Stop { process, change, context: self.handles(queue), baseline }
    }

    pub(super) fn resume(&mut self, queue: QueueId, fence: Option<Handle>) -> Job {
        self.is_off = false;
        self.change(self.stop.with_channel(fence), true, Some(PendingCompletion::Resume(queue)))
    }

    /// Sets a time slice, or its original one.
    pub(super) fn set_slice(&mut self, slice_us: Option<u64>) -> Job {
        self.set_us = slice_us;
        if let Some(slice_us) = slice_us
            && !self.ever_set_us.contains(&slice_us)
        {
            self.ever_set_us.push(slice_us);
        }
        self.change(self.slice(), slice_us.is_none(), None)
    }

    /// The order to read the switch counters again, if it is time for that.
    pub(super) fn check(&mut self, queue: QueueId) -> Option<Job> {
        if self.is_off || !self.switches.wants_check(std::time::Instant::now()) {
            return None;
        }
        Some(Job::Check { process: self.process, context: self.handles(queue) })
    }

    /// The worker stopped it.
    pub(super) fn take_stop(&mut self, totals: Option<(SwitchTotals, SwitchTotals)>) {
        self.switches.stopped(self.ring, totals);
    }

    /// A stop or a resume failed: the opposite is still in force.
    pub(super) fn take_failure(&mut self, is_off: bool) {
        self.is_off = is_off;
    }

    /// Takes in what a later inspection found of the same context. Returns the orders that apply
    /// what was decided for the context to all of it.
    pub(super) fn catch_up(&mut self, queue: QueueId, fresh: &Self) -> Vec<Job> {
        let mut jobs = Vec::new();
        if let Some(found_us) = fresh.groups.first().and_then(|group| group.slice_us)
            && self.set_us.is_some_and(|set_us| set_us != found_us)
        {
            // The program has set a time slice itself: undoing sets that one.
            if !self.ever_set_us.contains(&found_us) {
                self.original_us = found_us;
            }
            jobs.push(self.change(self.slice(), false, None));
        }
        if self.stop != fresh.stop {
            self.stop = fresh.stop.clone();
            if self.is_off {
                let (process, change) = (self.process, fresh.stop.clone().into());
                jobs.push(Job::Extend { process, change });
            }
        }
        let rings_moved = self.ring_objects() != fresh.ring_objects();
        self.groups.clone_from(&fresh.groups);
        if rings_moved {
            self.rings = None;
            jobs.extend(self.rings_job(queue));
        }
        jobs
    }

    /// The orders that revert the changes of a context that no longer exists.
    pub(super) fn last_jobs(&self) -> Vec<Job> {
        [self.stop.clone(), self.slice()].map(|change| self.change(change, true, None)).into()
    }

    /// Where a hold channel with that slot would be added. Nothing if objects are unknown.
    pub(super) fn hold_site(&self, slot: usize) -> Option<(HoldSite, Vec<Group>)> {
        let compute = self.groups.first()?;
        let site = HoldSite::of((self.client, self.device_handle), compute, &self.uuid, slot)?;
        Some((site, self.groups.clone()))
    }

    /// The orders of a context that appears.
    pub(super) fn first_jobs(&self, options: ContextOptions) -> Vec<Job> {
        let (process, client) = (self.process, self.client);
        let Some(compute) = self.groups.first() else { return Vec::new() };
        let mode = options.mode.map(|mode| NvidiaChange::Mode {
            client,
            subdevice: self.subdevice,
            group: compute.handle,
            channels: compute.channels.clone(),
            set: mode.number(),
        });
        let interleave = options.interleave.and_then(|set| {
            let group = compute.handle;
            // Without the original level the change could not be reverted.
            let original = change::interleave(process, client, group).ok()?;
            Some(NvidiaChange::Interleave { client, group, original, set })
        });
        mode.into_iter().chain(interleave).map(|change| self.change(change, false, None)).collect()
    }

    /// The order to open its rings.
    pub(super) fn rings_job(&self, queue: QueueId) -> Option<Job> {
        // A context that is being made has no channels yet; a later inspection will find some.
        if self.groups.first().is_none_or(|compute| compute.channels.is_empty()) {
            return None;
        }
        let (process, client) = (self.process, self.client);
        Some(Job::OpenRings { queue, process, client, groups: self.groups.clone() })
    }

    fn change(
        &self,
        change: NvidiaChange,
        undo: bool,
        completion: Option<PendingCompletion>,
    ) -> Job {
        Job::Change { process: self.process, change: change.into(), undo, completion }
    }

    fn handles(&self, queue: QueueId) -> ContextHandles {
        let group = self.groups.first().map_or(0, |group| group.handle);
        ContextHandles { queue, client: self.client, subdevice: self.subdevice, group }
    }

    fn slice(&self) -> NvidiaChange {
        NvidiaChange::Slice {
            client: self.client,
            group: self.groups.first().map_or(0, |group| group.handle),
            original_us: self.original_us,
            set_us: self.set_us.unwrap_or(self.original_us),
        }
    }
}
