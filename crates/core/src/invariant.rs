//! Invariants: what is true of a scheduler between any two calls.

use alloc::format;
use alloc::string::String;

use crate::priority::Class;
use crate::queue::RunState;
use crate::scheduler::Scheduler;
use crate::scheduler::run_order::RunSet;

/// Checks all invariants. Tests and simulator call it; the daemon does not, because the cost grows
/// with the number of queues.
///
/// # Errors
/// The first violated invariant.
pub fn check(scheduler: &Scheduler) -> Result<(), String> {
    scheduler.check_queues()?;
    scheduler.check_run_orders()?;
    scheduler.check_turns()
}

impl Scheduler {
    fn check_queues(&self) -> Result<(), String> {
        for (id, queue) in self.all_queues() {
            let preempt_unknown =
                queue.preempt_unknown && queue.run_state == RunState::Off && !queue.backing_off;
            if preempt_unknown != (queue.run_set == RunSet::MustResume) {
                return Err(format!(
                    "{id}: preempt unknown is {preempt_unknown}, but {:?}",
                    queue.run_set
                ));
            }
            let expected = match (queue.active && !queue.backing_off, queue.run_state) {
                _ if preempt_unknown => true,
                (_, RunState::On) if queue.suspended && !queue.backing_off => {
                    queue.run_set == RunSet::Suspended(queue.task)
                }
                _ if queue.suspended => queue.run_set == RunSet::Out,
                (true, RunState::On) => {
                    matches!(queue.run_set, RunSet::On(_) | RunSet::GangBlocked)
                }
                (true, RunState::Off) => matches!(queue.run_set, RunSet::Off(_) | RunSet::Out),
                (true, RunState::Resuming) => {
                    matches!(queue.run_set, RunSet::Resuming(_) | RunSet::Out)
                }
                (false, RunState::On) if !queue.backing_off => {
                    matches!(
                        queue.run_set,
                        RunSet::Out | RunSet::UnprovenIdle | RunSet::PossiblyRunning(_)
                    )
                }
                (false, RunState::Off) if !queue.backing_off => {
                    queue.run_set == RunSet::OffIdle(queue.task)
                }
                (true, RunState::Preempting) | (false, _) => queue.run_set == RunSet::Out,
            };
            if !expected {
                let (run_state, run_set) = (queue.run_state, queue.run_set);
                return Err(format!("{id} is {run_state:?} but in the set {run_set:?}"));
            }
            if queue.preempt_awaited && queue.run_state != RunState::Preempting {
                return Err(format!(
                    "{id}: its preempt is awaited but it is {:?}",
                    queue.run_state
                ));
            }
            if queue.in_background && !queue.run_state.is_moving() {
                return Err(format!("{id}: {:?} in the background", queue.run_state));
            }
            let is_off = self.is_task_suspended(queue.task) || queue.own_suspended;
            if is_off != queue.suspended {
                return Err(format!("{id}: suspended does not follow from queue and task"));
            }
            let waits = queue.active && queue.run_state == RunState::Off && !queue.suspended;
            if waits != queue.waits_since.is_some() {
                return Err(format!("{id} waits: {waits}, but {:?}", queue.waits_since));
            }
        }
        Ok(())
    }

    fn check_run_orders(&self) -> Result<(), String> {
        for (id, device) in self.all_devices() {
            let here = || self.all_queues().filter(|(_, queue)| queue.device == id);
            for class in [Class::Low, Class::High] {
                let order = device.run_order(class);
                let placed = here()
                    .filter(|(_, queue)| queue.order == class && queue.run_set != RunSet::Out)
                    .count();
                if placed != order.len() {
                    let len = order.len();
                    return Err(format!(
                        "{id}: {placed} queues say they are in a run order of {len}"
                    ));
                }
                let leaving = here()
                    .filter(|(_, queue)| queue.order == class && queue.preempt_awaited)
                    .count();
                if u32::try_from(leaving) != Ok(order.preempting) {
                    let count = order.preempting;
                    return Err(format!(
                        "{id}: {leaving} preempts are awaited, the run order says {count}"
                    ));
                }
            }
            let in_background = here().filter(|(_, queue)| queue.in_background).count()
                + device.background.vanished.len();
            if u32::try_from(in_background) != Ok(device.background.in_flight) {
                let count = device.background.in_flight;
                return Err(format!(
                    "{id}: {in_background} commands are in the background, the device says {count}"
                ));
            }
            for (key, entity) in &device.entities {
                let active = here()
                    .filter(|(queue_id, queue)| {
                        device.entity_key(queue.task, *queue_id) == *key && queue.active
                    })
                    .count();
                if u32::try_from(active) != Ok(entity.active) {
                    return Err(format!(
                        "{id}: {key:?} has {active} active, says {}",
                        entity.active
                    ));
                }
            }
        }
        Ok(())
    }

    /// Entities with the turn know it, have work in that run order, and are in no other.
    fn check_turns(&self) -> Result<(), String> {
        for (id, device) in self.all_devices() {
            let mut holders = 0;
            for class in [Class::Low, Class::High] {
                let here = |queue_id| {
                    self.all_queues().any(|(id, queue)| id == queue_id && queue.order == class)
                };
                for key in &device.run_order(class).holders {
                    let entity = device.entities.get(key).filter(|entity| {
                        let knows = entity.holds.is_some() && entity.active > 0;
                        knows && entity.queues.iter().any(|&queue| here(queue))
                    });
                    if entity.is_none() {
                        return Err(format!("{id}: {key:?} has the {class:?} turn but no work"));
                    }
                    holders += 1;
                }
            }
            let claimants = device.entities.values().filter(|entity| entity.holds.is_some());
            if claimants.count() != holders {
                return Err(format!("{id}: an entity outside of the holders says it has the turn"));
            }
        }
        Ok(())
    }
}
