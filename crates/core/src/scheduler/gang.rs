//! Gangs: tasks that run on all of their devices, or on none.
//!
//! A gang is blocked when on any of its devices somebody else comes first. A blocked gang is
//! taken off everywhere and is invisible to the others, so its other devices are not wasted.
//! Gangs are judged from the most important down; each is judged against those that were found
//! able to run. The most important of all is never blocked, so somebody always makes progress.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Scheduler;
use super::order::{Place, Position, SeatKey};
use super::state::Device;
use crate::id::{DeviceId, GangId, QueueId};
use crate::policy::Rank;
use crate::priority::Class;
use crate::timer::Timer;

impl Scheduler {
    /// Judges every gang again. Costs nothing where there are none.
    pub(super) fn judge_gangs(&mut self) {
        if self.gangs.is_empty() {
            return;
        }
        let mut gangs: Vec<(Rank, GangId)> = self
            .gangs
            .keys()
            .filter_map(|&gang| {
                let places = self.gang_places(gang);
                Some((places.values().map(|place| place.rank).max()?, gang))
            })
            .collect();
        gangs.sort_by(|left, right| right.cmp(left));
        let mut taken = Vec::new();
        for (_, gang) in gangs {
            let blocked = self.is_suspended(gang) || self.is_blocked(gang, &taken);
            let Some(state) = self.gangs.get_mut(&gang) else {
                continue;
            };
            if state.blocked != blocked {
                state.blocked = blocked;
                for queue in self.gang_queues(gang) {
                    self.reseat(queue);
                }
            }
            if !blocked {
                self.take_turns_together(gang);
                taken.extend(self.gang_places(gang));
            }
        }
    }

    /// The first place it would have in each lane where it has work, if it were not blocked.
    fn gang_places(&self, gang: GangId) -> BTreeMap<(DeviceId, Class), Place> {
        let mut places = BTreeMap::new();
        for id in self.gang_queues(gang) {
            let Some(queue) = self.queues.get(&id).filter(|queue| queue.active) else {
                continue;
            };
            let Some(device) = self.devices.get(&queue.device) else {
                continue;
            };
            if device.is_ordered() {
                let place = self.place_of(id, queue, device, queue.lane);
                let first = places.entry((queue.device, queue.lane)).or_insert(place);
                *first = place.max(*first);
            }
        }
        places
    }

    /// Whether somebody else comes first in any of its lanes. It does not share a lane with a
    /// gang that was found able to run, or that one would not be able to run.
    fn is_blocked(&self, gang: GangId, taken: &[((DeviceId, Class), Place)]) -> bool {
        self.gang_places(gang).into_iter().any(|((device_id, class), place)| {
            let Some(device) = self.devices.get(&device_id) else {
                return false;
            };
            let exclusive = device.lane(class).exclusive;
            let rival = self.first_without_gang(device, class);
            rival.is_some_and(|rival| place.yields_to(&rival, exclusive))
                || taken.iter().any(|(lane, other)| {
                    *lane == (device_id, class) && (exclusive || other.rank != place.rank)
                })
        })
    }

    /// The first of those in a lane that have no gang. Whether one of them has the turn does not
    /// count: their turns end at different times on different devices, and a gang that waited for
    /// all of them to end at once would wait for ever.
    fn first_without_gang(&self, device: &Device, class: Class) -> Option<Place> {
        let lane = device.lane(class);
        let alone = |place: &Place| {
            let queue = self.queues.get(&place.queue.0);
            queue.is_some_and(|queue| queue.gang.is_none())
        };
        let holds = |place: &Place| lane.holders.contains(&place.seat.0);
        let waiting = lane.first_where(|place| alone(place) && !holds(place));
        let holder = lane.first_where(|place| alone(place) && holds(place));
        let holder = holder.and_then(|place| {
            let queue = self.queues.get(&place.queue.0)?;
            Some(self.place_if(place.queue.0, queue, device, (class, false)))
        });
        waiting.into_iter().chain(holder).max()
    }

    /// A gang's turn is everybody's turn at once, or its members would never meet.
    fn take_turns_together(&mut self, gang: GangId) {
        let mut end = None;
        for ((device_id, class), seats) in self.seats_to_run(gang) {
            let Some(device) = self.devices.get(&device_id) else {
                continue;
            };
            let holders = &device.lane(class).holders;
            if seats.iter().any(|seat| holders.contains(seat)) {
                end = end.or_else(|| self.timers.end_of(Timer::SliceOver(device_id, class)));
            }
            let end = *end.get_or_insert_with(|| self.now + self.slice_of(device, class));
            if seats.iter().any(|seat| !holders.contains(seat)) {
                self.take_turn(device_id, class, &seats, end);
            }
        }
    }

    /// The seats that a gang able to run should have the turn with, lane by lane.
    fn seats_to_run(&self, gang: GangId) -> BTreeMap<(DeviceId, Class), Vec<SeatKey>> {
        let mut lanes: BTreeMap<_, Vec<Place>> = BTreeMap::new();
        for id in self.gang_queues(gang) {
            if let Some(queue) = self.queues.get(&id)
                && let Position::On(place) | Position::Off(place) | Position::Resuming(place) =
                    queue.position
            {
                let lane = lanes.entry((queue.device, queue.lane)).or_default();
                lane.push(place);
            }
        }
        let with_turn = |(lane, places): ((DeviceId, Class), Vec<Place>)| {
            let device = self.devices.get(&lane.0)?;
            if !device.is_ordered() {
                return None;
            }
            let first = places.iter().max()?.queue.0;
            let held = self.place_if(first, self.queues.get(&first)?, device, (lane.1, true));
            let state = device.lane(lane.1);
            let leads = state.top().is_none_or(|top| top.rank <= held.rank);
            if !leads || !self.policy(state.exclusive).takes_turns(&held.rank) {
                return None;
            }
            let seats = places.iter().map(|place| place.seat.0);
            let seats = seats.filter(|&seat| !state.exclusive || seat == held.seat.0);
            Some((lane, seats.collect()))
        };
        lanes.into_iter().filter_map(with_turn).collect()
    }

    pub(super) fn gang_queues(&self, gang: GangId) -> Vec<QueueId> {
        let tasks = self.gangs.get(&gang).into_iter().flat_map(|gang| gang.tasks.iter());
        tasks
            .filter_map(|task| self.tasks.get(task))
            .flat_map(|task| task.queues.iter().copied())
            .collect()
    }

    /// Every seat of a gang.
    pub(super) fn gang_seats(&self, gang: GangId) -> Vec<(DeviceId, Class, SeatKey)> {
        self.gang_queues(gang)
            .into_iter()
            .filter_map(|id| {
                let queue = self.queues.get(&id)?;
                let device = self.devices.get(&queue.device)?;
                Some((queue.device, queue.lane, device.seat_key(queue.task, id)))
            })
            .collect()
    }
}
