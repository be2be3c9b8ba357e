//! The minimum share of the tasks with [`has_min_share`](crate::event::SchedAttr::has_min_share):
//! together, and while they have work, they get at least `grant` of every `after + grant`.
//!
//! ```text
//!   no work ------ the account stands
//!   kept off ----- kept_off grows by the time
//!   may run ------ kept_off shrinks by the time * after / grant, to zero
//!   kept_off = after: the boost of `aging` for `grant`; kept_off = 0
//! ```
//!
//! So pauses of the work that keeps them off count by their length, and a boost follows the last
//! one after `after` at the earliest. Where the hardware itself prefers the high class, the tasks
//! are kept off while that has work. This module never chooses a command.

use super::Scheduler;
use super::run_order::EntityKey;
use crate::backend::Mechanism;
use crate::id::{DeviceId, QueueId};
use crate::priority::Class;
use crate::queue::RunState;
use crate::time::{Duration, Instant};

/// What a queue counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ShareState {
    /// It has no work, is suspended, or its task has no minimum share.
    #[default]
    NoWork,
    KeptOff,
    MayRun,
}

/// The account of a device.
#[derive(Debug, Default)]
pub(crate) struct ShareAccount {
    /// Queues that are kept off, and that may run.
    pub(crate) off: u32,
    pub(crate) on: u32,
    kept_off: Duration,
    /// What has counted since when.
    state: ShareState,
    since: Instant,
}

impl ShareAccount {
    fn counter(&mut self, state: ShareState) -> Option<&mut u32> {
        match state {
            ShareState::NoWork => None,
            ShareState::KeptOff => Some(&mut self.off),
            ShareState::MayRun => Some(&mut self.on),
        }
    }
}

impl Scheduler {
    pub(super) fn share_state_of(&self, id: QueueId) -> ShareState {
        let Some(queue) = self.queues.get(&id) else { return ShareState::NoWork };
        let has_share = || self.tasks.get(&queue.task).is_some_and(|task| task.attr.has_min_share);
        if !queue.active || queue.suspended || !has_share() {
            return ShareState::NoWork;
        }
        match queue.run_state {
            RunState::On | RunState::Preempting => ShareState::MayRun,
            RunState::Off | RunState::Resuming => ShareState::KeptOff,
        }
    }

    /// Counts a queue as that from now on.
    pub(super) fn count_share(&mut self, id: QueueId, state: ShareState) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let before = core::mem::replace(&mut queue.share, state);
        if before == state {
            return;
        }
        let Some(device) = self.devices.get_mut(&queue.device) else { return };
        if let Some(count) = device.share.counter(before) {
            *count -= 1;
        }
        if let Some(count) = device.share.counter(state) {
            *count += 1;
        }
    }

    /// Charges the time since the last call. Returns when the tasks are owed a boost.
    pub(super) fn settle_share(&mut self, id: DeviceId) -> Option<Instant> {
        let now = self.now;
        let share = self.config.min_share?;
        let device = self.devices.get_mut(&id)?;
        let has_queues = (device.share.on, device.share.off) != (0, 0);
        if !has_queues && device.share.state == ShareState::NoWork {
            return None;
        }
        let slices = device.capabilities.mechanism == Mechanism::Slice;
        let is_blocked = slices && device.run_order(Class::High).is_busy();
        let is_here = device.is_scheduled_here();
        let account = &mut device.share;
        let passed = now.since(account.since);
        match account.state {
            ShareState::NoWork => {}
            ShareState::KeptOff => account.kept_off += passed,
            ShareState::MayRun => {
                let factor = share.after.as_nanos() / share.grant.as_nanos();
                account.kept_off = account.kept_off - passed.times(factor);
            }
        }
        account.since = now;
        account.state = match (account.on, account.off) {
            // During a boost nothing is owed: the account begins anew.
            _ if device.boost.is_some() || !is_here => ShareState::NoWork,
            (0, 0) => ShareState::NoWork,
            (0, _) => ShareState::KeptOff,
            _ if is_blocked => ShareState::KeptOff,
            _ => ShareState::MayRun,
        };
        let left = share.after - account.kept_off;
        (account.state == ShareState::KeptOff).then(|| now + left)
    }

    /// The tasks get their boost now.
    pub(super) fn reset_share(&mut self, id: DeviceId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.share.kept_off = Duration::ZERO;
        }
    }

    /// The entity with a minimum share and with work that was boosted the longest time ago, and one
    /// of its queues.
    pub(super) fn next_to_boost(&self, id: DeviceId) -> Option<(EntityKey, QueueId)> {
        let entities = &self.devices.get(&id)?.entities;
        let has_work = |queue: &&QueueId| {
            self.queues.get(queue).is_some_and(|queue| queue.share != ShareState::NoWork)
        };
        let ready = entities.iter().filter_map(|(key, entity)| {
            let queue = *entity.queues.iter().find(has_work)?;
            Some((entity.boosted_at, *key, queue))
        });
        ready.min().map(|(_, key, queue)| (key, queue))
    }
}
