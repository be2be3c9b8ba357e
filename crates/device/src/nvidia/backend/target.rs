//! What a queue is in reality: a context, and whether it still runs something.
//!
//! A ring that looks empty says that everything was fetched, not that it is done. But the device
//! counts how often it took a context off in the middle of a kernel, and how often it put it back:
//! if stopping a context interrupted nothing, it had nothing. It may have been off at that very
//! moment, so what was found is looked at again, soon and then ever more rarely: a context that was
//! put back on the device since then has something to do.

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;

use std::time::{Duration, Instant};

use super::Wishes;
use super::worker::{ContextName, Job};
use crate::controller::Awaited;
use crate::nvidia::abi::control::subdevice::SwitchCounts;
use crate::nvidia::act::{self, NvidiaAct};
use crate::nvidia::discover::{self, Group};
use crate::nvidia::hold::HoldSite;
use crate::nvidia::ring::Rings;
use crate::nvidia::rm::Handle;
use crate::nvidia::survey::GpuProcess;
use crate::process::ProcessKey;

/// A context, or what stands for others.
#[derive(Debug)]
pub(super) enum Target {
    Context(Box<ContextTarget>),
    /// Everybody we were not asked to touch. There is nothing to do for it.
    Others(TaskId),
}

/// One context of a process.
#[derive(Debug)]
pub(super) struct ContextTarget {
    task: TaskId,
    process: ProcessKey,
    device: usize,
    client: Handle,
    subdevice: Handle,
    /// The driver's name of the device, and the GPU's own.
    device_handle: Handle,
    uuid: String,
    /// The compute group and the copy groups of the context.
    groups: Vec<Group>,
    original_us: u64,
    set_us: Option<u64>,
    /// Every slice that we ever set: what a look may find that is not the program's own.
    ours_us: Vec<u64>,
    stop: NvidiaAct,
    is_off: bool,
    rings: Option<Rings>,
    /// What the rings showed last.
    ring: RingView,
    doubt: Doubt,
}

/// What a process has that can be scheduled, each with the GPU it is on.
pub(super) fn targets(task: TaskId, process: &GpuProcess) -> Vec<(String, Target)> {
    let mut found = Vec::new();
    for client in process.clients.as_deref().unwrap_or_default() {
        for device in &client.devices {
            let (Some(uuid), Some(subdevice)) = (&device.uuid, device.subdevice) else { continue };
            for context in device.contexts() {
                let Some(original_us) = context.compute.slice_us else { continue };
                let groups = std::iter::once(context.compute).chain(context.copies).cloned();
                let target = ContextTarget {
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
                    ours_us: Vec::new(),
                    stop: act::stop(client.handle, subdevice, &context),
                    is_off: false,
                    rings: None,
                    ring: RingView::default(),
                    doubt: Doubt::default(),
                };
                found.push((uuid.clone(), Target::Context(Box::new(target))));
            }
        }
    }
    found
}

impl Target {
    pub(super) fn is_of(&self, wanted: TaskId) -> bool {
        match self {
            Self::Context(context) => context.task == wanted,
            Self::Others(task) => *task == wanted,
        }
    }

