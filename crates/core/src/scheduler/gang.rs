//! Gangs: tasks that run on all of their devices, or on none.
//!
//! A gang is blocked if another task ranks higher on any of its devices. A blocked gang is off on
//! all devices and is not ranked, so that its other devices are not wasted. Gangs are checked from
//! the highest rank down, each against those that can run. The highest gang is never blocked, so
//! that there is always progress.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Scheduler;
use super::run_order::{EntityKey, RunKey, RunSet};
use super::state::Device;
use crate::id::{DeviceId, GangId, QueueId};
use crate::policy::Rank;
use crate::priority::Class;
use crate::timer::Timer;

impl Scheduler {
    /// Updates for every gang whether it is blocked.
    pub(super) fn update_gangs(&mut self) {
        if self.gangs.is_empty() {
            return;
        }
        let mut gangs: Vec<(Rank, GangId)> = self
            .gangs
            .keys()
            .filter_map(|&gang| {
                let run_keys = self.gang_run_keys(gang);
                Some((run_keys.values().map(|run_key| run_key.rank).max()?, gang))
            })
            .collect();
        gangs.sort_by(|left, right| right.cmp(left));
        let mut taken = Vec::new();
        for (_, gang) in gangs {
            let blocked = self.is_suspended(gang) || self.is_blocked(gang, &taken);
            let Some(state) = self.gangs.get_mut(&gang) else { continue };
            if state.blocked != blocked {
                state.blocked = blocked;
                for queue in self.gang_queues(gang) {
                    self.update_queue(queue);
                }
            }
            if !blocked {
                self.align_gang_turns(gang);
                taken.extend(self.gang_run_keys(gang));
            }
        }
    }

    /// The highest key that a gang would have in each run order where it has work, were it not
    /// blocked.
    fn gang_run_keys(&self, gang: GangId) -> BTreeMap<(DeviceId, Class), RunKey> {
        let mut run_keys = BTreeMap::new();
        for id in self.gang_queues(gang) {
            let Some(queue) = self.queues.get(&id).filter(|queue| queue.active) else { continue };
            let Some(device) = self.devices.get(&queue.device) else { continue };
            if device.is_scheduled_here() {
                let run_key = self.run_key_of(id, queue, device, queue.order);
                let first = run_keys.entry((queue.device, queue.order)).or_insert(run_key);
                *first = run_key.max(*first);
            }
        }
        run_keys
    }

    /// Whether another task ranks higher in any run order of a gang. A gang does not share a run
    /// order with a gang that can run, unless their ranks are equal.
    fn is_blocked(&self, gang: GangId, taken: &[((DeviceId, Class), RunKey)]) -> bool {
        self.gang_run_keys(gang).into_iter().any(|((device_id, class), run_key)| {
            let Some(device) = self.devices.get(&device_id) else {
                return false;
            };
            let exclusive = device.run_order(class).exclusive;
            let rival = self.first_without_gang(device, class);
            rival.is_some_and(|rival| run_key.ranks_below(&rival, exclusive))
                || taken.iter().any(|(order, other)| {
                    *order == (device_id, class) && (exclusive || other.rank != run_key.rank)
                })
        })
    }

    /// The highest key of the queues without a gang. Whether one of them has the turn does not
    /// count: turns end at different times on different devices, and a gang would wait for ever for
    /// all of them to end at once.
    fn first_without_gang(&self, device: &Device, class: Class) -> Option<RunKey> {
        let order = device.run_order(class);
        let alone = |run_key: &RunKey| {
            let queue = self.queues.get(&run_key.queue.0);
            queue.is_some_and(|queue| queue.gang.is_none())
        };
        let holds = |run_key: &RunKey| order.holders.contains(&run_key.entity.0);
        let waiting = order.first_where(|run_key| alone(run_key) && !holds(run_key));
        let holder = order.first_where(|run_key| alone(run_key) && holds(run_key));
        let holder = holder.and_then(|run_key| {
            let queue = self.queues.get(&run_key.queue.0)?;
            Some(self.run_key_if(run_key.queue.0, queue, device, (class, false)))
        });
        waiting.into_iter().chain(holder).max()
    }

    /// Gives all members of a gang the turn at the same time, until the same end.
    fn align_gang_turns(&mut self, gang: GangId) {
        let mut end = None;
        for ((device_id, class), entities) in self.entities_to_run(gang) {
            let Some(device) = self.devices.get(&device_id) else { continue };
            let holders = &device.run_order(class).holders;
            if entities.iter().any(|entity| holders.contains(entity)) {
                end = end.or_else(|| self.timers.end_of(Timer::SliceOver(device_id, class)));
            }
            let end = *end.get_or_insert_with(|| self.now + self.slice_of(device, class));
            if entities.iter().any(|entity| !holders.contains(entity)) {
                self.take_turn(device_id, class, &entities, end);
            }
        }
    }

    /// The entities of a gang that should have the turn, by run order.
    fn entities_to_run(&self, gang: GangId) -> BTreeMap<(DeviceId, Class), Vec<EntityKey>> {
        let mut run_orders: BTreeMap<_, Vec<RunKey>> = BTreeMap::new();
        for id in self.gang_queues(gang) {
            if let Some(queue) = self.queues.get(&id)
                && let RunSet::On(run_key) | RunSet::Off(run_key) | RunSet::Resuming(run_key) =
                    queue.run_set
            {
                let order = run_orders.entry((queue.device, queue.order)).or_default();
                order.push(run_key);
            }
        }
        let with_turn = |(order, run_keys): ((DeviceId, Class), Vec<RunKey>)| {
            let device = self.devices.get(&order.0)?;
            if !device.is_scheduled_here() {
                return None;
            }
            let first = run_keys.iter().max()?.queue.0;
            let hold_permitted =
                self.run_key_if(first, self.queues.get(&first)?, device, (order.1, true));
            let state = device.run_order(order.1);
            let leads = state.top().is_none_or(|top| top.rank <= hold_permitted.rank);
            if !leads || !self.policy(state.exclusive).takes_turns(&hold_permitted.rank) {
                return None;
            }
            let entities = run_keys.iter().map(|run_key| run_key.entity.0);
            let entities =
                entities.filter(|&entity| !state.exclusive || entity == hold_permitted.entity.0);
            Some((order, entities.collect()))
        };
        run_orders.into_iter().filter_map(with_turn).collect()
    }

    pub(super) fn gang_queues(&self, gang: GangId) -> Vec<QueueId> {
        let tasks = self.gangs.get(&gang).into_iter().flat_map(|gang| gang.tasks.iter());
        tasks
            .filter_map(|task| self.tasks.get(task))
            .flat_map(|task| task.queues.iter().copied())
            .collect()
    }

    pub(super) fn gang_entities(&self, gang: GangId) -> Vec<(DeviceId, Class, EntityKey)> {
        self.gang_queues(gang)
            .into_iter()
            .filter_map(|id| {
                let queue = self.queues.get(&id)?;
                let device = self.devices.get(&queue.device)?;
                Some((queue.device, queue.order, device.entity_key(queue.task, id)))
            })
            .collect()
    }
}
