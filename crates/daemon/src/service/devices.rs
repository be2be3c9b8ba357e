//! Devices: their controllers, the scheduler that commands them, and suspended queues.
//!
//! [`Devices`] delivers events to the scheduler and its commands to the controllers. It knows tasks
//! and queues; [`processes`](super::processes) knows which process a task is. Nothing here waits
//! for a device: controllers have threads.

pub(crate) mod backends;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod policy_settings;
pub(crate) mod queue_priorities;
pub(crate) mod queue_quota;
pub(crate) mod queue_suspensions;

use std::collections::BTreeSet;

use gpreempt_core::config::Config;
use gpreempt_core::event::Event;
use gpreempt_core::id::{DeviceId, TaskId};
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::controller::{DeviceSearch, Waker};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::policy::PolicySettings;

use super::instant;
use super::telemetry::log::Log;
use backends::Backends;
use policy_settings::PolicyError;
use queue_priorities::QueuePriorities;
use queue_suspensions::{QueueActivity, QueueSuspensions};

#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) driver: SchedulerLoop,
    pub(crate) backends: Backends,
    pub(crate) queue_suspensions: QueueSuspensions,
    pub(crate) queue_priorities: QueuePriorities,
    /// Threads of controllers wake the loop through it.
    pub(crate) waker: Waker,
    /// The scheduler has received an event since its last step.
    pub(crate) is_changed: bool,
}

impl Devices {
    pub(crate) fn new(driver: SchedulerLoop, backends: Backends, waker: Waker) -> Self {
        let queue_suspensions = QueueSuspensions::default();
        let queue_priorities = QueuePriorities::default();
        Self { driver, backends, queue_suspensions, queue_priorities, waker, is_changed: false }
    }

    pub(crate) const fn scheduler(&self) -> &Scheduler {
        self.driver.scheduler()
    }

    /// One step of the scheduler: events in, commands out. Returns the time to the next step.
    pub(crate) fn step(&mut self, now: Instant) -> Duration {
        self.is_changed = false;
        self.driver.step(now, &mut self.backends)
    }

    /// Delivers an event to the scheduler at once.
    pub(crate) fn tell(&mut self, event: Event, log: &mut Log) {
        if let Err(error) = self.driver.deliver(instant(monotonic_ns()), event) {
            log.error(format_args!("internal error: scheduler rejected event {event:?}: {error}"));
        }
    }

    pub(crate) fn devices_of(&self, task: TaskId) -> Vec<DeviceId> {
        let own = self.scheduler().queues().filter(|view| view.task == task);
        let mut devices: Vec<DeviceId> = own.map(|view| view.device).collect();
        devices.dedup();
        devices
    }

    /// The search for the devices that a process uses: those of its task's queues, and those on
    /// which a controller finds it.
    pub(crate) fn device_search(&self, key: ProcessKey, task: Option<TaskId>) -> DeviceSearch {
        let devices = task.map(|task| self.devices_of(task)).unwrap_or_default();
        let known = devices.into_iter().filter_map(|device| self.backends.uuid(device));
        let (known, searches) = (known.collect::<Vec<_>>(), self.backends.device_searches(key));
        Box::new(move || {
            let found = searches.into_iter().flat_map(|search| search());
            let all: BTreeSet<String> = known.into_iter().chain(found).collect();
            all.into_iter().collect()
        })
    }

    /// Changes the scheduler's settings as a client asks. Returns the settings in force.
    pub(crate) fn change_policy(&mut self, asked: &PolicySettings) -> Result<Config, PolicyError> {
        let config = policy_settings::changed(self.scheduler().config(), asked)?;
        let now = self.driver.now();
        self.driver.scheduler_mut().set_config(now, config)?;
        Ok(config)
    }

    /// Updates controllers and scheduler with the queues that are suspended now.
    pub(crate) fn settle_queue_suspensions(&mut self, now_ns: u64) {
        if self.queue_suspensions.is_empty() {
            return;
        }
        for (queue, parked) in self.queue_suspensions.settle_parks(now_ns) {
            self.backends.park(queue, parked);
        }
        let (scheduler, backends) = (self.driver.scheduler(), &self.backends);
        let look = |queue| {
            let view = scheduler.queue(queue)?;
            Some(QueueActivity { has_work: view.active, is_at_rest: backends.is_at_rest(queue) })
        };
        for (queue, suspended) in self.queue_suspensions.settle(now_ns, look) {
            // The scheduler rejects this only for a queue that no longer exists.
            let _ =
                self.driver.deliver(instant(now_ns), Event::QueueSuspended { queue, suspended });
            self.is_changed = true;
        }
    }
}