    /// Whether both are the same context, at two times.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.identity().is_some() && self.identity() == other.identity()
    }

    fn identity(&self) -> Option<(ProcessKey, Handle, Handle)> {
        let Self::Context(context) = self else { return None };
        Some((context.process, context.client, context.groups.first()?.handle))
    }

    pub(super) fn group(&self) -> Option<(ProcessKey, Handle)> {
        self.identity().map(|(process, _, group)| (process, group))
    }

    /// The task it belongs to.
    pub(super) fn task(&self) -> TaskId {
        match self {
            Self::Context(context) => context.task,
            Self::Others(task) => *task,
        }
    }

    /// Whether a later look found the same rings in the same place.
    pub(super) fn has_rings_of(&self, fresh: &Self) -> bool {
        let place = |target: &Self| match target {
            Self::Context(context) => {
                context.groups.first().map(|group| (group.channels.clone(), group.pages.clone()))
            }
            Self::Others(_) => None,
        };
        place(self) == place(fresh)
    }

    pub(super) fn set_device(&mut self, device: usize) {
        if let Self::Context(context) = self {
            context.device = device;
        }
    }

    pub(super) fn set_rings(&mut self, rings: Rings) {
        if let Self::Context(context) = self {
            context.rings = Some(rings);
        }
    }

    /// What its rings show. Where they cannot be read it is taken to be busy: priorities hold and
    /// nobody is left out, at the price of turns for those who do not need them.
    pub(super) fn observe(&mut self) -> Option<RingView> {
        let busy = RingView { put: 1, get: 0, running: None };
        let Self::Context(context) = self else { return Some(busy) };
        let Some(rings) = &mut context.rings else { return Some(busy) };
        context.ring = rings.read()?.ring;
        Some(context.doubt.judge(context.ring, context.is_off))
    }

    /// The order to stop it.
    pub(super) fn stop(&mut self, queue: QueueId) -> Option<(usize, Job)> {
        let Self::Context(context) = self else { return None };
        context.is_off = true;
        let (process, act) = (context.process, context.stop.clone().into());
        let baseline = context.doubt.baseline();
        let context_name = context.name(queue);
        Some((context.device, Job::Stop { process, act, context: context_name, baseline }))
    }

    /// It was stopped.
    pub(super) fn take_stop(&mut self, counts: Option<(Counts, Counts)>) {
        if let Self::Context(context) = self {
            context.doubt.stopped(context.ring, counts);
        }
    }

    /// It was looked at again.
    pub(super) fn take_check(&mut self, counts: Option<Counts>) {
        if let Self::Context(context) = self {
            context.doubt.checked(counts);
        }
    }

    /// The order to look at it again, if it is time for that.
    pub(super) fn check(&mut self, queue: QueueId) -> Option<(usize, Job)> {
        let Self::Context(context) = self else { return None };
        if context.is_off || !context.doubt.wants_check(Instant::now()) {
            return None;
        }
        let (process, context_name) = (context.process, context.name(queue));
        Some((context.device, Job::Check { process, context: context_name }))
    }

    /// The order to let it go on.
    pub(super) fn resume(&mut self, queue: QueueId) -> Option<(usize, Job)> {
        let Self::Context(context) = self else { return None };
        context.is_off = false;
        let (process, act) = (context.process, context.stop.clone().into());
        let awaited = Some(Awaited::Resume(queue));
        Some((context.device, Job::Act { process, act, undo: true, awaited }))
    }

    /// The order to give it a slice, or the one it came with.
    pub(super) fn set_slice(&mut self, slice_us: Option<u64>) -> Option<(usize, Job)> {
        let Self::Context(context) = self else { return None };
        context.set_us = slice_us;
        if let Some(slice_us) = slice_us
            && !context.ours_us.contains(&slice_us)
        {
            context.ours_us.push(slice_us);
        }
        let (process, undo) = (context.process, slice_us.is_none());
        let act = context.slice().into();
        Some((context.device, Job::Act { process, act, undo, awaited: None }))
    }

    /// Takes in what a later look found of the same context. Returns what has to be done so that
    /// what was decided for it is true of all of it.
    pub(super) fn catch_up(&mut self, queue: QueueId, fresh: &Self) -> Vec<(usize, Job)> {
        let (Self::Context(context), Self::Context(fresh)) = (self, fresh) else {
            return Vec::new();
        };
        let mut jobs = Vec::new();
        let mut change = |act: NvidiaAct| {
            let (process, act) = (context.process, act.into());
            jobs.push((context.device, Job::Act { process, act, undo: false, awaited: None }));
        };
        if let Some(found_us) = fresh.groups.first().and_then(|group| group.slice_us)
            && context.set_us.is_some_and(|set_us| set_us != found_us)
        {
            // The program has set a slice itself: that is what it gets back.
            if !context.ours_us.contains(&found_us) {
                context.original_us = found_us;
            }
            change(context.slice());
        }
        if context.stop != fresh.stop {
            context.stop = fresh.stop.clone();
            if context.is_off {
                let (process, act) = (context.process, fresh.stop.clone().into());
                jobs.push((context.device, Job::Extend { process, act }));
            }
        }
        let rings_moved = context.groups.first().map(|group| (&group.channels, &group.pages))
            != fresh.groups.first().map(|group| (&group.channels, &group.pages));
        context.groups.clone_from(&fresh.groups);
        if rings_moved {
            context.rings = None;
            jobs.extend(context.rings_job(queue).map(|job| (context.device, job)));
        }
        jobs
    }

    /// An order to stop it, or to let it go on, was not carried out: the opposite is still true.
    pub(super) fn take_failure(&mut self, is_off: bool) {
        if let Self::Context(context) = self {
            context.is_off = is_off;
        }
    }

    /// The orders that put back what was done to a context that is not found any more.
    pub(super) fn last_jobs(&self) -> Vec<(usize, Job)> {
        let Self::Context(context) = self else { return Vec::new() };
        let process = context.process;
        [context.stop.clone(), context.slice()]
            .map(|act| {
                let act = act.into();
                (context.device, Job::Act { process, act, undo: true, awaited: None })
            })
            .into()
    }

    /// Where a channel of ours would be added, with that slot. Nothing where we do not know
    /// enough.
    pub(super) fn hold_site(&self, slot: usize) -> Option<(ProcessKey, HoldSite, Vec<Group>)> {
        let Self::Context(context) = self else { return None };
        let compute = context.groups.first()?;
        let site = HoldSite {
            client: context.client,
            device: context.device_handle,
            group: compute.handle,
            context_share: compute.context_share?,
            compute_class: compute.compute_class?,
            channel_class: compute.generation?.channel(),
            uuid: discover::parse_uuid(&context.uuid)?,
            slot,
        };
        Some((context.process, site, context.groups.clone()))
    }

    /// The device it is on, by our count.
    pub(super) fn device(&self) -> Option<usize> {
        match self {
            Self::Context(context) => Some(context.device),
            Self::Others(_) => None,
        }
    }

    /// What is done once when it appears.
    pub(super) fn first_jobs(&self, wishes: Wishes) -> Vec<Job> {
        let Self::Context(context) = self else { return Vec::new() };
        let (process, client) = (context.process, context.client);
        let Some(compute) = context.groups.first() else { return Vec::new() };
        let mode = wishes.mode.map(|mode| NvidiaAct::Mode {
            client,
            subdevice: context.subdevice,
            group: compute.handle,
            channels: compute.channels.clone(),
            set: mode.number(),
        });
        let interleave = wishes.interleave.and_then(|set| {
            let group = compute.handle;
            // What could not be put back is not changed.
            let original = act::interleave(process, client, group).ok()?;
            Some(NvidiaAct::Interleave { client, group, original, set })
        });
        mode.into_iter()
            .chain(interleave)
            .map(|act| Job::Act { process, act: act.into(), undo: false, awaited: None })
            .collect()
    }

    /// The order to find its rings.
    pub(super) fn rings_job(&self, queue: QueueId) -> Option<Job> {
        let Self::Context(context) = self else { return None };
        context.rings_job(queue)
    }
}

