//! Commands in the background: those for which no queue with work waits.
//!
//! Suspending a queue, resuming one without work, and preempting one to learn whether it has work
//! are asked for by users, as often as they like, for as many queues as they have. A device makes
//! one command after the other, so others must not wait for them; and on a device with slices each
//! of them changes the runlist, which ends the slice of whatever runs (measured). So a command in
//! the background is given only when there is no other one, few are in flight at once, and while
//! high-priority queues have work there is a pause after each on a device with slices.

use alloc::collections::BTreeMap;

use super::Scheduler;
use super::state::Device;
use crate::backend::{Command, Mechanism};
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId, TaskId};
use crate::priority::Class;
use crate::time::{Duration, Instant};
use crate::timer::Timer;

/// Commands in flight at once on a device without slices, whose controllers can make several with
/// one call.
const IN_FLIGHT_MAX: u32 = 16;
/// The pause after a command on a device with slices, as a multiple of how long the command took.
const PAUSE: u64 = 3;
/// The longest pause, so that one slow command does not delay all others for long.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The commands of a device in the background.
#[derive(Debug, Default)]
pub(crate) struct Background {
    pub(crate) in_flight: u32,
    /// There is a pause until then.
    next_at: Instant,
    /// The tasks whose queues were suspended and resumed last.
    last_suspended: Option<TaskId>,
    last_resumed: Option<TaskId>,
    /// Queues that vanished while their command was in flight, and when it was given. The device
    /// is still busy with it.
    pub(crate) vanished: BTreeMap<QueueId, Instant>,
}

impl Device {
    fn has_room_in_background(&self, now: Instant) -> bool {
        let in_flight_max = match self.capabilities.mechanism {
            Mechanism::Slice => 1,
            Mechanism::Stop | Mechanism::ObserveOnly => IN_FLIGHT_MAX,
        };
        self.background.in_flight < in_flight_max && self.background.next_at <= now
    }
}

impl Scheduler {
    pub(super) fn has_room_in_background(&self, id: DeviceId) -> bool {
        self.devices.get(&id).is_some_and(|device| device.has_room_in_background(self.now))
    }

    /// The next command in the background for the queues of a run order.
    pub(super) fn next_in_background(&mut self, id: DeviceId, class: Class) -> Option<Command> {
        let device = self.devices.get(&id)?;
        let (order, background) = (device.run_order(class), &device.background);
        let (queue, command) = if let Some(queue) = order.unproven_idle_blocker() {
            (queue, self.preempt(queue, Reason::PossiblyRunning))
        } else if let Some((task, queue)) = order.suspended(background.last_suspended) {
            self.devices.get_mut(&id)?.background.last_suspended = Some(task);
            (queue, self.preempt(queue, Reason::Suspended))
        } else {
            let (task, queue) = order.off_idle(background.last_resumed)?;
            self.devices.get_mut(&id)?.background.last_resumed = Some(task);
            (queue, self.resume(queue))
        };
        self.queues.get_mut(&queue)?.in_background = true;
        self.devices.get_mut(&id)?.background.in_flight += 1;
        command
    }

    /// The command in flight for a queue has ended, or no other command waits for it any more.
    pub(super) fn end_in_background(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if core::mem::take(&mut queue.in_background) {
            let (device, commanded_at) = (queue.device, queue.commanded_at);
            self.make_room_in_background(device, commanded_at);
        }
    }

    /// A queue vanishes. A command for it that is in flight keeps the device busy until its end, so
    /// that a process cannot have any number of them by opening and closing queues.
    pub(super) fn vanish_in_background(&mut self, id: QueueId) {
        // A backend does not use a number twice; if it did, the first command would be over.
        self.end_vanished(id);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if core::mem::take(&mut queue.in_background)
            && let Some(device) = self.devices.get_mut(&queue.device)
        {
            device.background.vanished.insert(id, queue.commanded_at);
            let over = self.now + self.config.preempt_timeout;
            self.timers.set(Timer::Vanished(queue.device, id), over);
        }
    }

    /// The command for a queue that has vanished has ended, or takes too long.
    pub(super) fn end_vanished(&mut self, id: QueueId) {
        let known = self
            .devices
            .iter()
            .find_map(|(&device, state)| Some((device, *state.background.vanished.get(&id)?)));
        let Some((device, commanded_at)) = known else { return };
        if let Some(state) = self.devices.get_mut(&device) {
            state.background.vanished.remove(&id);
        }
        self.timers.stop(Timer::Vanished(device, id));
        self.make_room_in_background(device, commanded_at);
    }

    fn make_room_in_background(&mut self, id: DeviceId, commanded_at: Instant) {
        let now = self.now;
        let Some(device) = self.devices.get_mut(&id) else { return };
        device.background.in_flight -= 1;
        if device.capabilities.mechanism == Mechanism::Slice
            && device.run_order(Class::High).is_busy()
        {
            let took = now.since(commanded_at);
            device.background.next_at = now + took.times(PAUSE).min(PAUSE_MAX);
            self.timers.set(Timer::Background(id), device.background.next_at);
        }
        self.changed_devices.insert(id);
    }
}
