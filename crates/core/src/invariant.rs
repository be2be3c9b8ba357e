//! What must be true of a scheduler between any two calls.

use alloc::format;
use alloc::string::String;

use crate::priority::Class;
use crate::queue::Standing;
use crate::scheduler::Scheduler;
use crate::scheduler::order::Position;

/// Checks everything that can be checked from the inside. Costs as much as there are queues, so
/// tests and the simulator call it, the daemon does not.
///
/// # Errors
/// The first thing that is not as it should be, in a sentence.
pub fn check(scheduler: &Scheduler) -> Result<(), String> {
    scheduler.check_queues()?;
    scheduler.check_lanes()?;
    scheduler.check_turns()
}

impl Scheduler {
    fn check_queues(&self) -> Result<(), String> {
        for (id, queue) in self.all_queues() {
            let doubtful = queue.doubtful && queue.standing == Standing::Off && !queue.stuck;
            if doubtful != (queue.position == Position::Restore) {
                return Err(format!("{id} is in doubt: {doubtful}, but {:?}", queue.position));
            }
            let expected = match (queue.active && !queue.stuck, queue.standing) {
                _ if doubtful => true,
                (_, Standing::On) if queue.suspended && !queue.stuck => {
                    queue.position == Position::Evict
                }
                _ if queue.suspended => queue.position == Position::Out,
                (true, Standing::On) => {
                    matches!(queue.position, Position::On(_) | Position::Evict)
                }
                (true, Standing::Off) => matches!(queue.position, Position::Off(_) | Position::Out),
                (true, Standing::Resuming) => {
                    matches!(queue.position, Position::Resuming(_) | Position::Out)
                }
                (false, Standing::On) if !queue.stuck => {
                    matches!(queue.position, Position::Out | Position::Idle | Position::Unseen(_))
                }
                (false, Standing::Off) if !queue.stuck => queue.position == Position::Parked,
                (true, Standing::Preempting) | (false, _) => queue.position == Position::Out,
            };
            if !expected {
                let (standing, position) = (queue.standing, queue.position);
                return Err(format!("{id} is {standing:?} but in its lane {position:?}"));
            }
            if queue.awaited && queue.standing != Standing::Preempting {
                return Err(format!("{id} is waited for but {:?}", queue.standing));
            }
            let is_off = self.is_task_suspended(queue.task) || queue.own_suspended;
            if is_off != queue.suspended {
                return Err(format!("{id} is not suspended as it or its task is"));
            }
            let waits = queue.active && queue.standing == Standing::Off && !queue.suspended;
            if waits != queue.waits_since.is_some() {
                return Err(format!("{id} waits: {waits}, but {:?}", queue.waits_since));
            }
        }
        Ok(())
    }

    fn check_lanes(&self) -> Result<(), String> {
        for (id, device) in self.all_devices() {
            let here = || self.all_queues().filter(|(_, queue)| queue.device == id);
            for class in [Class::Low, Class::High] {
                let lane = device.lane(class);
                let placed = here()
                    .filter(|(_, queue)| queue.lane == class && queue.position != Position::Out)
                    .count();
                if placed != lane.len() {
                    let len = lane.len();
                    return Err(format!("{id}: {placed} queues say they are in a lane of {len}"));
                }
                let leaving =
                    here().filter(|(_, queue)| queue.lane == class && queue.awaited).count();
                if u32::try_from(leaving) != Ok(lane.preempting) {
                    let count = lane.preempting;
                    return Err(format!("{id}: {leaving} queues leave, the lane says {count}"));
                }
            }
            for (key, seat) in &device.seats {
                let active = here()
                    .filter(|(queue_id, queue)| {
                        device.seat_key(queue.task, *queue_id) == *key && queue.active
                    })
                    .count();
                if u32::try_from(active) != Ok(seat.active) {
                    return Err(format!("{id}: {key:?} has {active} active, says {}", seat.active));
                }
            }
        }
        Ok(())
    }
    /// Who has the turn knows it, has work in that lane, and has it once.
    fn check_turns(&self) -> Result<(), String> {
        for (id, device) in self.all_devices() {
            let mut holders = 0;
            for class in [Class::Low, Class::High] {
                let here = |queue_id| {
                    self.all_queues().any(|(id, queue)| id == queue_id && queue.lane == class)
                };
                for key in &device.lane(class).holders {
                    let seat = device.seats.get(key).filter(|seat| {
                        let knows = seat.holds.is_some() && seat.active > 0;
                        knows && seat.queues.iter().any(|&queue| here(queue))
                    });
                    if seat.is_none() {
                        return Err(format!("{id}: {key:?} has the {class:?} turn but no use"));
                    }
                    holders += 1;
                }
            }
            let believers = device.seats.values().filter(|seat| seat.holds.is_some());
            if believers.count() != holders {
                return Err(format!("{id}: a seat believes that it has the turn"));
            }
        }
        Ok(())
    }
}