impl ContextTarget {
    fn rings_job(&self, queue: QueueId) -> Option<Job> {
        // A context that is just being made has no channels yet; a later look will find some.
        if self.groups.first().is_none_or(|compute| compute.channels.is_empty()) {
            return None;
        }
        let (process, client) = (self.process, self.client);
        Some(Job::OpenRings { queue, process, client, groups: self.groups.clone() })
    }

    fn name(&self, queue: QueueId) -> ContextName {
        let group = self.groups.first().map_or(0, |group| group.handle);
        ContextName { queue, client: self.client, subdevice: self.subdevice, group }
    }

    fn slice(&self) -> NvidiaAct {
        NvidiaAct::Slice {
            client: self.client,
            group: self.groups.first().map_or(0, |group| group.handle),
            original_us: self.original_us,
            set_us: self.set_us.unwrap_or(self.original_us),
        }
    }
}

/// What the device counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Taken off in the middle of a kernel.
    interrupted: u32,
    /// Put back.
    restored: u32,
}

impl Counts {
    pub(super) fn of(counts: &SwitchCounts) -> Self {
        let interrupted = counts
            .saves_instruction
            .wrapping_add(counts.saves_work_group)
            .wrapping_add(counts.saves_graphics);
        Self { interrupted, restored: counts.restores }
    }
}

/// Whether a context still runs something, as far as that is known.
#[derive(Debug, Default)]
struct Doubt {
    /// What was found when it was last stopped, and the indices at that time.
    found: Option<Found>,
    checking: bool,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    at: (u64, u64),
    counts: Counts,
    is_running: bool,
    check_at: Instant,
    wait: Duration,
}

impl Doubt {
    const WAIT_MIN: Duration = Duration::from_millis(100);
    const WAIT_MAX: Duration = Duration::from_secs(2);

    /// What it was compared with last, as long as nothing was submitted since.
    fn baseline(&self) -> Option<Counts> {
        self.found.map(|found| found.counts)
    }

    /// It was stopped, and these were the counts before and after.
    fn stopped(&mut self, ring: RingView, counts: Option<(Counts, Counts)>) {
        let now = Instant::now();
        self.found = counts.map(|(before, after)| Found {
            at: (ring.put, ring.get),
            counts: after,
            is_running: before != after,
            check_at: now + Self::WAIT_MIN,
            wait: Self::WAIT_MIN,
        });
    }

    /// It was looked at again, and these are the counts now.
    fn checked(&mut self, counts: Option<Counts>) {
        self.checking = false;
        if let Some(found) = &mut self.found {
            // Once it was put back, it has something to do: then the next stop will tell.
            found.is_running |= counts.is_none_or(|counts| counts != found.counts);
        }
    }

    /// Adds to a reading what is known beside it.
    fn judge(&mut self, ring: RingView, is_off: bool) -> RingView {
        let found = self.found.filter(|found| found.at == (ring.put, ring.get));
        let Some(found) = found else {
            self.found = None;
            return ring;
        };
        // What was interrupted and may go on has perhaps ended meanwhile.
        let running = if is_off || !found.is_running { Some(found.is_running) } else { None };
        RingView { running, ..ring }
    }

    /// Whether it is time to look again at a context that was found to be idle.
    fn wants_check(&mut self, now: Instant) -> bool {
        let Some(found) = &mut self.found else { return false };
        if found.is_running || self.checking || found.check_at > now {
            return false;
        }
        found.wait = (found.wait * 2).min(Self::WAIT_MAX);
        found.check_at = now + found.wait;
        self.checking = true;
        true
    }
}

#[cfg(test)]
mod tests;
